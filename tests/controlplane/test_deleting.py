"""An order to delete what is saved says what is gone and what is kept until when."""

from __future__ import annotations

import asyncio
import time

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.controlplane.conftest import KEY


async def _suspended(world):
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller


async def _suspended_beside_another(world):
    """Suspended, after a fresh start that has put a first checkpoint aside."""
    controller = await _suspended(world)
    (aside,) = world.node.saved
    await world.suspended_afresh(controller)
    return controller, aside


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


async def test_delete_of_everything_while_suspended_is_followed_by_a_cold_start(world):
    """The Hub's pointer still names what is gone by its user's own word."""
    controller = await _suspended(world)
    await controller.users.delete(KEY, "ada", everything=True)
    assert world.node.saved == {}
    assert await world.hub.start(KEY) == "cold"


async def test_hub_is_told_once_that_what_was_suspended_is_deleted(world):
    """It learns nothing of it otherwise before that server's next start."""
    controller = await _suspended(world)
    stops = f"stop {KEY}"
    assert world.hub.orders.count(stops) == 1
    await controller.users.delete(KEY, "ada")
    await world.until(lambda: world.hub.orders.count(stops) == 2)
    await asyncio.sleep(0.3)  # many ticks
    assert world.hub.orders.count(stops) == 2
    assert await world.hub.start(KEY) == "cold"


async def test_hub_is_told_of_nothing_where_a_new_server_has_begun(world):
    controller = await _suspended(world)
    world.hub.states[KEY] = "spawning"
    await controller.users.delete(KEY, "ada")
    await asyncio.sleep(0.3)
    assert world.hub.orders.count(f"stop {KEY}") == 1


async def test_delete_of_what_was_put_aside_tells_what_stays_until_when(world):
    controller, aside = await _suspended_beside_another(world)
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    answer = await controller.users.delete(KEY, "ada", aside)
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


async def test_delete_from_a_page_of_before_the_visit_takes_nothing_put_aside(world):
    """The page's button means what the session was suspended in, nothing beside it."""
    controller, aside = await _suspended_beside_another(world)
    world.node.hold_at = "criu"
    start = world.hub.spawn(world.hub.start(KEY))
    await world.until(lambda: world.phase(controller) == "resuming")
    with pytest.raises(Refused, match="resuming"):
        await controller.users.delete(KEY, "ada")
    world.node.hold_at = ""
    assert await start == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    with pytest.raises(Refused, match="running"):
        await controller.users.delete(KEY, "ada")
    assert aside in world.node.saved


async def test_delete_of_what_it_came_back_from_takes_what_that_had_superseded(world):
    """Used up, and in a full store the only room that nobody misses."""
    controller, aside = await _suspended_beside_another(world)
    for _ in range(2):
        assert await world.hub.start(KEY) == "restore"
        await world.until(lambda: world.phase(controller) == "running")
        last = controller.users.session(KEY).checkpoint
        await controller.users.suspend(KEY, "ada")
        await world.until(lambda: world.phase(controller) == "suspended")
    kept = {each.id: each for each in controller.users.session(KEY).kept}
    assert kept[last].keeping == "superseded"
    assert all(each.deletable for each in kept.values())
    used_up = {id_ for id_, each in kept.items() if each.keeping == "superseded"}
    assert len(used_up) == 2
    answer = await controller.users.delete(KEY, "ada", last)
    assert set(answer.deleted) == used_up
    current = controller.users.session(KEY).checkpoint
    assert set(world.node.saved) == {aside, current}
    world.node.hold_at = "criu"
    start = world.hub.spawn(world.hub.start(KEY))
    await world.until(lambda: world.phase(controller) == "resuming")
    found = {each.id: each for each in controller.users.session(KEY).kept}
    assert not found[current].deletable
    with pytest.raises(Refused, match="resuming"):
        await controller.users.delete(KEY, "ada", current)
    world.node.hold_at = ""
    assert await start == "restore"


async def test_older_one_that_cannot_be_deleted_outlives_no_newer_one(world):
    world.change(grace=0.5)
    controller = await _suspended(world)
    (older,) = world.node.saved
    await world.hub.start(KEY)
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    newer = controller.users.session(KEY).checkpoint
    discard, asked = world.node.discard, []

    async def fails(checkpoint, *, runs):
        asked.append(checkpoint)
        if checkpoint == older:
            raise StoreError(Reason.STORE_FAILED, why="it is damaged")
        await discard(checkpoint, runs=runs)

    world.node.discard = fails
    await world.hub.start(KEY)
    await world.until(lambda: world.phase(controller) == "running")
    await asyncio.sleep(world.settings.grace + 0.2)
    assert older in asked
    assert set(world.node.saved) == {older, newer}
    world.node.discard = discard
    await world.until(lambda: not world.node.saved)
