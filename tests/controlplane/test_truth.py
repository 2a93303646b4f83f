"""Stories of ``docs/explanation/truth.md``: parts of what is known are lost or old."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey, TreeState
from jupyterhub_gpu_reclaim.controlplane.loop.scheduler import ControlLoops
from tests.controlplane.conftest import KEY
from tests.controlplane.test_old_journal import (
    Backup,
    restored_journal,
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


async def test_start_ends_what_holds_a_place_for_a_start_that_is_over(world):
    """As by ``docker restart``: its container has the name that the next one needs."""
    controller = await running(world, "older")
    await suspend(world, controller)
    world.node.run(KEY, "", "i9").state = TreeState.HOLDING
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "restore"
    assert "i9" not in world.node.places
