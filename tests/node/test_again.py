"""Looking again where a program begins to use a GPU: how often, and what ends it."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.models import Event, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.workflows.tools import PAUSES, looking_again

BEGUN = RolledBack(Reason.GPU_BEGUN, pid=320, name="python")
ONE = {"pid": 320, "name": "python"}
SEEN = Event()


class SteppedClock:
    """Time passes where somebody waits, and at once."""

    def __init__(self) -> None:
        self.time = 0.0
        self.at = lambda _: None

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.at(self.time)


class Attempts:
    def __init__(self, *ends: ReclaimError | None, stage: Stage = Stage.FAILED) -> None:
        self.ends = list(ends)
        self.operation = Operation("capture", SessionKey(user="ann", server=""), "cp")
        self.clock = SteppedClock()
        self.record = Record(
            operation="capture",
            incarnation="one",
            key=self.operation.key,
            stage=stage,
            checkpoint="cp",
            init_pid=1,
            init_start=1,
            begun=0.0,
        )

    async def _attempt(self, operation: Operation):
        yield SEEN
        if (end := self.ends.pop(0)) is not None:
            raise end

    def run(self) -> list[Event]:
        work = looking_again(self._attempt, lambda: self.record, self.clock)

        async def events() -> list[Event]:
            return [event async for event in work(self.operation)]

        return asyncio.run(events())


@pytest.mark.parametrize(
    "error",
    [BEGUN, Refused(Reason.DEVICE_OPEN, **ONE, device="/dev/nvidiactl")],
    ids=["begun", "open"],
)
def test_it_is_done_again_where_a_program_just_begins(error):
    attempts = Attempts(error, error, None)
    assert attempts.run() == [SEEN] * 3
    assert attempts.clock.time == pytest.approx(sum(PAUSES[:2]), abs=0.2)


def test_the_last_attempt_tells_what_was_wrong():
    attempts = Attempts(*[BEGUN] * (len(PAUSES) + 1))
    with pytest.raises(RolledBack) as caught:
        attempts.run()
    assert caught.value is BEGUN
    assert not attempts.ends


@pytest.mark.parametrize(
    "error",
    [
        Refused(Reason.DEVICE_OPEN, **ONE, device="/dev/fuse"),
        RolledBack(Reason.CAPTURE_FAILED, why="of something else"),
    ],
    ids=["device", "failed"],
)
def test_what_does_not_pass_by_itself_is_told_at_once(error):
    attempts = Attempts(error)
    with pytest.raises(ReclaimError) as caught:
        attempts.run()
    assert caught.value is error


def test_what_could_not_be_undone_is_not_done_again():
    attempts = Attempts(BEGUN, stage=Stage.ROLLING_BACK)
    with pytest.raises(RolledBack) as caught:
        attempts.run()
    assert caught.value is BEGUN


def test_a_cancel_ends_the_pause():
    attempts = Attempts(BEGUN, None)
    attempts.clock.at = lambda time: attempts.operation.cancel.set()
    with pytest.raises(RolledBack) as caught:
        attempts.run()
    assert caught.value.reason is Reason.CANCELLED
    assert attempts.clock.time < PAUSES[0]
    assert attempts.ends == [None]
