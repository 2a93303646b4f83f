"""Stories of ``docs/explanation/truth.md``: parts of what is known are lost or old."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.models import Phase, Placement, SessionKey, TreeState
from jupyterhub_gpu_reclaim.controlplane.loop.scheduler import ControlLoops
from tests.controlplane.conftest import KEY
from tests.controlplane.test_old_journal import (
    Backup,
    contents,
    restored_journal,
    resume,
    running,
    suspend,
)

ANN = "7.20260101T000000000000"


async def begun(world, controller, **more) -> Placement:
    """A fresh session that its spawner has reported, with id and account."""
    more = {"session": "s1", "owner": ANN, **more}
    placement = Placement(key=KEY, incarnation="i1", **more)
    place = world.node.run(KEY, "tensors", placement.incarnation)
    place.session, place.account = placement.session, placement.owner
    world.hub.run(KEY, placement.incarnation)
    await controller.placed(placement)
    await world.until(lambda: world.phase(controller) == "running")
    return placement


async def _sees_nothing(self) -> None:
    """A round of a service whose journal cannot be written."""


def visit(**more) -> Placement:
    """How a Hub asks that remembers nothing but what is given."""
    return Placement(key=KEY, incarnation="new", owner=ANN, **more)


async def test_journal_lost_and_the_hub_knows_the_session_nobody_is_asked(world):
    """The Hub was told of no checkpoint: it takes the session for one that runs."""
    first = await world.controller()
    await begun(world, first)
    saved = await suspend(world, first)
    second = await world.journal_lost(first)
    await world.until(lambda: world.phase(second) == "suspended")
    plan = await second.plan_start(visit(former="s1", remembered=True))
    assert (plan.action, plan.checkpoint) == ("restore", saved)


async def test_both_databases_put_back_and_the_service_started_again_asks(
    world, tmp_path
):
    first = await world.controller()
    backup = Backup(world, tmp_path)
    await begun(world, first)
    saved = await suspend(world, first)
    world.hub.pointers.clear()
    second = await restored_journal(world, first, backup)
    plan = await second.plan_start(visit())
    assert (plan.action, plan.failure.code) == ("refuse", "saved_found")
    await second.users.resume(KEY, "ada")
    plan = await second.plan_start(visit())
    assert (plan.action, plan.checkpoint, plan.session) == ("restore", saved, "s1")


async def test_both_databases_put_back_what_naps_is_joined_and_can_be_woken(
    world, tmp_path
):
    first = await world.controller()
    backup = Backup(world, tmp_path)
    await begun(world, first)
    world.node.places["i1"].gpu_memory = 5
    await first.users.nap(KEY, "root")
    await world.until(lambda: world.phase(first) == "napping")
    world.hub.states.pop(KEY)
    second = await restored_journal(world, first, backup)
    plan = await second.plan_start(visit())
    assert (plan.action, plan.incarnation, plan.session) == ("adopt", "i1", "s1")
    world.hub.run(KEY, "i1")
    await world.until(lambda: world.phase(second) == "napping")
    await second.users.wake(KEY, "root")
    await world.until(lambda: world.phase(second) == "running")
    assert contents(world) == "tensors"


async def test_both_databases_put_back_and_the_user_renamed_is_told_so(world, tmp_path):
    first = await world.controller()
    backup = Backup(world, tmp_path)
    await begun(world, first)
    await suspend(world, first)
    second = await restored_journal(world, first, backup)
    await world.until(lambda: world.phase(second) == "suspended")
    renamed = Placement(key=SessionKey("eve"), incarnation="new", owner=ANN)
    plan = await second.plan_start(renamed)
    assert (plan.action, plan.failure.code) == ("refuse", "renamed")
    assert "ada" in plan.failure.message


async def test_journal_lost_and_unwritable_the_store_tells_of_a_renamed_users_session(
    world, monkeypatch
):
    """The Hub has renamed its user meanwhile; nothing is started beside it."""
    first = await world.controller()
    await begun(world, first)
    await suspend(world, first)
    await world.kill(first)
    world.url = world.url.replace("journal.sqlite", "empty.sqlite")
    monkeypatch.setattr(ControlLoops, "tick", _sees_nothing)
    second = await world.controller()
    asked = Placement(key=SessionKey("eve"), incarnation="new", owner=ANN, former="s1")
    plan = await second.plan_start(asked)
    assert (plan.action, plan.failure.code) == ("refuse", "renamed")
    assert "ada" in plan.failure.message


async def test_both_databases_put_back_and_another_account_of_that_name_gets_nothing(
    world, tmp_path
):
    first = await world.controller()
    backup = Backup(world, tmp_path)
    await begun(world, first)
    saved = await suspend(world, first)
    second = await restored_journal(world, first, backup)
    await world.until(lambda: world.phase(second) == "suspended")
    other = Placement(key=KEY, incarnation="new", owner="8.20260601T000000000000")
    plan = await second.plan_start(other)
    assert (plan.action, plan.failure.code) == ("refuse", "former_account")
    assert saved in world.node.saved


async def test_both_databases_put_back_what_stands_captured_is_the_session(
    world, tmp_path
):
    """Its agent was killed after the commit: only the store knows what it is."""
    first = await world.controller()
    backup = Backup(world, tmp_path)
    await begun(world, first)
    saved = await suspend(world, first)
    (info, _) = world.node.saved[saved]
    place = world.node.run(KEY, "tensors", info.incarnation)
    place.state, place.checkpoint, place.session = TreeState.CAPTURED, saved, "s1"
    world.hub.pointers.clear()
    second = await restored_journal(world, first, backup)
    plan = await second.plan_start(visit())
    assert plan.action in {"restore", "refuse"}
    await world.until(lambda: world.phase(second) in {"suspended", "resuming"})
    row = second._sessions.row(KEY)
    assert (row.session, row.checkpoint) == ("s1", saved)
    assert world.node.living(KEY) == []


def stands_captured(world, saved: str) -> None:
    """Its agent was put back: what was released stands there as it was saved."""
    (info, _) = world.node.saved[saved]
    place = world.node.run(KEY, "tensors", info.incarnation)
    place.state, place.checkpoint, place.session = TreeState.CAPTURED, saved, "s1"


async def test_fresh_start_beside_what_still_stands_captured_is_fresh(world):
    controller = await world.controller()
    await begun(world, controller)
    saved = await suspend(world, controller)
    world.hub.states[KEY] = "spawning"
    await controller.users.start_fresh(KEY, "ada")
    stands_captured(world, saved)
    assert (await controller.plan_start(visit(checkpoint=saved))).action == "cold"
    assert "i1" not in world.node.places
    assert saved in world.node.saved


async def test_newer_state_comes_back_once_what_stands_captured_is_released(world):
    controller = await world.controller()
    await begun(world, controller)
    saved = await suspend(world, controller)
    world.hub.states[KEY] = "spawning"
    stands_captured(world, saved)
    world.node.run(KEY, "newer", "i2").session = "s1"
    events = world.node.begin_capture("i2", "newer", 2)
    assert [event async for event in events if event.checkpoint]
    await world.node.release("i2", "newer")
    plan = await controller.plan_start(visit(former="s1", checkpoint=saved))
    assert (plan.action, plan.failure.code) == ("refuse", "operation_in_flight")
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: controller._sessions.row(KEY).checkpoint == "newer")
    assert controller._sessions.row(KEY).phase is Phase.SUSPENDED


async def test_hub_and_journal_of_before_end_nothing_that_runs_since(world, tmp_path):
    first = await world.controller()
    await begun(world, first)
    backup = Backup(world, tmp_path)
    await suspend(world, first)
    await resume(world, first, "newer")
    second = await restored_journal(world, first, backup)
    stop = Placement(key=KEY, incarnation="i1", session="s1")
    assert (await second.plan_stop(stop)).action == "keep"
    assert contents(world) == "newer"


async def test_start_ends_what_holds_a_place_for_a_start_that_is_over(world):
    """As by ``docker restart``: its container has the name that the next one needs."""
    controller = await running(world, "older")
    await suspend(world, controller)
    world.node.run(KEY, "", "i9").state = TreeState.HOLDING
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "restore"
    assert "i9" not in world.node.places


@pytest.mark.parametrize("state", ["running", "napping"])
async def test_what_runs_is_joined_whatever_the_journal_says(world, tmp_path, state):
    first = await running(world, "older")
    await suspend(world, first)
    backup = Backup(world, tmp_path)
    await resume(world, first, "newer")
    (place,) = world.node.living(KEY)
    place.state = TreeState(state)
    second = await restored_journal(world, first, backup)
    plan = await second.plan_start(Placement(key=KEY, incarnation="new"))
    assert (plan.action, plan.incarnation) == ("adopt", place.incarnation)
    assert second._sessions.row(KEY).phase is Phase.RUNNING
    assert contents(world) == "newer"
