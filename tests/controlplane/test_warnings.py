"""A warning from its user's side: given, told, taken back; the look before the end."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.models import Decision, KernelSample
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle for 31 min.")
BUSY = Decision(reclaim=False, code="kernel_busy", message="Kernel a is busy.")
KERNEL = KernelSample(id="k", name="k", execution_state="busy", last_activity=0.0)


def _unless_busy(view, now):
    usage = view.usage
    return [BUSY] if usage is None or usage.busy_kernel else [IDLE]


@pytest.fixture
def warned(world):
    async def warn(decide=None, **settings):
        world.change(**settings)
        await world.running("tensors")
        world.verdict = IDLE
        more = {"decide": decide} if decide else {}
        controller = await world.controller(**more)
        await world.reaches(controller, "warned")
        return controller

    return warn


async def test_warned_session_that_is_used_is_told_with_the_next_sample(world, warned):
    controller = await warned(_unless_busy, warn_for=600.0)
    world.change(tick_interval=600.0)
    await world.kill(controller)
    controller = await world.controller(decide=_unless_busy)
    while controller.users.session(KEY).suspends_at is None:
        await controller.users.opt_out(KEY, False, "root")  # has a look: ticks are rare
        await asyncio.sleep(0.1)
    world.node.says = {"kernels": [KERNEL]}
    await world.reaches(controller, "running")
    line = controller.users.audit(KEY)[0]
    assert (line.what, line.code, line.message) == (
        "stays",
        "kernel_busy",
        "Kernel a is busy.",
    )


async def test_warned_session_after_a_restart_is_warned_anew_and_told(world, warned):
    await world.kill(await warned(warn_for=600.0))
    controller = await world.controller()
    changes = controller.users.changes()
    while (view := await anext(changes)).suspends_at is None:
        pass
    await changes.aclose()
    assert view.phase == "warned"
    assert [line.what for line in controller.users.audit(KEY)].count("warned") == 2


async def test_audit_says_why_a_session_was_warned_and_suspended(world, warned):
    controller = await warned(warn_for=20.0)
    await world.reaches(controller, "suspended")
    lines = {line.what: line for line in controller.users.audit(KEY)}
    assert lines["suspend"].code == "idle"
    assert lines["suspend"].message == "Idle for 31 min."
    assert lines["warned"].message == (
        "Idle for 31 min. It is suspended in 20 s unless somebody uses it."
    )


async def test_suspend_of_a_session_whose_node_is_silent_is_not_begun(world, warned):
    """The others' answers are no look at this one: what is known of it is old."""
    controller = await warned(sample_interval=60.0, warn_for=20.0)
    (incarnation,) = world.node.places
    world.node.says_of[incarnation] = None
    await asyncio.sleep(40.0)
    assert world.phase(controller) == "warned"
    assert [line.what for line in controller.users.audit(KEY)].count("suspend") == 0
    world.node.says_of.clear()
    await world.reaches(controller, "suspended")
