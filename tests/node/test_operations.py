"""One operation per session; followers see all of it, whenever they come."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RolledBack,
)
from jupyterhub_gpu_reclaim.common.models import Event, SessionKey, Step
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.operations import (
    MOST_LATE,
    Operation,
    Operations,
    in_thread,
    reported_step,
)
from jupyterhub_gpu_reclaim.node.session import Session

KEY = SessionKey("ann")


def step(name: str, state: str = "begun", size: int = 0) -> Event:
    return Event(step=Step(step=name, title=name, state=state, bytes=size))


async def follow(operation: Operation) -> list[Event]:
    return [event async for event in operation.follow()]


async def test_follow_late_sees_only_the_newest_figure_of_a_step():
    operation = Operation("capture", KEY, "cp")
    for size in range(100):
        operation.add(step("dump", "going", size))
    operation.end()
    assert [event.step.bytes for event in await follow(operation)] == [99]


async def test_follow_slow_reader_gets_the_newest_figure():
    operation = Operation("capture", KEY, "cp")
    reader = operation.follow()
    operation.add(step("dump", "going", 1))
    assert (await anext(reader)).step.bytes == 1
    operation.add(step("dump", "going", 2))
    operation.add(step("dump", "going", 3))
    operation.end()
    assert [event.step.bytes async for event in reader] == [3]


async def test_begin_unexpected_error_tells_no_secret(caplog):
    async def work(operation):
        operation.add(step("dump"))
        raise ValueError("token=s3cret")

    operation = Operations().begin("i", Operation("capture", KEY, "cp"), work)
    await operation.wait(10)
    assert operation.events[-1].failure.code == "internal"
    assert "s3cret" not in operation.events[-1].failure.message


async def test_operations_that_have_ended_are_kept_without_a_descriptor():
    async def work(operation):
        operation.cancel.check()
        operation.add(step("dump"))

    operations = Operations()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        name = f"session{number}"
        operation = operations.begin(name, Operation("capture", KEY, "cp"), work)
        await operation.wait(10)
        assert operations.attach(name, "capture", "cp") is operation
    assert await operations.finish(10) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize(("kind", "anew"), [("restore", True), ("capture", False)])
async def test_attach_to_a_restore_that_failed_begins_anew(kind, anew):
    async def work(operation):
        operation.add(step("check"))
        raise ReclaimError(Reason.CHECKPOINT_DAMAGED)

    operations = Operations()
    operation = operations.begin("i", Operation(kind, KEY, "cp"), work)
    assert operations.attach("i", kind, "cp") is operation
    await operation.wait(10)
    found = operations.attach("i", kind, "cp")
    assert found is (None if anew else operation)


async def test_session_whose_programs_keep_threads_waiting_gets_no_more_of_them():
    """A file system of its user's that does not answer holds whoever asks it."""
    ended, operations = threading.Event(), Operations()

    def ended_session(user: str) -> Session:
        return Session("i", SessionKey(user), 2**22, 0, holding=False)

    async def attempt(user: str) -> None:
        operations.work_for(ended_session(user))
        with pytest.raises(RolledBack):
            await in_thread(lambda: ended.wait(20), step="preflight", limit=0.01)

    for _ in range(MOST_LATE):
        await asyncio.create_task(attempt("eve"))
    with pytest.raises(Refused) as refused:
        await asyncio.create_task(attempt("eve"))
    assert refused.value.reason is Reason.OPERATION_IN_FLIGHT
    await asyncio.create_task(attempt("ann"))
    ended.set()
    for _ in range(200):
        await asyncio.sleep(0.01)
        with contextlib.suppress(Refused):
            operations.work_for(ended_session("eve"))
            return
    pytest.fail("it is refused for ever")


async def test_step_that_fails_says_so():
    operation = Operation("capture", KEY, "cp")
    with pytest.raises(RolledBack):
        async with reported_step(operation, SystemClock(), "dump", "Saving"):
            raise RolledBack(Reason.CANCELLED)
    assert [event.step.state for event in operation.events] == ["begun", "failed"]
