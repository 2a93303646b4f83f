"""An order to delete what is saved says what is gone and what is kept until when."""

from __future__ import annotations

import time

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.controlplane.conftest import KEY


async def _suspended(world):
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller


async def test_delete_of_everything_includes_what_a_running_session_came_from(world):
    controller = await _suspended(world)
    (saved,) = world.node.saved
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert (answer.deleted, answer.kept) == ([saved], [])
    assert world.node.saved == {}
    with pytest.raises(NotFound):
        await controller.users.delete(KEY, "ada", everything=True)


async def test_delete_of_what_was_put_aside_tells_what_stays_until_when(world):
    controller = await _suspended(world)
    (aside,) = world.node.saved
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    answer = await controller.users.delete(KEY, "ada")
    assert answer.deleted == [aside]
    (left,) = answer.kept
    assert left.checkpoint in world.node.saved
    assert 0 < left.until - time.time() <= world.settings.grace
    assert "came back from it" in left.why


async def test_delete_while_the_store_is_away_is_noted_and_done_later(world):
    controller = await _suspended(world)
    (saved,) = world.node.saved
    discard = world.node.discard

    async def fails(_):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    world.node.discard = fails
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert answer.deleted == []
    (left,) = answer.kept
    assert (left.checkpoint, left.until) == (saved, None)
    assert "as soon as the agent and its store answer" in left.why
    assert controller.users.session(KEY).phase == "stopped"
    world.node.discard = discard
    await world.until(lambda: not world.node.saved)


async def test_delete_while_it_is_brought_back_says_what_is_in_use(world):
    controller = await _suspended(world)
    (saved,) = world.node.saved
    world.node.hold_at = "criu"
    start = world.hub.spawn(world.hub.start(KEY))
    await world.until(lambda: world.phase(controller) == "resuming")
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert answer.deleted == []
    assert [left.checkpoint for left in answer.kept] == [saved]
    world.node.hold_at = ""
    assert await start == "restore"
