"""Parts that fail, fall silent or come back late: RUNNING or SUSPENDED in the end."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    KernelSample,
    Placement,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide import sampler
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from jupyterhub_gpu_reclaim.controlplane.settle import Action, ActionKind, AnswerKind
from tests.controlplane.test_reconciler import info, tree
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


async def test_release_hub_never_answers_is_thawed_and_runs(world):
    controller, _ = await world.started(release_limit=3.0)
    world.node.hold_at = "dump"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.node.begun)
    world.installation.never_answers = True
    world.node.hold_at = ""
    failure = await world.until(lambda: world.view(controller).failure)
    assert failure.code == "hub_unreachable"
    assert world.phase(controller) == "running"
    (place,) = world.node.living()
    assert place.tree.runs
    await world.until(lambda: not world.node.saved)


async def test_release_hub_stop_that_comes_after_the_thaw_saves_first(world):
    controller, _ = await world.started("tensors", release_limit=3.0)
    world.installation.refuses_stop = True
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.node.called("thaw"))
    await world.reaches(controller, "running")
    world.installation.refuses_stop = False
    await world.hub.process.stop(KEY)  # the order that the Hub had put off
    await world.reaches(controller, "suspended")
    assert world.hub.plans[-1] == "stop release"
    assert [*map(world.node.contents, world.node.saved)] == ["tensors"]


async def test_audit_lines_that_are_too_old_are_deleted(world):
    first, _ = await world.started()
    await first.users.keep(KEY, 60, "ada")
    await world.kill(first)
    world.change(audit=2.0)
    controller = await world.controller()
    (newest, *older) = controller.users.audit(KEY)
    assert older
    await asyncio.sleep(3)
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
    first, _ = await world.started()
    await world.kill(first)
    world.change(sample_interval=60.0, warn_for=12.0)
    controller = await world.controller(decide=_idle_unless_busy)
    await world.reaches(controller, "warned")
    busy = KernelSample(
        id="k", name="k", execution_state="busy", last_activity=0.0, connections=1
    )
    world.node.says = {"kernels": [busy]}
    await world.reaches(controller, "running")
    assert controller.users.session(KEY).verdict.code == "kernel_busy"
    assert not world.node.called("capture")


async def test_suspend_without_a_fresh_look_is_not_begun(world):
    first, _ = await world.started()
    await world.kill(first)
    world.change(sample_interval=60.0, warn_for=12.0)
    controller = await world.controller(decide=_idle_unless_busy)
    await world.reaches(controller, "warned")
    world.node.says = None
    await asyncio.sleep(16)
    assert world.phase(controller) == "warned"
    assert not world.node.called("capture")


async def test_suspend_is_not_begun_on_an_answer_that_took_too_long(world):
    """Its user may have come back since; with a quick answer it is."""
    world.change(sample_interval=60.0)
    controller, _ = await world.started()
    world.node.switches.slow["samples"] = 2 * sampler.LATE_SECONDS
    await asyncio.sleep(sampler.FRESH_SECONDS + 0.1)
    world.verdict = IDLE
    await asyncio.sleep(15)
    assert world.phase(controller) == "running"
    assert not world.node.called("capture")
    world.node.switches.slow.clear()
    await world.reaches(controller, "suspended")


async def test_suspend_that_came_too_late_is_no_failure_and_is_done_anew(world):
    controller, _ = await world.started(sample_interval=1.0)
    back = world.node.away("capture", error=Refused(Reason.ORDER_LATE, late="6 s"))
    world.verdict = IDLE
    await world.until(lambda: len(world.node.called("capture")) > 1)
    assert controller._sessions.row(KEY).failures == 0
    back()
    await world.reaches(controller, "suspended")


async def test_suspend_that_somebody_asks_for_is_never_late(world):
    controller, _ = await world.started()
    world.node.switches.slow["capture"] = 20.0
    await world.suspend(controller)
    assert len(world.node.called("capture")) == 1


async def test_suspend_is_not_begun_while_the_hub_does_not_answer(world):
    controller, _ = await world.started()
    world.installation.never_answers = True
    await asyncio.sleep(2)  # what the Hub has said already counts for this look
    world.verdict = IDLE
    await asyncio.sleep(40)
    assert world.phase(controller) == "running"
    assert not world.node.called("capture")
    world.installation.never_answers = False
    await world.reaches(controller, "suspended")


async def test_restore_that_fails_keeps_the_checkpoint_and_says_why(world):
    controller = await world.suspended()
    world.node.failures["criu"] = Failure(code="file_missing", message="x.py is gone.")
    assert await world.hub.start(KEY) == "file_missing"
    await world.reaches(controller, "suspended")
    view = controller.users.session(KEY)
    assert (view.failure.code, view.failure.message) == (
        "file_missing",
        "x.py is gone.",
    )
    world.node.failures.clear()
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert controller.users.session(KEY).failure is None


async def test_restore_checkpoint_missing_is_refused_until_the_user_chooses(world):
    controller = await world.suspended()
    world.node.saved.clear()
    world.give_up()
    assert await world.hub.start(KEY) == "checkpoint_missing"
    assert controller.users.session(KEY).failure.code == "checkpoint_missing"
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")


async def restored_behind_the_hub(world, *, whole=True):
    """Suspended, and brought back so far; the Hub's start has not ended yet.

    From then on no order to end it is answered, until what is returned is called.
    """
    controller = await world.suspended("tensors")
    mine = await begin_return(world, controller, whole=whole)
    silent = Unreachable(Reason.NODE_SILENT, node="node1")
    return controller, world.node.away("kill", "cancel", error=silent), mine


async def begin_return(world, controller, *, whole):
    """Bring a suspended session back so far, as i2; where it is."""
    world.hub.states[KEY] = "spawning"
    saved = controller.users.session(KEY).checkpoint
    mine = Placement(key=KEY, incarnation="i2", checkpoint=saved)
    assert (await controller.plan_start(mine)).action == "restore"
    place = world.node.hold(KEY, "i2")
    if not whole:
        world.node.hold_at = "criu"
    await controller.placed(mine)
    if not whole:
        await world.until(lambda: "criu" in world.node.begun)
        return mine
    await world.until(lambda: place.tree and place.tree.whole and place.tree.runs)
    await asyncio.sleep(1)  # its agent says so
    return mine


async def asked_to_end(world):
    """In the middle of its return; the Hub has stopped it, and its node is silent."""
    controller, answers, mine = await restored_behind_the_hub(world, whole=False)
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: world.node.called("kill"))
    return controller, answers, mine


async def test_visit_adopts_nothing_whose_end_was_ordered_and_not_answered(world):
    """That order may still be carried out, and the user would be at work by then."""
    controller, answers, mine = await restored_behind_the_hub(world)
    await controller.cancelled(mine)
    assert world.phase(controller) == "suspended"
    await _comes_back_from_its_checkpoint(world, controller, answers, mine)


async def test_visit_adopts_no_return_that_the_service_itself_has_given_up(world):
    """The Hub was killed in the start; its node does not answer the order to end it."""
    controller, answers, mine = await asked_to_end(world)
    world.hub.states[KEY] = "spawning"
    await asyncio.sleep(1)  # a look that still saw it stopped has ended
    world.node.hold_at = ""
    await world.until(lambda: world.node.living(KEY))
    await _comes_back_from_its_checkpoint(world, controller, answers, mine)


async def test_return_that_was_given_up_without_an_answer_is_ended_when_it_is_back(
    world,
):
    """Else the next visit would end it, maybe after its checkpoint's time."""
    controller, answers, _ = await asked_to_end(world)
    world.node.hold_at = ""
    await world.until(lambda: world.node.living(KEY))
    answers()
    await world.reaches(controller, "suspended")
    await world.until(lambda: not world.node.living(KEY))
    assert await world.hub.start(KEY) == "restore"


async def test_return_that_was_called_off_without_an_answer_is_ended_when_it_is_back(
    world,
):
    """It is nobody's session that runs: its end was ordered, and may still come."""
    controller, answers, mine = await restored_behind_the_hub(world)
    await controller.cancelled(mine)
    world.hub.states[KEY] = "stopped"
    await asyncio.sleep(3 * world.settings.orphan_grace)
    assert world.phase(controller) == "suspended"
    answers()
    await world.until(lambda: not world.node.living(KEY))
    assert await world.hub.start(KEY) == "restore"


async def _comes_back_from_its_checkpoint(world, controller, answers, mine):
    visit = msgspec.structs.replace(mine, incarnation="i3")
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.failure.code) == ("refuse", "node_silent")
    assert world.node.living(KEY)
    answers()
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.checkpoint) == ("restore", mine.checkpoint)
    assert world.node.living(KEY) == []


async def test_visit_does_not_adopt_what_runs_in_a_pod_that_is_being_deleted(world):
    """Its kubelet may be out of sight, and ends it as soon as it is back."""
    controller, answers, mine = await restored_behind_the_hub(world)
    visit = msgspec.structs.replace(mine, incarnation="i3")
    world.node.switches.ending = True
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.failure.code) == ("refuse", "operation_in_flight")
    answers()
    world.node.end("i2")
    plan = await controller.plan_start(visit)
    assert (plan.action, plan.checkpoint) == ("restore", mine.checkpoint)


async def test_session_lost_right_after_its_return_is_suspended_again(world):
    controller = await world.suspended()
    await world.hub.start(KEY)
    await world.reaches(controller, "running")
    world.lost()
    await world.reaches(controller, "suspended")
    assert controller.users.session(KEY).failure.code == "ended_after_return"
    assert await world.hub.start(KEY) == "restore"


async def test_tree_that_nobody_knows_and_has_no_checkpoint_is_left_alone(world):
    place = world.node.run(SessionKey("eve"), "precious")
    await world.controller()
    await asyncio.sleep(8)
    assert world.node.places == {place.incarnation: place}
    assert not world.node.called("kill")


async def test_tree_of_a_stopped_session_is_ended_after_the_grace(world):
    controller, incarnation = await world.started()
    world.give_up()
    place = Placement(key=KEY, incarnation=incarnation)
    await controller.stopped(place)
    world.hub.states[KEY] = "stopped"
    await asyncio.sleep(1)
    assert world.node.places
    await world.until(lambda: not world.node.places)


async def test_every_action_has_somebody_who_does_it_and_an_answer_is_none(world):
    """Whatever is not named would else be a word about what is saved."""
    worker = (await world.controller()).plan_start.__self__.worker
    of_a_look = {ActionKind.READY, ActionKind.NOTHING}  # what was wished comes then
    seen, row = Observed((), (), None), SessionRow(key=KEY)
    for kind in (*ActionKind, *AnswerKind):
        action = Action(kind, tree("running"), info())
        if kind in {*AnswerKind, *of_a_look, ActionKind.UNANSWERED}:
            with pytest.raises(AssertionError):
                await worker.act(row, action, seen)
        elif kind not in worker._handlers:
            with suppress(ReclaimError):
                await worker.act(row, action, seen)
