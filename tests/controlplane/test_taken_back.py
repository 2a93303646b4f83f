"""A suspend that is committed and taken back: what the session goes back to then."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure
from tests.support.simulated import KEY

NO = Failure(code="capture_failed", message="No.")


@pytest.fixture(autouse=True)
def soon(world):
    world.change(release_limit=3.0)


def goes_back_to(controller) -> str:
    return controller._sessions.row(KEY).checkpoint


async def taken_back(world, controller):
    """The Hub does not stop its server; the session goes on."""
    world.installation.refuses_stop = True
    await world.reaches(controller, "releasing")
    await world.reaches(controller, "running")


async def came_back(world):
    """One that has come back; what it came from."""
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    return controller, older


async def ends_and_goes_back(world, controller) -> str:
    world.lost()
    await world.until(lambda: world.phase(controller) in {"suspended", "stopped"})
    return goes_back_to(controller)


@pytest.mark.parametrize("points", [1, 2])
async def test_its_save_point_is_what_it_goes_back_to_again(world, points):
    controller, _ = await world.started(save_points=points, grace=3.0)
    point = await world.saved(controller)
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    await asyncio.sleep(10)  # the time of grace is over
    assert goes_back_to(controller) == point
    assert await ends_and_goes_back(world, controller) == point


@pytest.mark.parametrize("is_saved", [True, False])
async def test_save_point_that_was_to_be_brought_back_stays_its_newest(world, is_saved):
    controller, _ = await world.started(save_points=3, grace=3.0)
    await world.saved(controller)
    newer = await world.saved(controller)
    world.installation.refuses_stop = True
    if not is_saved:
        world.node.failures["dump"] = NO
    await controller.users.bring_back(KEY, newer, "ada", save_running=True)
    if is_saved:
        await taken_back(world, controller)
    else:
        await world.until(lambda: world.view(controller).failure is not None)
        await asyncio.sleep(10)  # the time of grace is over
    assert await ends_and_goes_back(world, controller) == newer


async def test_it_goes_back_to_nothing_that_its_user_has_left(world):
    controller, _ = await world.started("first")
    older = await world.suspend(controller)
    await world.resume(controller, "second")
    await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start() == "cold"
    await world.reaches(controller, "running")
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    assert await ends_and_goes_back(world, controller) != older


async def test_it_goes_back_to_what_it_came_from_not_to_what_came_between(world):
    controller, _ = await world.started("one")
    first = await world.suspend(controller)
    for contents in ("two", "three"):
        await world.resume(controller, contents)
        await world.suspend(controller)
    await controller.users.bring_back(KEY, first, "ada")
    await world.reaches(controller, "running")
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    assert goes_back_to(controller) == first


async def test_where_a_rule_saves_it_has_something_to_go_back_to_all_along(world):
    world.change(grace=3.0, save_every=3600.0)
    controller, older = await came_back(world)
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    await asyncio.sleep(10)  # the time of grace is over
    assert goes_back_to(controller) == older


async def test_what_was_wanted_back_instead_is_what_it_came_from_with_its_time(world):
    controller, older = await came_back(world)
    world.installation.refuses_stop = True
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await taken_back(world, controller)
    assert controller._sessions.journal.checkpoint(older).expires is not None
    assert await ends_and_goes_back(world, controller) == older


async def test_what_was_wanted_back_stays_where_a_rule_saves_and_it_is_not_saved(world):
    world.change(grace=3.0, save_every=3600.0)
    controller, older = await came_back(world)
    world.node.failures["dump"] = NO
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await world.until(lambda: world.view(controller).failure is not None)
    await asyncio.sleep(10)  # the time of grace is over
    assert goes_back_to(controller) == older
