"""Stamps: the term of the service that orders a capture, and its number there."""

from tests.support.simulated import DELETED, KEY


async def test_term_is_above_all_in_the_store_though_no_agent_knows_of_it(world):
    """The journal is lost, together with the state folders of all agents."""
    first, _ = await world.started()
    older = await world.suspend(first)
    world.node.copy(older, term=5)
    world.node.machine.term = b""
    second = await world.journal_lost(first)
    await world.reaches(second, "suspended")
    assert second._sessions.journal.term == 6
    await second.users.resume(KEY, "ada")
    await world.reaches(second, "running")
    newer = await world.suspend(second)
    assert world.node.saved[newer].info.stamp > world.node.saved[older].info.stamp


async def test_term_of_the_store_is_no_higher_one_for_who_has_given_it_out(world):
    controller = await world.suspended()
    await controller._sessions.agent.checkpoints()
    assert controller._sessions.journal.term == 1


async def test_order_to_delete_that_is_taken_before_the_term_rises_is_carried_out(
    world,
):
    """The journal is older than what is to be deleted, and does not know that yet."""
    first, _ = await world.started()
    saved = await world.suspend(first)
    later = {"id": "later", "incarnation": "later", "term": 5, "generation": 9}
    world.node.copy(saved, **later)
    world.change(tick_interval=600.0)
    second = await world.journal_lost(first)
    await second.forget(DELETED)
    await world.until(lambda: not second._deletions.pending_keys())
    assert not world.node.saved


async def test_number_of_a_capture_that_has_failed_is_not_given_out_again(world):
    sessions = (await world.started())[0]._sessions
    assert [sessions.next_generation(KEY) for _ in range(3)] == [1, 2, 3]
    assert sessions.highest_generation(KEY) == 3
