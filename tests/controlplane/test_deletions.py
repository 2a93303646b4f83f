"""A deleted server: ordered once, carried out whoever is away, never inherited."""

from __future__ import annotations

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common import deletion_orders
from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.models import Placement, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from tests.controlplane.conftest import KEY


def _away(world, *names: str):
    """These calls of the node fail, until what is returned is called."""
    before = {name: getattr(world.node, name) for name in names}

    async def fails(*_args, **_more):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    for name in names:
        setattr(world.node, name, fails)

    def back() -> None:
        for name, call in before.items():
            setattr(world.node, name, call)

    return back


async def _suspended(world, **more):
    await world.running("of the old one")
    controller = await world.controller(**more)
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller


async def _nothing_is_left(world, controller) -> None:
    """And nothing comes back, for as many looks as a test can wait for."""
    await world.until(lambda: not world.node.saved and not world.node.places)
    await world.until(lambda: not controller._sessions.deletions.pending_keys())
    for _ in range(20):
        assert world.phase(controller) == ""
        await asyncio.sleep(0.02)
    assert not [v for v in controller.users.sessions() if v.key == KEY]
    assert await world.hub.start(KEY) == "cold"
    world.hub.pointers.pop(KEY, None)
    assert [place.contents for place in world.node.living(KEY)] == ["cold"]


async def test_session_deleted_while_its_release_failed_does_not_come_back(world):
    await world.running("of the old one")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    back = _away(world, "release")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.hub.states[KEY] == "stopped")
    (place,) = world.node.places.values()
    assert place.state is TreeState.CAPTURED
    await controller.forget(KEY)
    world.hub.pointers.pop(KEY, None)
    back()
    await _nothing_is_left(world, controller)


@pytest.mark.parametrize("missing", ["discard", "checkpoints", "trees"])
async def test_deletion_is_repeated_until_the_node_and_its_store_are_back(
    world, missing
):
    controller = await _suspended(world)
    back = _away(world, missing)
    await controller.forget(KEY)
    world.hub.pointers.pop(KEY, None)
    await asyncio.sleep(0.2)
    assert controller._sessions.deletions.pending_keys() == {KEY}
    back()
    await _nothing_is_left(world, controller)


async def test_deletion_survives_the_service(world):
    controller = await _suspended(world)
    back = _away(world, "discard", "checkpoints")
    await controller.forget(KEY)
    world.hub.pointers.pop(KEY, None)
    await world.kill(controller)
    back()
    await _nothing_is_left(world, await world.controller())


async def test_deletion_ordered_while_no_service_was_there_is_taken_up(world, tmp_path):
    controller = await _suspended(world)
    await world.kill(controller)
    deletion_orders.write(tmp_path, KEY)
    world.hub.pointers.pop(KEY, None)
    second = await world.controller(folder=tmp_path)
    await _nothing_is_left(world, second)
    assert list(tmp_path.glob("deletions/*")) == []


async def test_order_that_is_told_as_well_is_one_order(world, tmp_path):
    controller = await _suspended(world, folder=tmp_path)
    deletion_orders.write(tmp_path, KEY)
    await controller.forget(KEY)
    world.hub.pointers.pop(KEY, None)
    await _nothing_is_left(world, controller)
    audit = Journal(world.url)
    lines = [line.what for line in audit.audit(KEY)]
    audit.close()
    assert lines.count("forget") == lines.count("forgotten") == 1


async def test_order_whose_file_cannot_be_removed_does_not_hit_the_next_session(
    world, tmp_path, monkeypatch
):
    controller = await _suspended(world, folder=tmp_path)

    def fails(path):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(deletion_orders, "remove", fails)
        path = deletion_orders.write(tmp_path, KEY)
        await controller.forget(KEY)
        world.hub.pointers.pop(KEY, None)
        await _nothing_is_left(world, controller)
        await world.until(lambda: world.phase(controller) == "running")
        await asyncio.sleep(0.2)
        assert path.exists()
        assert world.phase(controller) == "running"
    await world.until(lambda: not path.exists())
    await asyncio.sleep(0.2)
    assert world.phase(controller) == "running"


async def test_file_that_is_no_order_is_put_out_of_the_way(world, tmp_path, caplog):
    good = deletion_orders.write(tmp_path, KEY)
    bad = good.with_name("0.json")
    bad.write_text("{")
    assert [key for _, key in deletion_orders.pending(tmp_path)] == [KEY]
    assert "is no order to delete" in caplog.text
    assert bad.with_suffix(".bad").exists()


async def test_new_session_of_that_name_is_not_hit_by_the_order(world):
    """The old one's tree and checkpoint cannot be reached while the new one begins."""
    await world.running("of the old one")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    release = _away(world, "release")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.hub.states[KEY] == "stopped")
    (old,) = world.node.places
    back = _away(world, "kill", "discard")
    await controller.forget(KEY)
    world.hub.pointers.pop(KEY, None)
    release()
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(controller) == "running")
    new = controller.users.session(KEY).incarnation
    world.node.places[new].contents = "of the new one"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    back()
    await world.until(lambda: old not in world.node.places)
    await world.until(lambda: len(world.node.saved) == 1)
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    (place,) = world.node.living(KEY)
    assert place.contents == "of the new one"
    assert "of the new one" not in world.node.lost


async def test_capture_that_is_under_way_when_its_server_is_deleted_leaves_nothing(
    world,
):
    await world.running("of the old one")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    world.node.hold_at = "commit"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.node.living(KEY)[0].state == "capturing")
    world.hub.states[KEY] = "stopped"
    await controller.forget(KEY)
    await _nothing_is_left(world, controller)


async def test_new_session_that_no_service_saw_begin_is_taken_up_not_ended(world):
    controller = await _suspended(world)
    back = _away(world, "discard")
    await controller.forget(KEY)
    await world.kill(controller)
    new = await world.running("of the new one")
    second = await world.controller()
    await world.until(lambda: world.phase(second) == "running")
    back()
    await world.until(lambda: not world.node.saved)
    assert [place.incarnation for place in world.node.living(KEY)] == [new]
    assert world.node.lost == []


async def test_silent_node_of_a_deleted_session_hinders_no_new_one(world):
    controller = await _suspended(world)
    world.hub.pointers.pop(KEY, None)
    back = _away(world, "trees")
    await controller.forget(KEY)
    with pytest.raises(NotFound):
        controller.users.session(KEY)
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "cold"
    back()
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "cold"
