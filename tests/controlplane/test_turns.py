"""Nobody waits for the sessions of somebody else: turns on each node, for each user."""

import asyncio

from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey

A, B, C = SessionKey("eve", "a"), SessionKey("eve", "b"), SessionKey("ada", "c")


async def held(world, *keys: SessionKey, captures: int = 2):
    """Those sessions are being saved, which does not end; beside them runs C."""
    world.change(captures=captures)
    world.node.hold_at, world.node.holds = "dump", {key.server for key in keys}
    for key in (*keys, C):
        await world.running("work", key)
    controller = await world.controller()
    for key in (*keys, C):
        await world.reaches(controller, "running", key)
    for key in keys:
        await controller.users.suspend(key, "eve")
        await world.reaches(controller, "suspending", key)
    return controller


async def is_suspended(world, controller) -> None:
    """C, though others are being saved for ever."""
    await controller.users.suspend(C, "ada")
    await world.reaches(controller, "suspended", C)


async def test_one_users_sessions_take_one_turn_while_another_waits(world):
    controller = await held(world, A, B)
    await is_suspended(world, controller)
    assert world.phase(controller, A) == world.phase(controller, B) == "suspending"


async def test_no_more_are_saved_at_once_where_nobody_else_waits(world):
    controller = await held(world, A, captures=1)
    await world.running("work", B)
    await world.reaches(controller, "running", B)
    await controller.users.suspend(B, "eve")
    await asyncio.sleep(10.0)
    assert world.phase(controller, B) == "running"


async def test_other_nodes_do_not_wait(world):
    controller = await held(world, A, captures=1)
    controller._sessions.update(A, node="n1")
    await is_suspended(world, controller)


async def test_a_session_that_was_stopped_holds_no_turn(world):
    controller = await held(world, A, captures=1)
    (place,) = world.node.living(A)
    # The Hub has ended it by itself; its agent waits for what does not answer.
    await controller.stopped(Placement(key=A, incarnation=place.incarnation))
    await is_suspended(world, controller)


async def test_a_drain_goes_past_it(world):
    controller = await held(world, A, B)
    controller.nodes.drain("", DrainOrder(), "root")
    await world.reaches(controller, "suspended", C)
    (report,) = controller.nodes.drains()
    assert not report.ended
    assert {each.key for each in report.sessions if each.state != "saved"} == {A, B}
