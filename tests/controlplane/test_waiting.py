"""Who comes back while no GPU has room waits their turn, and is never lost."""

from __future__ import annotations

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.models import GpuSample, SessionKey
from tests.controlplane.conftest import KEY

BOB = SessionKey("bob")
ADA2 = SessionKey("ada", "second")
CARD = GpuSample(uuid="GPU-1", name="NVIDIA A100", memory=10)


@pytest.fixture
async def saved(world):
    """Sessions of ada and bob, suspended, on a machine whose GPU is full."""
    world.node.gpus = [CARD]
    controller = await world.controller()
    for key in (KEY, ADA2, BOB):
        await world.running(str(key), key)
    for key in (KEY, ADA2, BOB):
        await world.until(lambda key=key: world.phase(controller, key) == "running")
        await world.until(lambda key=key: controller.users.session(key).gpus)
        await controller.users.suspend(key, "ada")
        await world.until(lambda key=key: world.phase(controller, key) == "suspended")
    world.node.room = 0
    return controller


async def _comes(world, controller, key, place):
    """Start it; returns the start's task once it has that place."""
    task = world.hub.spawn(world.hub.start(key))
    await world.until(lambda: _place(controller, key) == place)
    return task


def _place(controller, key):
    return controller.users.session(key).facts.place


async def test_resume_without_room_waits_and_comes_back_when_there_is_some(
    world, saved
):
    starting = await _comes(world, saved, KEY, 1)
    (waiting,) = saved.waiting()
    assert (waiting.key, waiting.place, waiting.gpus) == (KEY, 1, 1)
    (step,) = [s for s in saved.users.session(KEY).steps if s.step == "queue"]
    assert step.title == "Waiting for a free GPU: number 1 of 1 in the queue"
    world.node.room = 1
    assert await starting == "restore"
    await world.until(lambda: world.phase(saved) == "running")
    assert [p.contents for p in world.node.living(KEY)] == [str(KEY)]
    assert not _place(saved, KEY)
    steps = {s.step: s.state for s in saved.users.session(KEY).steps}
    assert steps["queue"] == "done"
    counters = saved.metrics_snapshot().counters
    assert counters.waits["served"].count == 1
    assert counters.operations["resume", "failed"] == 0


async def test_one_user_with_many_servers_does_not_push_out_another(world, saved):
    starts = [
        await _comes(world, saved, KEY, 1),
        await _comes(world, saved, ADA2, 2),
    ]
    starts.append(await _comes(world, saved, BOB, 2))
    assert [each.key for each in saved.waiting()] == [KEY, BOB, ADA2]
    came = []
    for room in (1, 2, 3):
        world.node.room = room
        await world.until(
            lambda room=room: sum(p.state == "running" for p in _places(world)) == room
        )
        came.append({p.key for p in _places(world) if p.state == "running"})
    assert came == [{KEY}, {KEY, BOB}, {KEY, BOB, ADA2}]
    assert await asyncio.gather(*starts) == ["restore"] * 3


def _places(world):
    return list(world.node.places.values())


async def test_place_is_kept_over_a_restart_of_the_service(world, saved):
    starts = [await _comes(world, saved, KEY, 1), await _comes(world, saved, BOB, 2)]
    since = saved.users.session(BOB).facts.waiting_since
    await world.kill(saved)
    after = await world.controller()
    await world.until(lambda: _place(after, BOB) == 2)
    assert after.users.session(BOB).facts.waiting_since == since
    assert [each.key for each in after.waiting()] == [KEY, BOB]
    world.node.room = 2
    assert await asyncio.gather(*starts) == ["restore"] * 2
    await world.until(lambda: world.phase(after, BOB) == "running")


async def test_who_is_called_off_leaves_the_queue_and_stays_saved(world, saved):
    starting = await _comes(world, saved, KEY, 1)
    other = await _comes(world, saved, BOB, 2)
    starting.cancel()
    placement = world.hub.placement(KEY)
    await saved.cancelled(placement)
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: _place(saved, BOB) == 1)
    assert world.phase(saved) == "suspended"
    assert saved.metrics_snapshot().counters.waits["left"].count == 1
    world.node.room = 1
    assert await other == "restore"


@pytest.mark.parametrize("limit", [0.0, 0.3])
async def test_resume_without_room_fails_when_its_time_is_over(world, limit):
    world.change(gpu_wait=limit)
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    world.node.room = 0
    why = "gpu_wait_over" if limit else "gpu_memory"
    assert await world.hub.start(KEY) == why
    await world.until(lambda: world.phase(controller) == "suspended")
    assert controller.users.session(KEY).failure.code == why
    assert len(world.node.saved) == 1
    assert ("expired" in controller.metrics_snapshot().counters.waits) == bool(limit)
    world.node.room = 1
    assert await world.hub.start(KEY) == "restore"


async def test_gpu_time_left_to_others_lasts_over_a_restart(world, saved):
    before = saved.metrics_snapshot().gpu_seconds
    assert before > 0
    world.node.room = 3
    assert await world.hub.start(KEY) == "restore"
    await world.kill(saved)
    after = (await world.controller()).metrics_snapshot().gpu_seconds
    assert after > before
