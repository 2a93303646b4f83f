"""A branch: another session with what one was saved as, of the same user."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping
from tests.controlplane.conftest import KEY
from tests.controlplane.test_save_points import kept, running, saved

THERE = SessionKey(KEY.user, "beside")


async def test_branch_runs_beside_its_origin_with_what_that_was_saved_as(world):
    controller, incarnation = await running(world)
    checkpoint = await saved(world, controller)
    world.node.places[incarnation].contents = "later"
    world.hub.options[KEY] = {"profile": "large"}
    view = await controller.users.branch(KEY, checkpoint, THERE.server, "ada")
    assert view.key == THERE
    await world.until(lambda: world.phase(controller, THERE) == "running")
    (place,), (origin,) = world.node.living(THERE), world.node.living(KEY)
    assert (place.contents, origin.contents) == ("as saved", "later")
    assert world.hub.options[THERE] == {"profile": "large"}
    rows = [controller._sessions.row(key) for key in (KEY, THERE)]
    assert rows[0].session != rows[1].session
    assert rows[1].checkpoint not in {checkpoint, ""}
    # Neither needs the other.
    await controller.users.delete(KEY, "ada", everything=True)
    await controller.users.suspend(THERE, "ada")
    await world.until(lambda: world.phase(controller, THERE) == "suspended")
    assert world.phase(controller) == "running"


async def test_one_that_was_put_aside_is_opened_while_its_session_is_suspended(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller, "good")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    await controller.users.branch(KEY, checkpoint, THERE.server, "ada")
    await world.until(lambda: world.phase(controller, THERE) == "running")
    assert world.phase(controller) == "suspended"


async def test_plan_of_a_branch_says_so_and_that_of_its_next_return_does_not(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    plans = []
    planned = controller.plan_start

    async def plan_start(placement):
        plans.append(await planned(placement))
        return plans[-1]

    controller.plan_start = plan_start
    await controller.users.branch(KEY, checkpoint, THERE.server, "ada")
    await world.until(lambda: world.phase(controller, THERE) == "running")
    await controller.users.suspend(THERE, "ada")
    await world.until(lambda: world.phase(controller, THERE) == "suspended")
    await controller.users.resume(THERE, "ada")
    await world.until(lambda: world.phase(controller, THERE) == "running")
    assert [plan.branch for plan in plans] == [True, False]


async def test_hub_that_will_not_start_it_is_quoted_and_nothing_is_left(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    before = set(world.node.saved)
    world.hub.refuses_start = "User ada already has the maximum of 1 named servers."
    with pytest.raises(Refused, match="maximum of 1 named servers") as caught:
        await controller.users.branch(KEY, checkpoint, THERE.server, "ada")
    assert caught.value.reason is Reason.HUB_REFUSED
    await world.until(lambda: set(world.node.saved) == before)
    assert not [view for view in controller.users.sessions() if view.key == THERE]
    assert kept(controller) == {checkpoint: Keeping.SUPERSEDED}


async def test_name_that_is_taken_or_is_none_is_refused(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    await world.running("other", THERE)
    before = set(world.node.saved)
    for name in ("", "a/b", "-", "ü", "x" * 64):
        with pytest.raises(BadRequest):
            await controller.users.branch(KEY, checkpoint, name, "ada")
    with pytest.raises(Refused) as caught:
        await controller.users.branch(KEY, checkpoint, THERE.server, "ada")
    assert caught.value.reason is Reason.BRANCH_IMPOSSIBLE
    with pytest.raises(NotFound):
        await controller.users.branch(KEY, "another", "new", "ada")
    assert set(world.node.saved) == before
