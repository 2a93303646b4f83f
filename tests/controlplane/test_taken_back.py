"""A suspend that is committed and taken back: what the session goes back to then."""

from __future__ import annotations

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure
from tests.controlplane import test_old_journal
from tests.controlplane.conftest import KEY
from tests.controlplane.test_old_journal import resume, suspend
from tests.controlplane.test_save_points import lost, row, running, saved


@pytest.fixture(autouse=True)
def soon(world):
    world.change(release_limit=3.0)


async def taken_back(world, controller):
    """The Hub does not stop its server; the session goes on."""
    world.hub.refuses_stop = True
    await world.until(lambda: world.phase(controller) == "releasing")
    await world.until(lambda: world.phase(controller) == "running")


async def came_back(world):
    """One that has come back; what it came from."""
    controller = await test_old_journal.running(world)
    older = await suspend(world, controller)
    await resume(world, controller, "new")
    return controller, older


async def wants_it_back_instead(world):
    """Its user has asked for what it came from; that is taken back."""
    controller, older = await came_back(world)
    world.hub.refuses_stop = True
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await taken_back(world, controller)
    return controller, older


async def ends_and_goes_back(world, controller) -> str:
    lost(world, row(controller).incarnation)
    await world.until(lambda: world.phase(controller) in {"suspended", "stopped"})
    return row(controller).checkpoint


@pytest.mark.parametrize("points", [1, 2])
async def test_its_save_point_is_what_it_goes_back_to_again(world, points):
    world.change(save_points=points, grace=0.3)
    controller, _ = await running(world)
    point = await saved(world, controller)
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    await asyncio.sleep(1)  # the time of grace is over
    assert row(controller).checkpoint == point
    assert await ends_and_goes_back(world, controller) == point


async def test_save_point_that_was_to_be_brought_back_is_its_newest(world):
    world.change(save_points=3)
    controller, _ = await running(world)
    await saved(world, controller)
    newer = await saved(world, controller)
    world.hub.refuses_stop = True
    await controller.users.bring_back(KEY, newer, "ada", save_running=True)
    await taken_back(world, controller)
    assert await ends_and_goes_back(world, controller) == newer


async def test_save_point_that_was_to_be_brought_back_stays_where_it_is_not_saved(
    world,
):
    world.change(grace=0.3)
    controller, _ = await running(world)
    point = await saved(world, controller)
    world.node.capture_failure = Failure(code="capture_failed", message="No.")
    await controller.users.bring_back(KEY, point, "ada", save_running=True)
    await world.until(lambda: row(controller).failures)
    await asyncio.sleep(1)  # the time of grace is over
    assert row(controller).checkpoint == point


async def test_what_it_came_from_was_to_be_brought_back(world):
    controller, older = await wants_it_back_instead(world)
    assert await ends_and_goes_back(world, controller) == older


async def test_it_goes_back_to_nothing_that_its_user_has_left(world):
    controller = await test_old_journal.running(world, "first")
    older = await suspend(world, controller)
    await resume(world, controller, "second")
    await suspend(world, controller)
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    assert await ends_and_goes_back(world, controller) != older


async def test_it_goes_back_to_what_it_came_from_not_to_what_came_between(world):
    controller = await test_old_journal.running(world, "one")
    first = await suspend(world, controller)
    await resume(world, controller, "two")
    await suspend(world, controller)
    await resume(world, controller, "three")
    await suspend(world, controller)
    await controller.users.bring_back(KEY, first, "ada")
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    assert row(controller).checkpoint == first


async def test_where_a_rule_saves_it_has_something_to_go_back_to_all_along(world):
    world.change(grace=0.3, save_every=3600.0)
    controller, older = await came_back(world)
    await controller.users.suspend(KEY, "ada")
    await taken_back(world, controller)
    await asyncio.sleep(1)  # the time of grace is over
    assert row(controller).checkpoint == older


async def test_what_was_wanted_back_instead_has_its_time_again(world):
    controller, older = await wants_it_back_instead(world)
    assert controller._sessions.journal.checkpoint(older).expires is not None


async def test_what_was_wanted_back_stays_where_a_rule_saves_and_it_is_not_saved(world):
    world.change(grace=0.3, save_every=3600.0)
    controller, older = await came_back(world)
    world.node.capture_failure = Failure(code="capture_failed", message="No.")
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await world.until(lambda: row(controller).failures)
    await asyncio.sleep(1)  # the time of grace is over
    assert row(controller).checkpoint == older
