"""A person's order that cannot be begun is called off: later it would surprise."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.support.simulated import KEY

SILENT = finding(Reason.AGENT_UNTRUSTED, why="it has expired")


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("trees", "agent_unreachable"),
        ("checkpoints", "store_unreachable"),
        ("trees", "agent_untrusted"),
    ],
)
@pytest.mark.parametrize("order", ["suspend", "save"])
async def test_order_that_cannot_be_begun_is_called_off(world, part, code, order):
    controller, _ = await world.started(orphan_grace=4.0)
    back = world.node.away(part)
    if code == SILENT.code:  # as the watch of the nodes knows it
        controller.note_silent({"": SILENT})
    await getattr(controller.users, order)(KEY, "ada")
    assert controller.users.session(KEY).facts.intent == order
    view = await world.until(
        lambda: (v := controller.users.session(KEY)).failure is not None and v
    )
    assert (view.phase, view.facts.intent) == ("running", "")
    assert view.failure.code == code
    assert view.failure.told.startswith("The last attempt failed at ")
    assert controller.users.audit(KEY)[0].what == "call off"
    back()
    await asyncio.sleep(5)  # many ticks
    assert world.phase(controller) == "running"
    assert not world.node.saved


async def test_order_is_carried_out_after_a_short_silence(world):
    controller, _ = await world.started(orphan_grace=60.0)
    back = world.node.away("trees")
    await controller.users.suspend(KEY, "ada")
    await asyncio.sleep(5)
    assert controller.users.session(KEY).failure is None
    back()
    await world.reaches(controller, "suspended")


async def test_wish_to_bring_another_one_back_is_called_off_with_its_suspend(world):
    controller, _ = await world.started(orphan_grace=4.0)
    await controller.users.save(KEY, "ada", "mine")
    (point,) = await world.until(lambda: controller.users.session(KEY).kept)
    await world.until(lambda: not controller.users.session(KEY).facts.intent)
    back = world.node.away("trees")
    row = controller._sessions.row(KEY)
    await controller.users.bring_back(KEY, point.id, "ada", save_running=True)
    await world.until(lambda: controller.users.session(KEY).failure is not None)
    now = controller._sessions.row(KEY)
    assert (now.bring_back, now.intent) == ("", "")
    (kept,) = controller.users.session(KEY).kept
    assert (kept.id, kept.keeping) == (point.id, "superseded")
    assert now.checkpoint == row.checkpoint
    back()


async def test_keep_calls_off_a_suspend_that_has_not_begun(world):
    controller, _ = await world.started(orphan_grace=60.0)
    back = world.node.away("trees")
    await controller.users.suspend(KEY, "ada")
    await controller.users.keep(KEY, 3600, "ada")
    view = controller.users.session(KEY)
    assert not view.facts.intent
    back()
    await asyncio.sleep(5)
    assert world.phase(controller) == "running"
