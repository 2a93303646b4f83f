"""The administrator's limits: what they delete, what never, and who is told."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.policy.retention import Retention
from tests.orchestrator.conftest import KEY

BOB = SessionKey("bob")


async def suspended(world, controller, key):
    await world.running("work of " + key.user, key)
    await world.until(lambda: world.phase(controller, key) == "running")
    await controller.suspend(key, key.user)
    await world.until(lambda: world.phase(controller, key) == "suspended")


def limited(world, **limits):
    retention = Retention(**limits)
    world.settings = dataclasses.replace(world.settings, retention=retention)


@pytest.mark.parametrize("phase", ["suspended", "put aside"])
async def test_quota_takes_the_only_one_where_that_is_allowed(world, phase):
    limited(world, total_bytes=1, takes_current=True)
    await suspended_without_limits(world)
    controller = await world.controller()
    if phase == "put aside":
        await controller.start_fresh(KEY, "ada")
    await world.until(lambda: not world.node.saved)
    await world.until(lambda: world.phase(controller) == "stopped")
    view = controller.session(KEY)
    assert view.checkpoint == ""
    if phase == "suspended":
        await world.until(lambda: controller.session(KEY).failure)
        failure = controller.session(KEY).failure
        assert failure.code == "saved_dropped"
        assert "quota" in failure.message
    assert await world.hub.start(KEY) == "cold"


async def suspended_without_limits(world):
    limits = world.settings
    world.settings = dataclasses.replace(limits, retention=Retention())
    controller = await world.controller()
    await suspended(world, controller, KEY)
    await world.kill(controller)
    world.settings = limits


async def test_quota_never_takes_what_is_suspended(world):
    limited(world, total_bytes=1, user_bytes=1, seconds=0.01, generations=1)
    controller = await world.controller()
    await suspended(world, controller, KEY)
    await asyncio.sleep(0.3)
    assert len(world.node.saved) == 1
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")


async def test_quota_takes_what_was_put_aside_and_leaves_the_rest(world):
    limited(world, user_bytes=1)
    controller = await world.controller()
    await suspended(world, controller, BOB)
    await suspended(world, controller, KEY)
    await controller.start_fresh(KEY, "ada")
    await world.until(lambda: len(world.node.saved) == 1)
    assert [info.key for info, _ in world.node.saved.values()] == [BOB]
    lines = [line for line in controller.audit(KEY) if line.what == "retention"]
    assert len(lines) == 1
    assert "quota" in lines[0].message
