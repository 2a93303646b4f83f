"""What every agent must do, run on the real one and on each double."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import (
    EXPORT_PIECE,
    Aside,
    Event,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.contracts.agents import (
    AGENTS,
    agent_in_memory,
    agents_program,
    real_agent,
    simulated_agent,
)

__all__ = ["agent_in_memory", "agents_program", "real_agent", "simulated_agent"]

ANN, BOB = SessionKey("ann"), SessionKey("bob")


@pytest.fixture(params=AGENTS)
def node(request):
    return request.getfixturevalue(request.param)


async def last(events) -> Event:
    """The event that a stream ends with."""
    seen = [event async for event in events]
    assert all(event.step is not None for event in seen[:-1])
    assert seen[-1].step is None
    return seen[-1]


async def refusal(work) -> Reason:
    """Why an order, or a stream, is refused."""
    with pytest.raises(ReclaimError) as caught:
        await (last(work) if hasattr(work, "__aiter__") else work)
    return caught.value.reason


async def captured(node, key=ANN, checkpoint="c1") -> str:
    """A session that is captured; its incarnation."""
    name = node.run(key)
    ended = await last(node.agent.capture(name, checkpoint, 1))
    assert ended.checkpoint is not None, ended
    return name


async def released(node, key=ANN, checkpoint="c1") -> str:
    """A session of which only the checkpoint is left."""
    name = await captured(node, key, checkpoint)
    assert (await node.agent.release(name, checkpoint)).state is TreeState.GONE
    return name


async def living(node, key=None) -> dict[str, Tree]:
    """Trees by incarnation, without those of which there is only a record."""
    trees = await node.agent.trees(key)
    return {t.incarnation: t for t in trees if t.state is not TreeState.GONE}


async def stored(node) -> list[str]:
    return sorted(info.id for info in await node.agent.checkpoints())


# --- capture


async def test_capture_ends_with_its_checkpoint_and_a_stopped_tree(node):
    name = node.run(ANN)
    ended = await last(node.agent.capture(name, "c1", 3))
    info = ended.checkpoint
    assert (info.id, info.key, info.incarnation) == ("c1", ANN, name)
    assert (info.generation, info.parent) == (3, "")
    tree = await node.agent.tree(name)
    assert (tree.state, tree.checkpoint) == (TreeState.CAPTURED, "c1")
    assert tree.generation == 3
    (listed,) = await node.agent.checkpoints(ANN)
    assert (listed.id, listed.incarnation, listed.generation) == ("c1", name, 3)


async def test_capture_ordered_twice_at_once_happens_once(node):
    name = node.run(ANN)
    both = (last(node.agent.capture(name, "c1", 1)) for _ in range(2))
    one, other = await asyncio.gather(*both)
    assert one.checkpoint.id == other.checkpoint.id == "c1"
    assert await stored(node) == ["c1"]


async def test_capture_ordered_again_tells_how_it_ended(node):
    name = await captured(node)
    again = await last(node.agent.capture(name, "c1", 1))
    assert again.checkpoint.id == "c1"
    await node.agent.release(name, "c1")
    after = await last(node.agent.capture(name, "c1", 1))
    assert after.checkpoint.id == "c1"


async def test_capture_goes_on_without_a_reader(node):
    name = node.run(ANN)
    async with aclosing(node.agent.capture(name, "c1", 1)) as events:
        await anext(events)
    ended = await last(node.agent.capture(name, "c1", 1))
    assert ended.checkpoint.id == "c1"


async def test_capture_refuses_every_other_order_while_it_runs(node):
    name = node.run(ANN)
    agent = node.agent
    async with aclosing(agent.capture(name, "c1", 1)) as events:
        await anext(events)
        tree = await agent.tree(name)
        assert (tree.state, tree.checkpoint) == (TreeState.CAPTURING, "c1")
        for order in (
            agent.capture(name, "c2", 1),
            agent.restore(name, "c1"),
            agent.release(name, "c1"),
            agent.thaw(name),
            agent.kill(name),
        ):
            assert await refusal(order) is Reason.OPERATION_IN_FLIGHT
        assert (await last(events)).checkpoint.id == "c1"


async def test_capture_that_is_cancelled_leaves_a_running_tree(node):
    name = node.run(ANN)
    events = node.agent.capture(name, "c1", 1)
    await anext(events)
    await node.agent.cancel(name)
    await node.agent.cancel(name)
    assert (await last(events)).failure.code == "cancelled"
    assert (await node.agent.tree(name)).state is TreeState.RUNNING
    assert node.runs(name)
    assert await stored(node) == []
    again = await last(node.agent.capture(name, "c1", 1))
    assert again.failure.code == "cancelled"
    other = await last(node.agent.capture(name, "c2", 1))
    assert other.checkpoint.id == "c2"


async def test_capture_of_what_would_not_come_back_leaves_it_running(node):
    name = node.run_stuck(ANN)
    for attempt in ("c1", "c1", "c2"):
        ended = await last(node.agent.capture(name, attempt, 1))
        assert ended.failure.code == "would_not_return"
        assert not ended.failure.retryable
        assert (await node.agent.tree(name)).state is TreeState.RUNNING
        assert node.runs(name)
        assert await stored(node) == []


async def test_capture_of_what_does_not_run_is_refused(node):
    capture = node.agent.capture
    name = await captured(node)
    assert await refusal(capture(name, "c2", 1)) is Reason.WRONG_PHASE
    assert await refusal(capture(node.hold(ANN), "c2", 1)) is Reason.WRONG_PHASE
    assert await refusal(capture("nobody", "c2", 1)) is Reason.UNKNOWN_SESSION
    assert await stored(node) == ["c1"]


# --- release


async def test_release_without_that_checkpoint_is_refused(node):
    release = node.agent.release
    name = node.run(ANN)
    assert await refusal(release(name, "c1")) is Reason.NOT_CAPTURED
    assert await refusal(release(node.hold(BOB), "c1")) is Reason.NOT_CAPTURED
    assert await refusal(release("nobody", "c1")) is Reason.UNKNOWN_SESSION
    assert node.runs(name)
    await last(node.agent.capture(name, "c1", 1))
    assert await refusal(release(name, "c2")) is Reason.NOT_CAPTURED
    assert (await node.agent.tree(name)).state is TreeState.CAPTURED


async def test_release_repeated_is_gone_each_time(node):
    name = await captured(node)
    for _ in range(2):
        tree = await node.agent.release(name, "c1")
        assert (tree.state, tree.key) == (TreeState.GONE, ANN)
        assert tree.checkpoint == "c1"
    assert await refusal(node.agent.release(name, "c2")) is Reason.UNKNOWN_SESSION
    assert await refusal(node.agent.tree(name)) is Reason.UNKNOWN_SESSION
    assert await living(node) == {}
    assert await stored(node) == ["c1"]


# --- thaw


async def test_thaw_goes_on_and_discards_its_checkpoint(node):
    name = await captured(node)
    for _ in range(2):
        assert (await node.agent.thaw(name)).state is TreeState.RUNNING
    assert node.runs(name)
    assert await stored(node) == []
    assert await refusal(node.agent.release(name, "c1")) is Reason.NOT_CAPTURED
    late = await last(node.agent.capture(name, "c1", 1))
    assert late.failure.code == "cancelled"
    assert (await last(node.agent.capture(name, "c2", 1))).checkpoint.id == "c2"


async def test_thaw_of_what_never_ran_is_refused(node):
    assert await refusal(node.agent.thaw(node.hold(ANN))) is Reason.WRONG_PHASE
    assert await refusal(node.agent.thaw("nobody")) is Reason.UNKNOWN_SESSION


# --- naps


async def test_nap_and_wake_end_with_the_tree_each_time(node):
    name = node.run_on_gpu(ANN)
    for _ in range(2):
        tree = (await last(node.agent.nap(name))).tree
        assert (tree.incarnation, tree.state) == (name, TreeState.NAPPING)
        assert tree.nap is not None
    now = await node.agent.tree(name)
    assert (now.state, now.nap) == (tree.state, tree.nap)
    for _ in range(2):
        tree = (await last(node.agent.wake(name))).tree
        assert (tree.state, tree.nap) == (TreeState.RUNNING, None)
    assert node.runs(name)


async def test_nap_of_what_has_no_gpu_is_refused_and_leaves_it_running(node):
    name = node.run(ANN)
    failure = (await last(node.agent.nap(name))).failure
    assert (failure.code, failure.retryable) == ("gpu_unused", False)
    assert (await node.agent.tree(name)).state is TreeState.RUNNING
    assert node.runs(name)


async def test_nap_and_wake_of_what_does_not_run_are_refused(node):
    name = await captured(node)
    for order in (node.agent.nap, node.agent.wake):
        assert await refusal(order(name)) is Reason.WRONG_PHASE
        assert await refusal(order(node.hold(BOB))) is Reason.WRONG_PHASE
        assert await refusal(order("nobody")) is Reason.UNKNOWN_SESSION


async def test_nap_refuses_other_orders_while_it_begins(node):
    name = node.run_on_gpu(ANN)
    async with aclosing(node.agent.nap(name)) as events:
        await anext(events)
        assert (await node.agent.tree(name)).state is TreeState.RUNNING
        for order in (
            node.agent.wake(name),
            node.agent.capture(name, "c1", 1),
            node.agent.thaw(name),
        ):
            assert await refusal(order) is Reason.OPERATION_IN_FLIGHT
        assert (await last(events)).tree.state is TreeState.NAPPING


async def test_suspend_from_a_nap_comes_back_awake(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.nap(name))
    ended = await last(node.agent.capture(name, "c1", 1))
    assert ended.checkpoint is not None, ended
    assert (await node.agent.tree(name)).state is TreeState.CAPTURED
    await node.agent.release(name, "c1")
    ended = await last(node.agent.restore(node.hold(ANN), "c1"))
    assert ended.tree is not None, ended
    assert (ended.tree.state, ended.tree.nap) == (TreeState.RUNNING, None)


async def test_restore_that_may_nap_ends_in_a_nap_each_time(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.capture(name, "c1", 1))
    await node.agent.release(name, "c1")
    name = node.hold(ANN)
    for _ in range(2):
        tree = (await last(node.agent.restore(name, "c1", lazy=True))).tree
        assert (tree.incarnation, tree.state) == (name, TreeState.NAPPING)
        assert tree.nap is not None
    assert (await last(node.agent.capture(name, "c2", 2))).checkpoint.parent == "c1"
    await node.agent.thaw(name)
    assert (await node.agent.tree(name)).state is TreeState.NAPPING
    await last(node.agent.wake(name))
    assert node.runs(name)


async def test_restore_that_has_come_back_is_told_while_it_wakes(node):
    """Its service was away as it ended, and must not take it for one that failed."""
    name = node.run_on_gpu(ANN)
    await last(node.agent.capture(name, "c1", 1))
    await node.agent.release(name, "c1")
    name = node.hold(ANN)
    await last(node.agent.restore(name, "c1", lazy=True))
    async with aclosing(node.agent.wake(name)) as events:
        await anext(events)
        assert (await last(node.agent.restore(name, "c1"))).tree.incarnation == name
        again = node.agent.restore(name, "c2")
        assert await refusal(again) is Reason.OPERATION_IN_FLIGHT
        await last(events)
    assert node.runs(name)


async def test_restore_that_may_nap_without_a_gpu_runs(node):
    await released(node)
    ended = await last(node.agent.restore(node.hold(ANN), "c1", lazy=True))
    assert (ended.tree.state, ended.tree.nap) == (TreeState.RUNNING, None)


async def test_suspend_from_a_nap_that_is_undone_ends_in_the_nap(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.nap(name))
    await last(node.agent.capture(name, "c1", 1))
    assert (await node.agent.thaw(name)).state is TreeState.NAPPING
    await last(node.agent.wake(name))
    assert node.runs(name)


async def test_kill_of_a_napping_tree_ends_it(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.nap(name))
    assert (await node.agent.kill(name)).state is TreeState.GONE
    assert await living(node) == {}


async def test_wake_is_followed_whoever_orders_it_and_following_orders_none(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.nap(name))
    following = asyncio.ensure_future(last(node.agent.next_wake(name)))
    await asyncio.wait({following}, timeout=0.05)
    assert (await node.agent.tree(name)).state is TreeState.NAPPING
    await last(node.agent.wake(name))
    assert (await following).tree.state is TreeState.RUNNING
    assert await refusal(node.agent.next_wake("nobody")) is Reason.UNKNOWN_SESSION


# --- kill and cancel


async def test_kill_repeated_is_gone_each_time(node):
    for name in (node.run(ANN), node.hold(BOB)):
        for _ in range(2):
            assert (await node.agent.kill(name)).state is TreeState.GONE
    assert await living(node) == {}
    assert await refusal(node.agent.kill("nobody")) is Reason.UNKNOWN_SESSION


async def test_kill_of_a_captured_tree_keeps_its_checkpoint(node):
    name = await captured(node)
    assert (await node.agent.kill(name)).state is TreeState.GONE
    assert await stored(node) == ["c1"]


async def test_cancel_of_nothing_changes_nothing(node):
    name = node.run(ANN)
    await node.agent.cancel(name)
    assert node.runs(name)
    assert await refusal(node.agent.cancel("nobody")) is Reason.UNKNOWN_SESSION
    await last(node.agent.capture(name, "c1", 1))
    await node.agent.cancel(name)
    assert (await node.agent.tree(name)).state is TreeState.CAPTURED


# --- save


async def test_save_ends_with_its_checkpoint_and_a_tree_that_goes_on(node):
    name = node.run(ANN)
    ended = await last(node.agent.save(name, "c1", 3))
    info = ended.checkpoint
    assert (info.id, info.key, info.incarnation) == ("c1", ANN, name)
    assert info.generation == 3
    tree = await node.agent.tree(name)
    assert (tree.state, tree.origin) == (TreeState.RUNNING, "c1")
    assert await stored(node) == ["c1"]


async def test_save_ordered_again_tells_how_it_ended(node):
    name = node.run(ANN)
    for _ in range(2):
        ended = await last(node.agent.save(name, "c1", 1))
        assert ended.checkpoint.id == "c1"


async def test_save_is_called_off_by_a_capture(node):
    name = node.run(ANN)
    async with aclosing(node.agent.save(name, "c1", 1)) as events:
        await anext(events)
        ended = await last(node.agent.capture(name, "c2", 2))
    assert ended.checkpoint.id == "c2"
    assert await stored(node) == ["c2"]


async def test_save_is_cancelled_and_the_tree_goes_on(node):
    name = node.run(ANN)
    async with aclosing(node.agent.save(name, "c1", 1)) as events:
        await anext(events)
        await node.agent.cancel(name)
        ended = await last(node.agent.save(name, "c1", 1))
    assert ended.failure.code == Reason.CANCELLED.value
    assert await stored(node) == []
    assert (await node.agent.tree(name)).state is TreeState.RUNNING


async def test_save_of_what_is_captured_is_refused(node):
    name = await captured(node)
    refused = await refusal(node.agent.save(name, "c2", 2))
    assert refused is Reason.WRONG_PHASE


async def test_what_was_saved_is_restored_nowhere_while_it_goes_on(node):
    name = node.run(ANN)
    await last(node.agent.save(name, "c1", 1))
    held = node.hold(ANN)
    assert await refusal(node.agent.restore(held, "c1")) is Reason.CHECKPOINT_BUSY
    await node.agent.kill(name)
    ended = await last(node.agent.restore(held, "c1"))
    assert ended.tree.state is TreeState.RUNNING


# --- restore


async def test_restore_ends_with_a_running_tree_each_time(node):
    await released(node)
    name = node.hold(ANN)
    assert (await node.agent.tree(name)).state is TreeState.HOLDING
    for _ in range(2):
        ended = await last(node.agent.restore(name, "c1"))
        assert (ended.tree.state, ended.tree.incarnation) == (TreeState.RUNNING, name)
    assert await stored(node) == ["c1"]
    info = (await last(node.agent.capture(name, "c2", 2))).checkpoint
    assert (info.parent, info.incarnation) == ("c1", name)


async def test_restore_of_a_checkpoint_that_is_in_use_is_refused(node):
    name = await captured(node)
    held = node.hold(ANN)
    assert await refusal(node.agent.restore(held, "c1")) is Reason.CHECKPOINT_BUSY
    await node.agent.release(name, "c1")
    first = node.agent.restore(held, "c1")
    await anext(first)
    other = node.hold(ANN)
    assert await refusal(node.agent.restore(other, "c1")) is Reason.CHECKPOINT_BUSY
    assert await refusal(node.agent.cancel(held)) is Reason.OPERATION_IN_FLIGHT
    assert (await last(first)).tree.state is TreeState.RUNNING
    assert await refusal(node.agent.restore(other, "c1")) is Reason.CHECKPOINT_BUSY
    assert (await node.agent.tree(other)).state is TreeState.HOLDING


async def test_restore_in_a_place_that_does_not_fit_is_refused(node):
    await released(node)
    restore = node.agent.restore
    running, other = node.run(ANN), node.hold(BOB)
    assert await refusal(restore(running, "c1")) is Reason.WRONG_PHASE
    assert await refusal(restore(other, "c1")) is Reason.RENAMED
    assert await refusal(restore(other, "c2")) is Reason.CHECKPOINT_MISSING
    assert await refusal(restore("nobody", "c1")) is Reason.UNKNOWN_SESSION
    assert node.runs(running)


# --- checkpoints, trees and samples


async def test_discard_spares_the_only_image_of_a_stopped_tree(node):
    name = await captured(node)
    assert await refusal(node.agent.discard("c1")) is Reason.WRONG_PHASE
    await node.agent.release(name, "c1")
    for _ in range(2):
        await node.agent.discard("c1")
    assert await stored(node) == []


async def test_discard_of_what_a_session_came_from_waits_until_that_one_runs(node):
    """The order is late: what it went by is over when it arrives."""
    ended = await released(node)
    late = node.agent.discard("c1", runs=ended)
    assert await refusal(late) in {Reason.WRONG_PHASE, Reason.UNKNOWN_SESSION}
    assert await refusal(node.agent.discard("c1", runs="nobody")) is not None
    assert await stored(node) == ["c1"]
    await node.agent.discard("c1", runs=node.run(BOB))
    assert await stored(node) == []


async def test_word_about_a_checkpoint_is_in_the_list_until_a_later_one(node):
    await released(node)
    await released(node, BOB, "c2")

    async def asides():
        return {i.id: i.aside for i in await node.agent.checkpoints()}

    for _ in range(2):
        await node.agent.lay_aside("c1", 1234.5, word=2)
        assert await asides() == {"c1": Aside(until=1234.5), "c2": None}
    late = node.agent.lay_aside("c1", None, aside=False, word=1)
    assert await refusal(late) is Reason.FORMER_SERVICE
    await node.agent.lay_aside("c2", None, word=3)
    await node.agent.lay_aside("c1", None, aside=False, word=4)
    assert await asides() == {"c1": None, "c2": Aside(until=None)}
    missing = node.agent.lay_aside("c3", None, word=5)
    assert await refusal(missing) is Reason.CHECKPOINT_MISSING


async def test_checkpoint_is_exported_for_its_own_session_and_passphrase(node):
    await captured(node)
    words = "correct horse battery"
    head = await node.agent.export("c1", ANN, words)
    assert head.objects
    for name, length in head.objects:
        data = await node.agent.exported("c1", name, 0, EXPORT_PIECE)
        assert len(data) == min(length, EXPORT_PIECE)
        assert await node.agent.exported("c1", name, 1, 2) == data[1:3]
    for refused in (
        node.agent.export("c1", BOB, words),
        node.agent.export("c2", ANN, words),
        node.agent.exported("c1", "identity", 0, 1),
        node.agent.exported("c1", "../master.key", 0, 1),
        node.agent.exported("c2", head.objects[0][0], 0, 1),
    ):
        assert await refusal(refused) is Reason.CHECKPOINT_MISSING


async def test_identity_is_inside_the_checkpoint(node):
    await released(node)
    await node.agent.identity("c1")
    with pytest.raises(NotFound) as caught:
        await node.agent.identity("c2")
    assert caught.value.reason is Reason.CHECKPOINT_MISSING


async def test_trees_and_checkpoints_of_a_key_are_all_of_it_and_nothing_else(node):
    await released(node)
    await released(node, BOB, "c2")
    mine, held, other = node.run(ANN), node.hold(ANN), node.run(BOB)
    everything = await living(node)
    assert set(everything) == {mine, held, other}
    assert everything[other].key == BOB
    assert everything[held].state is TreeState.HOLDING
    assert set(await living(node, ANN)) == {mine, held}
    assert {tree.key for tree in await node.agent.trees(BOB)} == {BOB}
    assert await node.agent.trees(SessionKey("a", "nn")) == []
    assert await stored(node) == ["c1", "c2"]
    assert [info.id for info in await node.agent.checkpoints(ANN)] == ["c1"]


async def test_samples_are_of_sessions_with_programs(node):
    mine, _ = node.run(ANN), node.hold(BOB)
    (sample,) = await node.agent.samples()
    assert (sample.incarnation, sample.key) == (mine, ANN)


async def test_session_on_one_machine_has_no_labels_and_waits_for_nothing(node):
    assert node.agent.labels(ANN) == {}
    assert node.agent.waiting() == []
