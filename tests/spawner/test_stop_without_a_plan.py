"""A stop or a look without a plan of the service, or with one that comes too late.

A service that takes over: was the stop the last one's own, after a save? The spawner
ends the programs, which nobody has frozen, and asks again before it forgets the
session: it may have been saved. A stop that our service has asked for itself ends
nothing without its plan.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    HubState,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.support.simulated_hub import run, started

if TYPE_CHECKING:
    from pathlib import Path

    from simulation.doubles.hub import HubProcess

ANN = SessionKey("ann")


class Service:
    """Its starts are cold, and it hears what is reported."""

    async def plan_start(self, placement: object) -> StartPlan:
        return StartPlan(action="cold")

    async def placed(self, placement: object) -> None: ...

    stopped = cancelled = placed


class TakesOver(Service):
    """A service that begins to answer as the session has ended, if at all."""

    def __init__(self, plan: StopPlan | None) -> None:
        self.plan = plan
        self.hub: HubProcess | None = None

    async def plan_stop(self, placement: object) -> StopPlan:
        assert self.hub is not None
        if self.plan is None or self.hub.machines.of_session(ANN):
            raise Unreachable(Reason.SERVICE_STARTING)
        return self.plan


@pytest.mark.parametrize(
    ("plan", "phase"),
    [
        (StopPlan(action="release", checkpoint="c1"), "suspended"),
        (StopPlan(action="stop"), ""),
        (None, "unknown"),
    ],
    ids=["saved", "not saved", "no answer"],
)
def test_session_stopped_without_a_plan_is_forgotten_only_if_it_is_not_saved(
    plan: StopPlan | None, phase: str, tmp_path: Path
) -> None:
    known: dict[str, Any] = {}

    async def stop() -> None:
        service = TakesOver(plan)
        service.hub = hub = started(tmp_path, service, users=["ann"])
        await hub.start(ANN)
        await hub.stop(ANN)
        while await hub.server(ANN) is not HubState.STOPPED:
            await asyncio.sleep(1.0)
        assert not hub.machines.of_session(ANN)
        known.update(hub.database.servers[ANN].state["gpu_reclaim"])

    run(stop())
    assert known["phase"] == phase
    assert known["checkpoint"] == (plan.checkpoint if plan else "")


class LosesAnAnswer(Service):
    """A service whose first answer to a stop is lost; it has saved the session."""

    asked = 0
    released = False

    async def plan_stop(self, placement: object) -> StopPlan:
        self.asked += 1
        if self.asked == 1:
            raise Unreachable(Reason.SERVICE_UNREACHABLE, detail="no answer in 180 s")
        return StopPlan(action="release", checkpoint="c1")

    async def release(self, placement: object) -> None:
        self.released = True


def test_plan_whose_answer_is_lost_is_asked_for_again(tmp_path: Path) -> None:
    """What is not saved would end else: the stop may be the service's own."""
    service = LosesAnAnswer()

    async def stop() -> None:
        hub = started(tmp_path, service, users=["ann"])
        await hub.start(ANN)
        await hub.stop(ANN)
        while await hub.server(ANN) is not HubState.STOPPED:
            await asyncio.sleep(1.0)

    run(stop())
    assert service.released
    assert service.asked == 2


class AnswersLate(Service):
    """A service whose first answer about an end comes after the second one."""

    asked = 0

    async def plan_stop(self, placement: object) -> StopPlan:
        self.asked += 1
        if self.asked == 1:
            await asyncio.sleep(100.0)
        return StopPlan(action="stop")


def test_look_that_is_answered_late_says_nothing_of_the_next_session(
    tmp_path: Path,
) -> None:
    """Another look has settled that end, and the Hub has another spawner since."""
    service = AnswersLate()

    async def visit() -> None:
        hub = started(tmp_path, service, users=["ann"])
        await hub.start(ANN)
        (place,) = hub.machines.of_session(ANN)
        hub.end(place, "the OOM killer")
        await asyncio.sleep(40.0)
        assert service.asked == 1
        await hub.start(ANN)
        (place,) = hub.machines.of_session(ANN)
        await asyncio.sleep(100.0)
        known = hub.database.servers[ANN].state["gpu_reclaim"]
        assert (known["phase"], known["incarnation"]) == ("running", place.incarnation)

    run(visit())
