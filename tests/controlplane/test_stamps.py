"""Stamps: the term of the service that orders a capture, and its number there."""

from __future__ import annotations

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from tests.controlplane.conftest import DELETED, KEY


async def holding(world):
    """A controller on a journal that it has taken."""
    journal = Journal(world.url)
    assert journal.take()
    return await world.controller(journal)


async def running(world):
    await world.running("work")
    controller = await holding(world)
    await world.until(lambda: world.phase(controller) == "running")
    return controller


async def suspend(world, controller):
    """Suspend it; what was saved."""
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return world.node.saved[controller.users.session(KEY).checkpoint][0]


async def journal_lost(world, controller):
    await world.kill(controller)
    world.url = world.url.replace("journal.sqlite", "empty.sqlite")
    return await holding(world)


def change(world, info, **changes):
    """Another checkpoint beside it; or the same one, if its id is not among these."""
    changed = msgspec.structs.replace(info, **changes)
    world.node.saved[changed.id] = changed, world.node.saved[info.id][1]
    return changed


async def test_term_is_above_all_in_the_store_though_no_agent_knows_of_it(world):
    """The journal is lost, together with the state folders of all agents."""
    first = await running(world)
    info = change(world, await suspend(world, first), term=5)
    second = await journal_lost(world, first)
    await world.until(lambda: world.phase(second) == "suspended")
    assert second._sessions.journal.term == 6
    await second.users.resume(KEY, "ada")
    await world.until(lambda: world.phase(second) == "running")
    assert (await suspend(world, second)).stamp > info.stamp


async def test_term_of_the_store_is_no_higher_one_for_who_has_given_it_out(world):
    controller = await running(world)
    await suspend(world, controller)
    await controller._starts._agent.checkpoints()
    assert controller._sessions.journal.term == 1


async def test_term_that_no_service_can_have_had_orders_nothing(world, caplog):
    first = await running(world)
    info = change(world, await suspend(world, first), term=5)
    change(world, info, id="ckpt-wrong", term=1 << 40)
    second = await journal_lost(world, first)
    await world.until(lambda: world.phase(second) == "suspended")
    assert second._sessions.row(KEY).checkpoint == info.id
    assert second._sessions.row(KEY).stamp == info.stamp
    assert second._sessions.journal.checkpoint("ckpt-wrong").stamp == (0, 1)
    assert second._sessions.journal.term == 6
    assert str(1 << 40) in caplog.text


@pytest.mark.parametrize("whose", ["agent", "store"])
async def test_order_to_delete_that_is_taken_before_the_term_rises_is_carried_out(
    world, whose
):
    """The journal is older than what is to be deleted, and does not know that yet."""
    first = await running(world)
    info = await suspend(world, first)
    change(world, info, id="ckpt-later", incarnation="later", term=5, generation=9)
    if whose == "agent":
        await world.node.terms.hear(Term(number=5, holder="x"), order=False)
    world.change(tick_interval=600.0)
    second = await journal_lost(world, first)
    world.hub.pointers.pop(KEY, None)
    await second.forget(DELETED)
    await world.until(lambda: not second._deletions.pending_keys())
    assert world.node.saved == {}


async def test_number_of_a_capture_that_has_failed_is_not_given_out_again(world):
    sessions = (await running(world))._sessions
    assert [sessions.next_generation(KEY) for _ in range(3)] == [1, 2, 3]
    assert sessions.highest_generation(KEY) == 3
