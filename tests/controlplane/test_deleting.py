"""An order to delete what is saved says what is gone and what is kept until when."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from tests.support.simulated import KEY


async def _suspended_beside_another(world):
    """Suspended, after a fresh start that has put a first checkpoint aside."""
    controller = await world.suspended()
    (aside,) = world.node.saved
    await world.suspended_afresh(controller)
    return controller, aside


async def test_delete_of_everything_includes_what_a_running_session_came_from(world):
    controller = await world.suspended()
    (saved,) = world.node.saved
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert (answer.deleted, answer.kept) == ([saved], [])
    assert world.node.saved == {}
    with pytest.raises(NotFound):
        await controller.users.delete(KEY, "ada", everything=True)


async def test_delete_of_everything_while_suspended_is_followed_by_a_cold_start(world):
    """The Hub's pointer still names what is gone by its user's own word."""
    controller = await world.suspended()
    await controller.users.delete(KEY, "ada", everything=True)
    assert world.node.saved == {}
    assert await world.hub.start(KEY) == "cold"


async def test_hub_is_told_once_that_what_was_suspended_is_deleted(world):
    """It learns nothing of it otherwise before that server's next start."""
    controller = await world.suspended()
    stops = f"stop {KEY}"
    assert world.hub.orders.count(stops) == 1
    await controller.users.delete(KEY, "ada")
    await world.until(lambda: world.hub.orders.count(stops) == 2)
    await asyncio.sleep(3)  # many ticks
    assert world.hub.orders.count(stops) == 2
    assert await world.hub.start(KEY) == "cold"


async def test_hub_is_told_of_nothing_where_a_new_server_has_begun(world):
    controller = await world.suspended()
    world.hub.states[KEY] = "spawning"
    await controller.users.delete(KEY, "ada")
    await asyncio.sleep(3)
    assert world.hub.orders.count(f"stop {KEY}") == 1


async def test_delete_of_what_was_put_aside_tells_what_stays_until_when(world):
    controller, aside = await _suspended_beside_another(world)
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    answer = await controller.users.delete(KEY, "ada", aside)
    assert answer.deleted == [aside]
    (left,) = answer.kept
    assert left.checkpoint in world.node.saved
    assert 0 < left.until - world.now() <= world.settings.grace
    assert "came back from it" in left.why


async def test_delete_while_the_store_is_away_is_noted_and_done_later(world):
    controller = await world.suspended()
    (saved,) = world.node.saved
    back = world.node.away("discard")
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert answer.deleted == []
    (left,) = answer.kept
    assert (left.checkpoint, left.until) == (saved, None)
    assert "as soon as the agent and its store answer" in left.why
    assert controller.users.session(KEY).phase == "stopped"
    back()
    await world.until(lambda: not world.node.saved)


async def test_delete_while_it_is_brought_back_says_what_is_in_use(world):
    controller = await world.suspended()
    (saved,) = world.node.saved
    world.node.hold_at = "criu"
    start = asyncio.ensure_future(world.hub.start(KEY))
    await world.reaches(controller, "resuming")
    answer = await controller.users.delete(KEY, "ada", everything=True)
    assert answer.deleted == []
    assert [left.checkpoint for left in answer.kept] == [saved]
    world.node.hold_at = ""
    assert await start == "restore"


async def test_delete_from_a_page_of_before_the_visit_takes_nothing_put_aside(world):
    """The page's button means what the session was suspended in, nothing beside it."""
    controller, aside = await _suspended_beside_another(world)
    world.node.hold_at = "criu"
    start = asyncio.ensure_future(world.hub.start(KEY))
    await world.reaches(controller, "resuming")
    with pytest.raises(Refused, match="resuming"):
        await controller.users.delete(KEY, "ada")
    world.node.hold_at = ""
    assert await start == "restore"
    await world.reaches(controller, "running")
    with pytest.raises(Refused, match="running"):
        await controller.users.delete(KEY, "ada")
    assert aside in world.node.saved


async def test_delete_of_what_it_came_back_from_takes_what_that_had_superseded(world):
    """Used up, and in a full store the only room that nobody misses."""
    controller, aside = await _suspended_beside_another(world)
    for _ in range(2):
        assert await world.hub.start(KEY) == "restore"
        await world.reaches(controller, "running")
        last = controller.users.session(KEY).checkpoint
        await world.suspend(controller)
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
    start = asyncio.ensure_future(world.hub.start(KEY))
    await world.reaches(controller, "resuming")
    found = {each.id: each for each in controller.users.session(KEY).kept}
    assert not found[current].deletable
    with pytest.raises(Refused, match="resuming"):
        await controller.users.delete(KEY, "ada", current)
    world.node.hold_at = ""
    assert await start == "restore"


async def test_older_one_that_cannot_be_deleted_outlives_no_newer_one(world):
    world.change(grace=5.0)
    controller = await world.suspended()
    (older,) = world.node.saved
    await world.hub.start(KEY)
    await world.reaches(controller, "running")
    await world.suspend(controller)
    newer = controller.users.session(KEY).checkpoint
    back = world.node.away(f"discard {older}")
    await world.hub.start(KEY)
    await world.reaches(controller, "running")
    await asyncio.sleep(world.settings.grace + 2)
    assert f"discard {older}" in world.node.switches.calls
    assert set(world.node.saved) == {older, newer}
    back()
    await world.until(lambda: not world.node.saved)
