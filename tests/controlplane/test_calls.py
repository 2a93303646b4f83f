"""What people and the spawner ask, phase by phase."""

import asyncio
from functools import partial

import pytest

from jupyterhub_gpu_reclaim.common import codec, endings
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    Placement,
    SessionKey,
    Usage,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.session import Keeping
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.service.app import culled_early
from tests.support.counted import counted
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")
BUSY = Decision(reclaim=False, code="kernel_busy", message="Busy.")


async def test_session_that_nobody_knows_is_not_found(world):
    controller = await world.controller()
    nobody = SessionKey("nobody")
    for call in (
        controller.users.suspend(nobody, "a"),
        controller.users.resume(nobody, "a"),
        controller.users.keep(nobody, 1, "a"),
        controller.users.start_fresh(nobody, "a"),
        controller.users.delete(nobody, "a"),
        controller.users.opt_out(nobody, True, "a"),
    ):
        with pytest.raises(NotFound):
            await call
    for ask in (controller.users.session, controller.users.why):
        with pytest.raises(NotFound):
            ask(nobody)


async def test_calls_in_the_wrong_phase_are_refused_with_a_sentence(world):
    controller = await world.suspended()
    await world.hub.start(KEY)
    await world.reaches(controller, "running")
    for call in (
        controller.users.start_fresh(KEY, "ada"),
        controller.users.delete(KEY, "ada"),
    ):
        with pytest.raises((Refused, NotFound)):
            await call
    assert world.node.saved


async def test_suspend_of_what_is_suspended_is_done_already(world):
    controller = await world.suspended()
    before = controller.users.session(KEY)
    told = len(controller.users.audit(KEY))
    await controller.users.suspend(KEY, "ada")
    assert controller.users.session(KEY) == before
    assert len(controller.users.audit(KEY)) == told
    await controller.users.resume(KEY, "ada")
    with pytest.raises(Refused, match="cannot be suspended"):
        await controller.users.suspend(KEY, "ada")


async def test_warning_is_given_and_taken_back_by_activity_and_by_keep(world):
    controller, _ = await world.started(warn_for=60.0)
    world.verdict = IDLE
    await world.reaches(controller, "warned")
    assert controller.users.session(KEY).suspends_at is not None
    world.verdict = BUSY
    await world.reaches(controller, "running")
    assert controller.users.session(KEY).suspends_at is None
    world.verdict = IDLE
    await world.reaches(controller, "warned")
    world.verdict = BUSY
    await controller.users.keep(KEY, 3600, "ada")
    view = controller.users.session(KEY)
    assert (view.phase, controller._sessions.row(KEY).kept_by) == ("running", "ada")
    assert view.kept_until is not None
    await controller.users.keep(KEY, 0, "ada")
    assert controller.users.session(KEY).kept_until is None


async def test_start_fresh_puts_aside_and_discard_deletes(world):
    controller = await world.suspended()
    await controller.users.start_fresh(KEY, "ada")
    view = controller.users.session(KEY)
    (saved,) = view.kept
    assert view.phase == "stopped"
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    assert saved.id in world.node.saved
    with pytest.raises(NotFound):
        await controller.users.delete(KEY, "ada", "ckpt-other")
    assert (await controller.users.delete(KEY, "ada", saved.id)).kept == []
    assert world.node.saved == {}


@pytest.mark.parametrize("code", ["checkpoint_damaged", "key_missing"])
async def test_set_aside_stays_while_the_sessions_own_state_cannot_be_read(world, code):
    """It may be all that is left."""
    controller = await world.suspended()
    (older,) = world.node.saved
    await world.suspended_afresh(controller)
    world.node.failures["criu"] = Failure(code=code, message="It cannot be read.")
    await world.hub.start(KEY)
    await world.until(lambda: controller.users.session(KEY).failure is not None)
    await world.reaches(controller, "suspended")
    sessions = controller._sessions
    over = sessions.journal.checkpoint(older).set_aside(0.0)
    sessions.keep(KEY, [over])
    await asyncio.sleep(5)  # many ticks
    assert older in world.node.saved

    world.node.failures.clear()
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: older not in world.node.saved)


async def test_superseded_that_a_session_has_just_come_back_from_keeps_its_own_time(
    world,
):
    """An older one that was asked for, while what was left for it expires."""
    controller = await world.suspended()
    (older,) = world.node.saved
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    await world.suspend(controller)
    newer = controller.users.session(KEY).checkpoint
    await controller.users.bring_back(KEY, older, "ada")
    await world.reaches(controller, "running")
    sessions = controller._sessions
    await world.until(lambda: sessions.runtime(KEY).compared)
    assert sessions.row(KEY).checkpoint == older
    over = sessions.journal.checkpoint(newer).kept(Keeping.SUPERSEDED, 0.0)
    sessions.journal.keep([over])
    await world.until(lambda: newer not in world.node.saved)
    assert older in world.node.saved


async def test_plan_stop_by_a_person_is_a_real_stop(world):
    controller, incarnation = await world.started()
    await world.hub.stop(KEY)
    assert world.hub.plans[-1] == "stop stop"
    assert controller.users.sessions() == []
    placement = Placement(key=KEY, incarnation=incarnation)
    with pytest.raises(Refused):
        await controller.release(placement)


async def test_stop_by_a_culler_is_told_by_its_name_in_history_and_strip(world):
    controller, incarnation = await world.started()
    assert controller.lately_culled() == []
    told = Placement(
        key=KEY, incarnation=incarnation, by="service cull-idle", culled=True
    )
    await controller.stopped(told)
    [sentence] = controller.lately_culled()
    assert sentence.startswith("service cull-idle ends sessions for being idle")
    [line] = [s for s in controller.users.audit(KEY.user) if s.code == "culled"]
    assert (line.who, line.what) == ("service cull-idle", "stopped")
    assert "nothing of it was saved" in line.sentence


async def test_server_that_ends_its_kernels_before_a_suspend_is_named(world):
    controller, _ = await world.started()
    runtime = controller._sessions.runtime(KEY)
    usage = Usage(at=0, watched=0, sample_age=0, last_active=None, culls_after=600)
    runtime.usage = usage
    assert culled_early(controller.culls_after(), 599) == []
    [told] = culled_early(controller.culls_after(), 900)
    assert told.startswith(f"The server of {KEY} ends idle kernels, or itself, after 6")


async def test_stop_of_a_server_of_the_former_spawner_ends_it_while_others_live(world):
    """No agent has a tree of it; what another user runs says nothing of it."""
    controller, _ = await world.started()
    for key in (SessionKey("old"), SessionKey(KEY.user, "other")):
        plan = await controller.plan_stop(Placement(key=key, incarnation="none"))
        assert plan.action == "stop"


async def test_stopped_session_has_no_reasons_and_is_not_kept(world):
    controller = await world.suspended()
    await world.hub.start(KEY)
    await world.until(lambda: bool(controller.users.why(KEY)))
    await world.hub.stop(KEY)
    assert controller.users.why(KEY) == []
    with pytest.raises(Refused) as refused:
        await controller.users.keep(KEY, 60, "ada")
    assert refused.value.reason is Reason.WRONG_PHASE
    await controller.users.keep(KEY, 0, "ada")


async def test_end_that_nobody_ordered_is_told_with_what_ended_it(world):
    """And not as a stop by its user."""
    controller, incarnation = await world.started()
    killed = codec.failure_of(endings.by_status(-9))
    placement = Placement(key=KEY, incarnation=incarnation, failure=killed)

    await controller.stopped(placement)

    assert controller.users.session(KEY).failure == killed
    line = controller.users.audit(KEY)[0]
    assert (line.who, line.what, line.code) == (SERVICE, "vanished", killed.code)
    assert audit.sentence(line) == killed.message
    counters = controller.counters
    assert counted(counters, "sessions_ended_total", code=killed.code) == 1


async def test_plan_start_of_a_new_user_is_cold_even_if_the_agent_is_down(world):
    controller = await world.controller()
    world.node.away("trees", "checkpoints", error=Unreachable(Reason.AGENT_UNREACHABLE))
    new = SessionKey("new")
    plan = await controller.plan_start(Placement(key=new, incarnation="i1"))
    assert plan.action == "cold"
    pointed = Placement(key=new, incarnation="i1", checkpoint="ckpt-x")
    plan = await controller.plan_start(pointed)
    assert (plan.action, plan.failure.code) == ("refuse", "agent_unreachable")


async def test_return_that_is_refused_says_why_in_the_cause_s_own_words(world):
    controller = await world.suspended()
    locked = StoreError(Reason.KEY_MISSING, why="/etc/m.key is not there")
    world.node.away("checkpoints", "identity", error=locked)
    await controller.users.resume(KEY, "root")
    await world.until(lambda: controller._sessions.row(KEY).failure is not None)
    await asyncio.sleep(5)
    assert controller._sessions.row(KEY).failure.code == "key_missing"
    assert world.hub.plans.count("start refuse") == 1


async def test_store_that_is_away_keeps_nobody_from_a_cold_start(world):
    controller = await world.controller()
    world.node.away("checkpoints")
    new = SessionKey("new")
    plan = await controller.plan_start(Placement(key=new, incarnation="i1"))
    assert plan.action == "cold"
    pointed = Placement(key=new, incarnation="i1", checkpoint="ckpt-x")
    plan = await controller.plan_start(pointed)
    assert (plan.action, plan.failure.code) == ("refuse", "store_failed")
    world.node.run(new, "work", "i0")
    plan = await controller.plan_start(Placement(key=new, incarnation="i1"))
    assert plan.action == "adopt"  # what runs is there, whatever the store has


async def test_store_that_is_away_keeps_nobody_from_a_real_stop(world):
    controller = await world.suspended()
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    world.node.away("checkpoints")
    incarnation = world.hub.incarnation()
    plan = await controller.plan_stop(Placement(key=KEY, incarnation=incarnation))
    assert plan.action == "stop"


async def test_changes_tell_every_phase_and_drop_slow_readers(world):
    controller, _ = await world.started()
    seen: list[str] = []

    async def read() -> None:
        async for view in controller.users.changes():
            seen.append(view.phase.value)  # noqa: PERF401 read while it grows

    reader = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: "suspended" in seen)
    order = list(dict.fromkeys(seen))
    assert order == ["running", "suspending", "releasing", "suspended"]
    reader.cancel()


async def test_metrics_count_what_has_happened(world):
    controller = await world.suspended()
    found = partial(counted, controller.totals)
    assert found("sessions", phase="suspended") == 1
    assert found("operations_total", operation="suspend", outcome="ok") == 1
    assert found("step_duration_seconds_count", operation="suspend", step="dump") == 1
    assert found("checkpoints_stored_bytes") > 0
    assert found("sample_age_seconds") > 0


async def test_why_says_every_reason_the_deciding_one_first(world):
    controller, _ = await world.started()
    world.verdict = BUSY
    assert controller.users.why(KEY) == [BUSY]


async def test_end_of_a_restore_that_no_service_heard_is_told_by_the_next_one(world):
    """The spawner waits for it, and the Hub for the spawner."""
    first = await world.suspended()
    world.node.hold_at = "criu"
    start = asyncio.ensure_future(world.hub.start(KEY))
    await world.until(lambda: "criu" in world.node.begun)
    await world.kill(first)
    world.node.hold_at = ""
    [place] = world.node.places.values()
    await world.until(lambda: place.tree and place.tree.runs)
    second = await world.controller()
    assert await asyncio.wait_for(start, 10) == "restore"
    await world.reaches(second, "running")


async def test_order_to_renew_a_login_holds_for_one_return_and_for_a_day(world):
    controller = await world.suspended()
    world.hub.states[KEY] = "spawning"  # else the return is given up
    placement = Placement(key=KEY, incarnation="i2")
    plan = await controller.plan_start(placement)
    assert (plan.action, plan.renew_login) == ("restore", False)
    await controller.cancelled(placement)
    await controller.users.renew_login(KEY, "root")
    lines = [(line.who, line.what) for line in controller.users.audit(KEY)]
    assert ("root", "renew login") in lines
    placement = Placement(key=KEY, incarnation="i3", checkpoint=plan.checkpoint)
    assert (await controller.plan_start(placement)).renew_login
    assert (await controller.plan_start(placement)).renew_login  # asked again
    await controller.placed(placement)
    again = await controller.plan_start(placement)
    assert not again.renew_login
    with pytest.raises(NotFound):
        await controller.users.renew_login(SessionKey("nobody"), "root")


async def test_session_of_a_renamed_user_is_refused_by_both_names(world):
    controller = await world.suspended()
    checkpoint = controller.users.session(KEY).checkpoint
    renamed = SessionKey("renamed", KEY.server)
    plan = await controller.plan_start(
        Placement(key=renamed, incarnation="i2", checkpoint=checkpoint)
    )
    assert plan.action == "refuse"
    assert plan.failure.code == "renamed"
    assert str(KEY) in plan.failure.message
    assert str(renamed) in plan.failure.message
    back = await controller.plan_start(
        Placement(key=KEY, incarnation="i3", checkpoint=checkpoint)
    )
    assert back.action == "restore"


async def test_person_who_was_renamed_stops_their_session(world):
    await world.running("work")
    controller = await world.controller()
    await world.reaches(controller, "running")
    row = controller._sessions.row(KEY)
    renamed = Placement(
        key=SessionKey("renamed", KEY.server), incarnation=row.incarnation
    )
    assert (await controller.plan_stop(renamed)).action == "stop"
    world.node.places.clear()
    await controller.stopped(renamed)
    assert controller.users.session(KEY).phase == "stopped"


async def test_renamed_user_does_not_start_beside_what_only_the_agent_knows(world):
    """The journal was lost, and the Hub takes the server for stopped."""
    world.node.run(KEY, "work", "i1")
    controller = await world.controller()
    renamed = SessionKey("renamed", KEY.server)
    visit = Placement(key=renamed, incarnation="i2", remembered=True, former="i1")
    assert (await controller.plan_start(visit)).failure.code == "renamed"
