"""The administrator's limits: what they delete, what never, and who is told."""

import asyncio
import dataclasses

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.controlplane.expiry import give_notice
from jupyterhub_gpu_reclaim.policy.retention import Retention
from tests.support.manual_clock import ManualClock
from tests.support.simulated import KEY

BOB = SessionKey("bob")


async def suspended(world, controller, key):
    await world.running("work of " + key.user, key)
    await world.reaches(controller, "running", key)
    await controller.users.suspend(key, key.user)
    await world.reaches(controller, "suspended", key)


def limited(world, **limits):
    retention = Retention(**limits)
    world.change(retention=retention)


@pytest.mark.parametrize("phase", ["suspended", "put aside"])
async def test_quota_takes_the_only_one_where_that_is_allowed(world, phase):
    controller = await world.suspended()
    if phase == "put aside":
        await controller.users.start_fresh(KEY, "ada")
    await world.kill(controller)
    limited(world, total_bytes=1, takes_current=True)
    world.give_up()
    controller = await world.controller()
    await world.until(lambda: not world.node.saved)
    await world.reaches(controller, "stopped")
    view = controller.users.session(KEY)
    assert view.checkpoint == ""
    if phase == "suspended":
        await world.until(lambda: controller.users.session(KEY).failure)
        failure = controller.users.session(KEY).failure
        assert failure.code == "saved_dropped"
        assert "quota" in failure.message
    assert await world.hub.start(KEY) == "cold"


async def test_quota_never_takes_what_is_suspended(world):
    limited(world, total_bytes=1, user_bytes=1, seconds=0.01)
    controller = await world.controller()
    await suspended(world, controller, KEY)
    await asyncio.sleep(5.0)
    assert len(world.node.saved) == 1
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")


async def test_quota_takes_what_was_put_aside_and_leaves_the_rest(world):
    limited(world, user_bytes=1)
    controller = await world.controller()
    await suspended(world, controller, BOB)
    await suspended(world, controller, KEY)
    await controller.users.start_fresh(KEY, "ada")
    await world.until(lambda: len(world.node.saved) == 1)
    assert [info.key for info, *_ in world.node.saved.values()] == [BOB]
    lines = [line for line in controller.users.audit(KEY) if line.what == "retention"]
    assert len(lines) == 1
    assert "quota" in lines[0].message


async def test_deletion_ahead_is_told_once_and_in_time(world):
    world.change(set_aside=90_000.0)
    controller = await world.controller()
    await suspended(world, controller, KEY)
    await controller.users.start_fresh(KEY, "ada")
    sessions = controller._sessions
    now = sessions.clock.now()

    def told():
        return [
            a.message for a in controller.users.audit(KEY) if a.what == "deletion ahead"
        ]

    give_notice(sessions, Retention(), 0.0)
    give_notice(sessions, Retention(), 86400.0)  # not yet
    give_notice(sessions, Retention(), 100_000.0)  # kept for less than that anyway
    assert told() == []
    sessions.clock = ManualClock(now + 4000)
    for _ in range(2):
        give_notice(sessions, Retention(), 86400.0)
    assert told() == ["What was put aside is deleted in 23 h 53 min."]
    assert "deletion ahead" in [line.what for line in controller.users.audit("ada")]


async def test_deletion_of_a_suspended_session_for_its_age_is_told(world):
    controller = await world.controller()
    await suspended(world, controller, KEY)
    sessions = controller._sessions
    (row,) = sessions.journal.checkpoints(KEY)
    sessions.clock = ManualClock(row.info.created + 100.0)
    spared = Retention(seconds=200.0)
    give_notice(sessions, spared, 150.0)
    assert controller.users.audit(KEY)[0].what != "deletion ahead"
    give_notice(sessions, dataclasses.replace(spared, takes_current=True), 150.0)
    line = controller.users.audit(KEY)[0]
    assert (line.what, line.message) == (
        "deletion ahead",
        "The only checkpoint of this session is deleted in 1 min 40 s.",
    )
