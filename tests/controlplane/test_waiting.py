"""Who comes back while no GPU has room waits their turn, and is never lost."""

import asyncio
from functools import partial

import pytest

from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.pressure import PressurePolicy, choose_to_go
from simulation.doubles.machine import GIB
from tests.support.counted import counted
from tests.support.simulated import KEY

BOB = SessionKey("bob")
ADA2 = SessionKey("ada", "second")
HELD = 4 * GIB  #: of the card's 16, by each
WAITS = "wait_duration_seconds_count"


@pytest.fixture
async def saved(world):
    """Sessions of ada and bob, suspended, on a machine whose GPU is full."""
    controller = await world.controller()
    for key in (KEY, ADA2, BOB):
        await world.running(str(key), key, gpu=HELD)
        await world.reaches(controller, "running", key)
        await world.until(lambda key=key: controller.users.session(key).gpus)
        await controller.users.suspend(key, "ada")
        await world.reaches(controller, "suspended", key)
    room_for(world, 0)
    return controller


def room_for(world, sessions: int) -> None:
    machine = world.node.machine
    machine.taken_by_others = machine.capacity - sessions * HELD


async def comes(world, controller, key, place):
    """Start it; returns the start's task once it has that place."""
    task = asyncio.create_task(world.hub.start(key))
    await world.until(lambda: place_of(controller, key) == place)
    return task


def place_of(controller, key):
    return controller.users.session(key).facts.place


async def test_resume_without_room_waits_and_comes_back_when_there_is_some(
    world, saved
):
    starting = await comes(world, saved, KEY, 1)
    (waiting,) = saved.waiting()
    assert (waiting.key, waiting.place, waiting.gpus) == (KEY, 1, 1)
    (step,) = [s for s in saved.users.session(KEY).steps if s.step == "queue"]
    assert step.title == "Waiting for a free GPU: number 1 of 1 in the queue"
    room_for(world, 1)
    assert await starting == "restore"
    await world.reaches(saved, "running")
    assert world.node.works() == [str(KEY)]
    assert not place_of(saved, KEY)
    steps = {s.step: s.state for s in saved.users.session(KEY).steps}
    assert steps["queue"] == "done"
    counters = saved.counters
    assert counted(counters, WAITS) == 1
    failed = {"operation": "resume", "outcome": "failed"}
    assert counted(counters, "operations_total", **failed) == 0


async def test_one_user_with_many_servers_does_not_push_out_another(world, saved):
    starts = [await comes(world, saved, KEY, 1), await comes(world, saved, ADA2, 2)]
    starts.append(await comes(world, saved, BOB, 2))
    assert [each.key for each in saved.waiting()] == [KEY, BOB, ADA2]
    for room, key in enumerate((KEY, BOB, ADA2), start=1):
        room_for(world, room)
        await world.reaches(saved, "running", key)
        running = [v for v in saved.users.sessions() if v.phase == "running"]
        assert len(running) == room
    assert await asyncio.gather(*starts) == ["restore"] * 3


async def test_place_is_kept_over_a_restart_of_the_service(world, saved):
    starts = [await comes(world, saved, KEY, 1), await comes(world, saved, BOB, 2)]
    (_, before) = saved.waiting()
    await world.kill(saved)
    after = await world.controller()
    await world.until(lambda: place_of(after, BOB) == 2)
    first, then = after.waiting()
    assert (first.key, then) == (KEY, before)
    room_for(world, 2)
    assert await asyncio.gather(*starts) == ["restore"] * 2
    await world.reaches(after, "running", BOB)


async def test_who_is_called_off_leaves_the_queue_and_stays_saved(world, saved):
    await comes(world, saved, KEY, 1)
    other = await comes(world, saved, BOB, 2)
    await world.hub.process.stop(KEY)
    await world.until(lambda: place_of(saved, BOB) == 1)
    await world.reaches(saved, "suspended")
    assert counted(saved.counters, WAITS) == 1
    room_for(world, 1)
    assert await other == "restore"


@pytest.mark.parametrize("limit", [0.0, 5.0])
async def test_resume_without_room_fails_when_its_time_is_over(world, limit):
    controller, _ = await world.started(gpu=HELD, gpu_wait=limit)
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    room_for(world, 0)
    why = "gpu_wait_over" if limit else "gpu_memory"
    assert await world.hub.start() == why
    await world.reaches(controller, "suspended")
    assert controller.users.session(KEY).failure.code == why
    assert len(world.node.saved) == 1
    counters = controller.counters
    assert counted(counters, WAITS) == bool(limit)
    room_for(world, 1)
    assert await world.hub.start() == "restore"


async def test_gpu_time_left_to_others_lasts_over_a_restart(world, saved):
    before = saved.gpu_seconds()
    assert before > 0
    room_for(world, 3)
    assert await world.hub.start() == "restore"
    await world.kill(saved)
    after = (await world.controller()).gpu_seconds()
    assert after > before


async def test_service_that_has_just_started_has_metrics_of_its_sessions(saved):
    def phases() -> list[float]:
        return [counted(saved.totals, "sessions", phase=phase) for phase in Phase]

    before = phases()
    saved._sessions.runtimes.clear()  # nothing has been looked at
    assert phases() == before


async def test_who_is_idle_goes_for_who_waits_and_no_sooner(world):
    idle = IdlePolicy(idle_after=900.0)
    pressure = PressurePolicy(idle, pressure_idle_after=20.0)
    decide = Decider(Guards().denials, [idle, pressure])
    controller = await world.controller(
        decide=decide, choose=partial(choose_to_go, decide)
    )
    for key in (BOB, KEY):
        await world.running(str(key), key, gpu=HELD)
        await world.reaches(controller, "running", key)
        await world.until(lambda key=key: controller.users.session(key).gpus)
    await controller.users.suspend(BOB, "bob")
    await world.reaches(controller, "suspended", BOB)
    await asyncio.sleep(300.0)  # until it is old enough to go
    assert world.phase(controller) == "running"
    room_for(world, 1)
    starting = asyncio.create_task(world.hub.start(BOB))
    await world.reaches(controller, "suspended")
    await starting
    await world.reaches(controller, "running", BOB)
    counters = controller.counters
    for cause in ("request", "pressure"):
        assert counted(counters, "suspends_total", cause=cause) == 1
