"""Stories of ``docs/explanation/truth.md``: parts of what is known are lost or old."""

from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.controlplane.loops import ControlLoops
from tests.support.simulated import KEY

ANN = "7.20260101T000000000000"


async def begun(world, controller, **more) -> Placement:
    """A fresh session that its spawner has reported, with id and account."""
    more = {"session": "s1", "owner": ANN, **more}
    placement = Placement(key=KEY, incarnation="i1", **more)
    place = world.node.run(KEY, "tensors", placement.incarnation)
    place.session, place.account = placement.session, placement.owner
    world.hub.run()
    await controller.placed(placement)
    await world.reaches(controller, "running")
    return placement


async def _sees_nothing(self) -> None:
    """A round of a service whose journal cannot be written."""


async def test_journal_lost_and_unwritable_the_store_tells_of_a_renamed_users_session(
    world, monkeypatch
):
    """The Hub has renamed its user meanwhile; nothing is started beside it."""
    first = await world.controller()
    await begun(world, first)
    await world.suspend(first)
    monkeypatch.setattr(ControlLoops, "tick", _sees_nothing)
    second = await world.journal_lost(first)
    asked = Placement(key=SessionKey("eve"), incarnation="new", owner=ANN, former="s1")
    plan = await second.plan_start(asked)
    assert (plan.action, plan.failure.code) == ("refuse", "renamed")
    assert "ada" in plan.failure.message


async def test_start_ends_what_holds_a_place_for_a_start_that_is_over(world):
    """As by ``docker restart``: its container has the name that the next one needs."""
    controller = await world.suspended()
    world.node.hold(KEY, "i9")
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "restore"
    assert "i9" not in world.node.places
