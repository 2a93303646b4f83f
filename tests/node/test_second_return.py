"""A session comes back from one checkpoint twice, whatever it wrote in between."""

from __future__ import annotations

import sys
import time

import pytest

from tests.support.agent import goes_on, wait_for

pytestmark = pytest.mark.shares_an_agent

#: Writes on in a file that it has open, without O_APPEND.
PROGRAM = """
import sys, time
file = open(sys.argv[1], "r+")
while True:
    file.write("x"); file.flush()
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.fixture
def file(folder):
    made = folder / f"written-{time.monotonic_ns()}"
    made.write_text("")
    return made


@pytest.fixture
def suspended(agent, places, file):
    """The checkpoint of a session that has been ended."""
    place = places("start", sys.executable, "-c", PROGRAM, str(file))
    wait_for(lambda: place.output.stat().st_size)
    name = f"second-{place.incarnation[:8]}"
    assert agent.capture(place, name)[-1].get("checkpoint"), agent.log.read_text()
    path = f"/v1/sessions/{place.incarnation}/release"
    assert agent.post(path, {"checkpoint": name}).status_code == 200
    return name


def test_what_a_session_wrote_after_its_first_return_is_no_obstacle_to_a_second(
    agent, places, suspended
):
    for _ in range(2):
        place = places("hold")
        assert agent.restore(place, suspended)[-1].get("tree")
        assert goes_on(place)
        place.kill()


def test_so_it_is_after_a_later_suspend_of_that_session(agent, places, suspended):
    """As when an earlier version is brought back."""
    place = places("hold")
    assert agent.restore(place, suspended)[-1].get("tree")
    assert goes_on(place)
    assert agent.capture(place, f"{suspended}-later", 2)[-1].get("checkpoint")
    place.kill()
    place = places("hold")
    assert agent.restore(place, suspended)[-1].get("tree")
    assert goes_on(place)


def test_what_another_program_wrote_meanwhile_is(agent, places, suspended, file):
    with file.open("a") as other:
        other.write("another program's")
    place = places("hold")
    assert agent.restore(place, suspended)[-1]["failure"]["code"] == "file_changed"
