"""A session that would not come back is not stopped for that again and again."""

import asyncio
import os
import sys
import time
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
from jupyterhub_gpu_reclaim.node.operations.operations import Operation, TimeLimits
from jupyterhub_gpu_reclaim.node.operations.would_not_return import Refusals
from jupyterhub_gpu_reclaim.node.workflows import rehearsal
from tests.node.test_rehearsal import HOLDER, steps_of
from tests.support.agent import wait_for

WHY = "The file /tmp/#123 of kernel 310 is gone"
FAILURE = codec.failure_of(RolledBack(Reason.WOULD_NOT_RETURN, why=WHY))
HOUR = 3600.0


def snapshot(*programs: tuple[int, int]) -> Snapshot:
    init = Process(10, 1, 1, "init", "S", 5, 1000)
    return Snapshot(
        init,
        tuple(Process(pid, pid, 10, "python", "S", at, 1000) for pid, at in programs),
    )


KERNEL, SHELL, LATER = (310, 7), (320, 8), (330, 99)


@pytest.fixture
def refusals() -> Refusals:
    refusals = Refusals()
    refusals.remember("ann1", snapshot(KERNEL, SHELL), FAILURE, now=0.0)
    return refusals


def codes(refusals: Refusals, *programs: tuple[int, int], now: float = 60.0) -> list:
    return [
        found.code
        for found in refusals.findings("ann1", snapshot(*programs), now, None)
    ]


@pytest.mark.parametrize("programs", [(KERNEL,), (KERNEL, (320, 9)), ()])
def test_program_that_has_ended_lets_it_be_tried_again(refusals, programs):
    assert codes(refusals, *programs) == []


def test_after_an_hour_it_is_tried_again(refusals):
    assert codes(refusals, KERNEL, SHELL, now=HOUR - 1) == ["would_not_return"]
    assert codes(refusals, KERNEL, SHELL, now=HOUR + 1) == []


@pytest.mark.parametrize(
    ("free", "refused"), [(109, True), (111, False), (None, False)]
)
def test_store_that_was_full_is_tried_again_once_there_is_room(free, refused):
    refusals = Refusals()
    refusals.remember("ann1", snapshot(KERNEL), FAILURE, now=0.0, needs=110.0)
    assert bool(list(refusals.findings("ann1", snapshot(KERNEL), 9.0, free))) is refused
    assert not list(refusals.findings("ann1", snapshot(SHELL), 9.0, free))


def test_refusal_is_of_that_session_only_and_few_are_kept(refusals):
    assert not list(refusals.findings("bob1", snapshot(KERNEL, SHELL), 60.0, None))
    for number in range(300):
        refusals.remember(f"eve{number}", snapshot(KERNEL), FAILURE, now=1.0)
    assert codes(refusals, KERNEL, SHELL) == []
    assert list(refusals.findings("eve299", snapshot(KERNEL), 60.0, None))


@pytest.mark.parametrize("called_off", [False, True])
async def test_no_is_remembered_only_of_a_tree_that_stood(
    monkeypatch, tmp_path, called_off
):
    """Its capture was called off, and it has changed its files since."""

    def refuse(*_, cancel, **more) -> float:
        until = time.monotonic() + 10.0
        while called_off and not cancel.is_set and time.monotonic() < until:
            time.sleep(0.01)
        raise RolledBack(Reason.WOULD_NOT_RETURN, why=WHY)

    monkeypatch.setattr(rehearsal, "rehearse", refuse)
    tools = SimpleNamespace(
        clock=SystemClock(),
        limits=TimeLimits(),
        work=tmp_path,
        criu=SimpleNamespace(criu=lambda: None),
    )
    session = SimpleNamespace(init_pid=10, init_start=5)
    operation, told = Operation("capture", SessionKey("ann"), "c1"), []
    with rehearsal.Rehearsal(tools, session, operation, told.append) as trial:
        trial.begin(None)
        if not called_off:
            with pytest.raises(RolledBack):
                await asyncio.to_thread(trial.wait)
    await trial._task
    assert [why.reason for why in told] == [Reason.WOULD_NOT_RETURN] * (not called_off)


def test_agent_stops_a_session_for_it_once_and_again_when_somebody_asks(
    agent, places, folder
):
    path = folder / "another's"
    path.write_text("secret")
    os.chown(path, 54321, 54321)
    path.chmod(0o600)
    place = places("start", sys.executable, "-I", "-S", "-c", HOLDER, str(path), env={})
    wait_for(lambda: place.output.stat().st_size)
    url = f"/v1/sessions/{place.incarnation}"

    def capture(name: str, **more: float) -> tuple[dict, set[str]]:
        body = {"checkpoint": name, "generation": 1, **more}
        events = agent.events(f"{url}/capture", body)
        return events[-1], {step["step"] for step in steps_of(events)}

    end, steps = capture("by-policy", seen=time.time())
    assert "dump" in steps
    assert "another's" in end["failure"]["message"]

    end, steps = capture("by-policy-again", seen=time.time())
    assert end["failure"]["code"] == "would_not_return"
    assert steps == {"preflight"}  # nothing was stopped

    end, steps = capture("asked-for")
    assert end["failure"]["code"] == "would_not_return"
    assert "dump" in steps

    os.chown(path, 0, 0)
    end, _ = capture("asked-for-again")
    assert end.get("checkpoint"), end
