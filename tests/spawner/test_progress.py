"""The reporter: every reader hears all lines from the beginning, percents only grow."""

import asyncio

from jupyterhub_gpu_reclaim.common.models import Step
from jupyterhub_gpu_reclaim.hub.spawner.progress import (
    CEILING,
    ProgressReporter,
    interleaved,
    sentence,
)


async def test_late_reader_hears_everything_and_the_end():
    reporter = ProgressReporter()
    reporter.report("first")
    early = asyncio.create_task(_read(reporter))
    await asyncio.sleep(0)
    reporter.report("second")
    reporter.end()
    async with asyncio.timeout(60):
        assert await early == await _read(reporter) == ["first", "second"]


async def test_percents_grow_and_stay_below_the_ceiling():
    reporter = ProgressReporter()
    for number in range(30):
        base = {"step": f"s{number}", "title": "Reading", "total_bytes": 100}
        for done in (0, 50, 100):
            reporter.step(Step(**base, state="going", bytes=done))
        reporter.step(Step(**base, state="done", bytes=100, seconds=1))
    reporter.end()
    percents = [line["progress"] async for line in reporter.lines()]
    assert percents == sorted(percents)
    assert 0 < percents[0] <= percents[-1] <= CEILING


def test_story_has_each_step_once_as_it_is_now_and_the_words_after_it():
    reporter = ProgressReporter()
    assert reporter.story == {"percent": 0, "status": "", "steps": []}
    reporter.report("Waiting for a free GPU: place 2 of 3")
    assert reporter.story["status"] == "Waiting for a free GPU: place 2 of 3"
    reporter.step(Step(step="files", title="Files", state="done", seconds=1))
    memory = {"step": "memory", "title": "Reading", "total_bytes": 4000}
    for done in (0, 1000, 3000):
        reporter.step(Step(**memory, state="going", bytes=done))
    story = reporter.story
    assert story["status"] == ""
    assert [(each["step"], each["state"]) for each in story["steps"]] == [
        ("files", "done"),
        ("memory", "going"),
    ]
    assert story["steps"][1]["facts"] == "3.0 kB of 4.0 kB"
    assert story["percent"] > 2


async def test_events_carry_the_fields_of_a_step_beside_its_words():
    reporter = ProgressReporter()
    reporter.step(Step(step="memory", title="Reading", state="done", seconds=2))
    reporter.end()
    [event] = [line async for line in reporter.lines()]
    assert event["message"] == "Reading: 2.0 s ✓"
    assert event["gpu_reclaim"] == {
        "step": "memory",
        "title": "Reading",
        "state": "done",
        "facts": "2.0 s",
    }


def test_sentence_names_bytes_and_seconds():
    step = Step(
        step="m", title="Reading", state="done", seconds=3.14, bytes=5, total_bytes=1200
    )
    assert sentence(step) == "Reading: 5 B of 1.2 kB, 3.1 s ✓"
    assert sentence(Step(step="m", title="Reading")) == "Reading …"


async def _read(reporter):
    return [line["message"] async for line in reporter.lines()]


async def test_interleaved_tells_ours_when_it_changes_and_all_of_theirs():
    ours = iter(["", "place 2", "place 2", "place 1", "", ""])

    async def theirs():
        for number in range(5):
            yield {"message": f"event {number}"}

    told = [each["message"] async for each in interleaved(theirs(), ours.__next__, 9)]
    events = [f"event {number}" for number in range(5)]
    assert told == [events[0], "place 2", *events[1:3], "place 1", *events[3:]]


async def test_interleaved_does_not_wait_for_their_next_word():
    async def silent():
        yield {"message": "first"}
        await asyncio.Event().wait()

    told = interleaved(silent(), iter(["", "", "place 1"]).__next__, 0.01)
    assert [(await anext(told))["message"] for _ in range(2)] == ["first", "place 1"]
    await told.aclose()
