"""Parts that fail, fall silent or come back late: RUNNING or SUSPENDED in the end."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import suppress

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    KernelSample,
    Placement,
    SessionKey,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide import sampler
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    ANSWERS,
    Action,
    ActionKind,
)
from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from tests.controlplane.conftest import KEY, running, suspended
from tests.controlplane.test_reconciler import info, tree

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


async def test_release_hub_never_answers_is_thawed_and_runs(world):
    world.hub_patience = 0.5
    controller, incarnation = await running(world, release_limit=0.3)
    world.node.hold_at = "commit"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.node.places[incarnation].events[2:])
    world.hub.never_answers = True
    world.node.hold_at = ""
    await world.until(
        lambda: (
            (f := controller.users.session(KEY).failure) and f.code == "hub_unreachable"
        )
    )
    assert world.phase(controller) == "running"
    assert world.node.places[incarnation].state is TreeState.RUNNING
    await world.until(lambda: not world.node.saved)


async def test_release_hub_stop_that_comes_after_the_thaw_saves_first(world):
    controller, _ = await running(world, release_limit=0.3)
    world.hub.refuses_stop = True
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: "thaw" in world.node.calls)
    await world.until(lambda: world.phase(controller) == "running")
    world.hub.refuses_stop = False
    await world.hub.stop(KEY)  # the order that the Hub had put off
    assert world.hub.plans == ["stop release"]
    await world.until(lambda: world.phase(controller) == "suspended")
    assert [c for _, c in world.node.saved.values()] == ["tensors"]


async def test_release_of_a_tree_that_was_woken_leaves_it_running(world):
    controller, incarnation = await running(world)
    world.node.wakes = 1
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: "stop failed went_on" in world.hub.plans)
    await world.until(lambda: world.phase(controller) == "running")
    assert controller.users.session(KEY).failure.code == "went_on"
    assert await world.hub.start(KEY) == "adopt"
    assert world.node.places[incarnation].contents == "tensors"
    assert world.node.lost == []
    assert world.node.saved == {}


async def test_audit_lines_that_are_too_old_are_deleted(world):
    first, _ = await running(world)
    await first.users.keep(KEY, 60, "ada")
    await world.kill(first)
    world.change(audit=0.2)
    controller = await world.controller()
    (newest, *older) = controller.users.audit(KEY)
    assert older
    await asyncio.sleep(0.3)
    await world.kill(controller)
    controller = await world.controller()
    await world.until(lambda: controller.users.audit(KEY) == [newest])


def _idle_unless_busy(view, now):
    del now
    usage = view.usage
    if usage is None or usage.busy_kernel:
        return [Decision(reclaim=False, code="kernel_busy", message="Busy.")]
    return [IDLE]


async def test_suspend_of_a_session_in_use_since_the_last_sample_is_not_begun(world):
    """The sample that said idle is old: there is a look right before the suspend."""
    first, incarnation = await running(world)
    await world.kill(first)
    world.settings = dataclasses.replace(
        world.settings, sample_interval=60.0, warn_for=1.2
    )
    controller = await world.controller(decide=_idle_unless_busy)
    await world.until(lambda: world.phase(controller) == "warned")
    world.node.kernels = [
        KernelSample(
            id="k", name="k", execution_state="busy", last_activity=0.0, connections=1
        )
    ]
    await world.until(lambda: world.phase(controller) == "running")
    assert controller.users.session(KEY).verdict.code == "kernel_busy"
    assert world.node.places[incarnation].state is TreeState.RUNNING
    assert world.node.places[incarnation].events == []


async def test_suspend_without_a_fresh_look_is_not_begun(world):
    first, incarnation = await running(world)
    await world.kill(first)
    world.settings = dataclasses.replace(
        world.settings, sample_interval=60.0, warn_for=1.2
    )
    controller = await world.controller(decide=_idle_unless_busy)
    await world.until(lambda: world.phase(controller) == "warned")
    world.node.samples_fail = True
    await asyncio.sleep(1.6)
    assert world.phase(controller) == "warned"
    assert world.node.places[incarnation].events == []


async def test_suspend_is_not_begun_on_an_answer_that_took_too_long(world, monkeypatch):
    """Its user may have come back since; with a quick answer it is."""
    monkeypatch.setattr(sampler, "LATE_SECONDS", 0.2)
    world.change(sample_interval=60.0)
    controller, incarnation = await running(world)
    world.node.sample_seconds = 0.4
    await asyncio.sleep(sampler.FRESH_SECONDS + 0.1)
    world.verdict = IDLE
    await asyncio.sleep(1.5)
    assert world.phase(controller) == "running"
    assert world.node.places[incarnation].events == []
    world.node.sample_seconds = 0.0
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_suspend_that_came_too_late_is_no_failure_and_is_done_anew(world):
    world.change(sample_interval=0.1)
    controller, incarnation = await running(world)
    world.node.orders_are_late = True
    world.verdict = IDLE
    await world.until(lambda: len(world.node.seen) > 1)
    view = controller.users.session(KEY)
    assert view.facts.failures == 0
    assert world.node.places[incarnation].events == []
    assert all(time.time() - seen < 5 for seen in world.node.seen)
    world.node.orders_are_late = False
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_suspend_that_somebody_asks_for_is_never_late(world):
    controller, _ = await running(world)
    world.node.orders_are_late = True
    await controller.users.suspend(KEY, "root")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert world.node.seen == [None]


async def test_suspend_is_not_begun_while_the_hub_does_not_answer(world):
    world.hub_patience = 0.5
    controller, incarnation = await running(world)
    world.hub.never_answers = True
    await asyncio.sleep(0.2)  # what the Hub has said already counts for this look
    world.verdict = IDLE
    await asyncio.sleep(0.8)
    assert world.phase(controller) == "running"
    assert world.node.places[incarnation].state is TreeState.RUNNING
    world.hub.never_answers = False
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_restore_that_fails_keeps_the_checkpoint_and_says_why(world):
    controller = await suspended(world)
    world.node.restore_failure = Failure(code="file_missing", message="x.py is gone.")
    assert await world.hub.start(KEY) == "file_missing"
    await world.until(lambda: world.phase(controller) == "suspended")
    view = controller.users.session(KEY)
    assert (view.failure.code, view.failure.message) == (
        "file_missing",
        "x.py is gone.",
    )
    world.node.restore_failure = None
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    assert controller.users.session(KEY).failure is None


async def test_restore_checkpoint_missing_is_refused_until_the_user_chooses(world):
    controller = await suspended(world)
    world.node.saved.clear()
    assert await world.hub.start(KEY) == "checkpoint_missing"
    assert controller.users.session(KEY).failure.code == "checkpoint_missing"
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(controller) == "running")


class KillsLate:
    """Agents of which one does not answer orders to end, or whose pod is deleted."""

    def __init__(self, agent) -> None:
        self._agent = agent
        self.answers = False
        self.deleted = False
        self.asked = False

    def __getattr__(self, name):
        return getattr(self._agent, name)

    async def order(self, subject, order):
        if isinstance(order, orders.Kill):
            self.asked = True
            if not self.answers:
                raise Unreachable(Reason.NODE_SILENT, node="node1")
        return await self._agent.order(subject, order)

    async def trees(self, key=None):
        trees = await self._agent.trees(key)
        return [msgspec.structs.replace(each, ending=self.deleted) for each in trees]


async def restored_behind_the_hub(world, state="running"):
    """Suspended, and brought back so far; the Hub's start has not ended yet."""
    agent = KillsLate(world.clients()[0])
    await world.running("tensors")
    controller = await world.controller(agent=agent)
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller, agent, await begin_return(world, controller, state)


async def begin_return(world, controller, state):
    """Bring a suspended session back so far, as i2; where it is."""
    world.hub.states[KEY] = "spawning"
    saved = controller.users.session(KEY).checkpoint
    mine = Placement(key=KEY, incarnation="i2", checkpoint=saved)
    assert (await controller.plan_start(mine)).action == "restore"
    world.node.hold(KEY, "i2")
    await controller.placed(mine)
    await world.until(lambda: world.node.places["i2"].state.value == state)
    return mine


async def asked_to_end(world):
    """In the middle of its return; the Hub has stopped it, and its node is silent."""
    world.silence = 1.0
    world.node.hold_at = "criu"
    controller, agent, mine = await restored_behind_the_hub(world, "restoring")
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: agent.asked)
    return controller, agent, mine


async def test_visit_adopts_nothing_whose_end_was_ordered_and_not_answered(world):
    """That order may still be carried out, and the user would be at work by then."""
    controller, agent, mine = await restored_behind_the_hub(world)
    await controller.cancelled(mine)
    assert world.phase(controller) == "suspended"
    await _comes_back_from_its_checkpoint(world, controller, agent, mine)


async def test_visit_adopts_no_return_that_the_service_itself_has_given_up(world):
    """The Hub was killed in the start; its node does not answer the order to end it."""
    controller, agent, mine = await asked_to_end(world)
    world.hub.states[KEY] = "spawning"
    await asyncio.sleep(0.5)  # a look that still saw it stopped has ended
    world.node.hold_at = ""
    await world.until(lambda: world.node.living(KEY))
    assert world.phase(controller) == "resuming"
    await _comes_back_from_its_checkpoint(world, controller, agent, mine)


async def test_return_that_was_given_up_without_an_answer_is_ended_when_it_is_back(
    world,
):
    """Else the next visit would end it, maybe after its checkpoint's time."""
    controller, agent, _ = await asked_to_end(world)
    world.node.hold_at = ""
    await world.until(lambda: world.node.living(KEY))
    agent.answers = True
    await world.until(lambda: world.phase(controller) == "suspended")
    assert world.node.living(KEY) == []
    assert await world.hub.start(KEY) == "restore"


async def test_return_that_was_called_off_without_an_answer_is_ended_when_it_is_back(
    world,
):
    """It is nobody's session that runs: its end was ordered, and may still come."""
    controller, agent, mine = await restored_behind_the_hub(world)
    await controller.cancelled(mine)
    world.hub.states[KEY] = "stopped"
    await asyncio.sleep(3 * world.settings.orphan_grace)
    assert world.phase(controller) == "suspended"
    agent.answers = True
    await world.until(lambda: not world.node.living(KEY))
    assert await world.hub.start(KEY) == "restore"


async def _comes_back_from_its_checkpoint(world, controller, agent, mine):
    visit = msgspec.structs.replace(mine, incarnation="i3")
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.failure.code) == ("refuse", "node_silent")
    assert world.node.living(KEY)
    agent.answers = True
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.checkpoint) == ("restore", mine.checkpoint)
    assert world.node.living(KEY) == []


async def test_visit_does_not_adopt_what_runs_in_a_pod_that_is_being_deleted(world):
    """Its kubelet may be out of sight, and ends it as soon as it is back."""
    controller, agent, mine = await restored_behind_the_hub(world)
    visit = msgspec.structs.replace(mine, incarnation="i3")
    agent.deleted = True
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.failure.code) == ("refuse", "operation_in_flight")
    agent.answers = True
    world.node.end("i2")
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.checkpoint) == ("restore", mine.checkpoint)


async def test_session_lost_right_after_its_return_is_suspended_again(world):
    controller = await suspended(world)
    await world.hub.start(KEY)
    await world.until(lambda: world.phase(controller) == "running")
    world.node.places.clear()
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: world.phase(controller) == "suspended")
    assert controller.users.session(KEY).failure.code == "ended_after_return"
    assert await world.hub.start(KEY) == "restore"


async def test_tree_that_nobody_knows_and_has_no_checkpoint_is_left_alone(world):
    place = world.node.run(SessionKey("eve"), "precious")
    await world.controller()
    await asyncio.sleep(0.8)
    assert world.node.places == {place.incarnation: place}
    assert not [call for call in world.node.calls if call.startswith("kill")]


async def test_tree_of_a_stopped_session_is_ended_after_the_grace(world):
    controller, incarnation = await running(world)
    place = Placement(key=KEY, incarnation=incarnation)
    await controller.stopped(place)
    world.hub.states[KEY] = "stopped"
    await asyncio.sleep(0.1)
    assert world.node.places
    await world.until(lambda: not world.node.places)


async def test_every_action_has_somebody_who_does_it_and_an_answer_is_none(world):
    """Whatever is not named would else be a word about what is saved."""
    worker = (await world.controller())._starts._questions._worker
    seen, row = Observed((), (), None), SessionRow(key=KEY)
    for kind in ActionKind:
        action = Action(kind, tree("running"), info())
        if kind in {*ANSWERS, ActionKind.UNANSWERED}:
            with pytest.raises(AssertionError):
                await worker.act(row, action, seen)
        elif kind not in worker._handlers:
            with suppress(ReclaimError):
                await worker.act(row, action, seen)
