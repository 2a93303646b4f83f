"""A scheduled job of a suspended session: told, and its session resumed in time."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.controlplane.decide.jobs import AHEAD
from tests.support.simulated import KEY


async def suspended(world, due, **settings):
    """A session that its user suspends, with a job due in so many seconds."""
    world.node.says = {"job_due": world.now() + due}
    controller, _ = await world.started(**settings)
    await world.until(lambda: controller.users.session(KEY).usage is not None)
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    return controller


def why(controller):
    return controller.users.session(KEY).facts.suspension.why


async def test_session_is_resumed_before_its_job_is_due_after_a_restart_too(world):
    controller = await suspended(world, AHEAD + 30, wake_for_jobs="wake")
    assert why(controller).startswith("You suspended it. It is resumed for its sched")
    await world.kill(controller)
    controller = await world.controller()
    assert "It is resumed for its scheduled job" in why(controller)
    assert world.phase(controller) == "suspended"
    await world.reaches(controller, "running")
    assert world.now() < world.node.says["job_due"]
    (line,) = [
        line for line in controller.users.audit(KEY) if line.what == "ask to resume"
    ]
    assert line.message == "A scheduled job is due."


async def test_session_that_is_not_woken_says_that_its_job_waits(world):
    controller = await suspended(world, AHEAD - 1)
    await asyncio.sleep(AHEAD)
    assert world.phase(controller) == "suspended"
    assert "runs only once the session is back" in why(controller)


@pytest.mark.parametrize("due", [0.0, None])
async def test_session_without_a_job_says_nothing_of_one(world, due):
    controller = await suspended(world, 0, wake_for_jobs="wake")
    await controller.users.resume(KEY, "ada")
    await world.reaches(controller, "running")
    world.node.says = {"job_due": due}

    def told():
        usage = controller.users.session(KEY).usage  # none right after the return
        return usage is not None and usage.job_due == due

    await world.until(told)
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    await asyncio.sleep(5.0)
    assert world.phase(controller) == "suspended"
    assert why(controller) == "You suspended it."
