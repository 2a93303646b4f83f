"""What every agent must do, run on the real one and on each double."""

import asyncio
from contextlib import aclosing

import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    Event,
    GoneOn,
    Mark,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.contracts.agents import AGENTS, agent_on_doubles, agents_program, real_agent

__all__ = ["agent_on_doubles", "agents_program", "real_agent"]

ANN, BOB = SessionKey("ann"), SessionKey("bob")


@pytest.fixture(params=AGENTS)
def node(request):
    return request.getfixturevalue(request.param)


async def last(events) -> Event:
    seen = [event async for event in events]
    assert all(event.step is not None for event in seen[:-1])
    assert seen[-1].step is None
    return seen[-1]


async def refusal(work) -> Reason:
    with pytest.raises(ReclaimError) as caught:
        await (last(work) if hasattr(work, "__aiter__") else work)
    return caught.value.reason


async def captured(node, key=ANN, checkpoint="c1") -> str:
    name = node.run(key)
    ended = await last(node.agent.follow(name, orders.Capture(checkpoint, 1)))
    assert ended.checkpoint is not None, ended
    return name


async def released(node, key=ANN, checkpoint="c1") -> str:
    name = await captured(node, key, checkpoint)
    await node.agent.order(name, orders.Release(checkpoint))
    return name


async def living(node, key=None) -> dict[str, Tree]:
    return {tree.incarnation: tree for tree in await node.agent.trees(key)}


async def stored(node) -> list[str]:
    return sorted(info.id for info in await node.agent.checkpoints())


# --- capture


async def test_capture_ends_with_its_checkpoint_and_a_stopped_tree(node):
    name = node.run(ANN)
    for _ in range(2):
        ended = await last(node.agent.follow(name, orders.Capture("c1", 3)))
        info = ended.checkpoint
        assert (info.id, info.key, info.incarnation) == ("c1", ANN, name)
        assert (info.generation, info.parent) == (3, "")
    tree = await node.agent.tree(name)
    assert (tree.state, tree.checkpoint) == (TreeState.CAPTURED, "c1")
    assert tree.generation == 3
    (listed,) = await node.agent.checkpoints(ANN)
    assert (listed.id, listed.incarnation, listed.generation) == ("c1", name, 3)


async def test_captured_tree_takes_no_order_of_a_running_one(node):
    """Nor one that waits or that is not known; a kill keeps the checkpoint."""
    agent = node.agent
    name = node.run(ANN)
    await agent.order(name, orders.Cancel())  # there is nothing to cancel
    assert node.runs(name)
    await last(agent.follow(name, orders.Capture("c1", 1)))
    for tree in (name, node.hold(BOB)):
        for order in (
            agent.follow(tree, orders.Capture("c2", 1)),
            agent.follow(tree, orders.Save("c2", 2)),
            agent.follow(tree, orders.Nap()),
            agent.follow(tree, orders.Wake()),
        ):
            assert await refusal(order) is Reason.WRONG_PHASE
    assert (
        await refusal(agent.order(node.hold(ANN), orders.Thaw())) is Reason.WRONG_PHASE
    )
    for order in (
        agent.follow("nobody", orders.Capture("c2", 1)),
        agent.order("nobody", orders.Release("c1")),
        agent.order("nobody", orders.Thaw()),
        agent.follow("nobody", orders.Nap()),
        agent.follow("nobody", orders.Wake()),
        agent.follow("nobody", orders.NextWake()),
        agent.order("nobody", orders.Kill()),
        agent.order("nobody", orders.Cancel()),
        agent.follow("nobody", orders.Restore("c1")),
    ):
        assert await refusal(order) is Reason.UNKNOWN_SESSION
    assert await stored(node) == ["c1"]
    await agent.order(name, orders.Cancel())
    assert (await agent.tree(name)).state is TreeState.CAPTURED
    await agent.order(name, orders.Kill())
    assert await stored(node) == ["c1"]


async def test_capture_goes_on_without_a_reader_and_refuses_every_other_order(node):
    """Whoever orders it again follows it, however many do: it happens once."""
    node.slow_down()
    name = node.run(ANN)
    agent = node.agent
    async with aclosing(agent.follow(name, orders.Capture("c1", 1))) as events:
        await anext(events)
        tree = await agent.tree(name)
        assert (tree.state, tree.checkpoint) == (TreeState.CAPTURING, "c1")
        for order in (
            agent.follow(name, orders.Capture("c2", 1)),
            agent.follow(name, orders.Restore("c1")),
            agent.order(name, orders.Release("c1")),
            agent.order(name, orders.Thaw()),
            agent.order(name, orders.Kill()),
        ):
            assert await refusal(order) is Reason.OPERATION_IN_FLIGHT
    both = (last(agent.follow(name, orders.Capture("c1", 1))) for _ in range(2))
    one, other = await asyncio.gather(*both)
    assert one.checkpoint.id == other.checkpoint.id == "c1"
    assert await stored(node) == ["c1"]


async def test_capture_that_is_cancelled_leaves_a_running_tree(node):
    node.slow_down()
    name = node.run(ANN)
    events = node.agent.follow(name, orders.Capture("c1", 1))
    await anext(events)
    await node.agent.order(name, orders.Cancel())
    await node.agent.order(name, orders.Cancel())
    assert (await last(events)).failure.code == "cancelled"
    assert (await node.agent.tree(name)).state is TreeState.RUNNING
    assert node.runs(name)
    assert await stored(node) == []
    again = await last(node.agent.follow(name, orders.Capture("c1", 1)))
    assert again.failure.code == "cancelled"
    other = await last(node.agent.follow(name, orders.Capture("c2", 1)))
    assert other.checkpoint.id == "c2"


async def test_capture_of_what_would_not_come_back_leaves_it_running(node):
    name = node.run_stuck(ANN)
    for attempt in ("c1", "c1", "c2"):
        ended = await last(node.agent.follow(name, orders.Capture(attempt, 1)))
        assert ended.failure.code == "would_not_return"
        assert not ended.failure.retryable
        assert (await node.agent.tree(name)).state is TreeState.RUNNING
        assert node.runs(name)
        assert await stored(node) == []


# --- release


async def test_release_needs_that_checkpoint_and_is_gone_each_time(node):
    """And a discard spares what a session may need.

    That is the only image of a stopped tree. An order for what another runs from may
    be late: what it went by is over when it arrives.
    """
    order = node.agent.order

    def release(name, checkpoint):
        return order(name, orders.Release(checkpoint))

    def discard(checkpoint, **more):
        return order(checkpoint, orders.Discard(**more))

    name = node.run(ANN)
    assert await refusal(release(name, "c1")) is Reason.NOT_CAPTURED
    assert await refusal(release(node.hold(BOB), "c1")) is Reason.NOT_CAPTURED
    assert node.runs(name)
    await last(node.agent.follow(name, orders.Capture("c1", 1)))
    assert await refusal(release(name, "c2")) is Reason.NOT_CAPTURED
    assert (await node.agent.tree(name)).state is TreeState.CAPTURED
    assert await refusal(discard("c1")) is Reason.WRONG_PHASE
    for _ in range(2):
        await release(name, "c1")
    assert await refusal(release(name, "c2")) is Reason.UNKNOWN_SESSION
    assert await refusal(node.agent.tree(name)) is Reason.UNKNOWN_SESSION
    assert await living(node, ANN) == {}
    assert await stored(node) == ["c1"]
    again = await last(node.agent.follow(name, orders.Capture("c1", 1)))
    assert again.checkpoint.id == "c1"
    late = await refusal(discard("c1", runs=name))
    assert late in {Reason.WRONG_PHASE, Reason.UNKNOWN_SESSION}
    assert await refusal(discard("c1", runs="nobody")) is not None
    assert await stored(node) == ["c1"]
    await discard("c1", runs=node.run(BOB))
    assert await stored(node) == []
    await discard("c1")


# --- thaw


async def test_thaw_goes_on_and_discards_its_checkpoint(node):
    name = await captured(node)
    for _ in range(2):
        await node.agent.order(name, orders.Thaw())
        assert (await node.agent.tree(name)).state is TreeState.RUNNING
    assert node.runs(name)
    assert await stored(node) == []
    assert (
        await refusal(node.agent.order(name, orders.Release("c1")))
        is Reason.NOT_CAPTURED
    )
    late = await last(node.agent.follow(name, orders.Capture("c1", 1)))
    assert late.failure.code == "cancelled"
    assert (
        await last(node.agent.follow(name, orders.Capture("c2", 1)))
    ).checkpoint.id == "c2"


# --- naps


async def test_nap_and_wake_end_with_the_tree_each_time(node):
    """A wake is followed, whoever orders it; to follow one orders none."""
    name = node.run_on_gpu(ANN)
    for _ in range(2):
        tree = (await last(node.agent.follow(name, orders.Nap()))).tree
        assert (tree.incarnation, tree.state) == (name, TreeState.NAPPING)
        assert tree.nap is not None
    now = await node.agent.tree(name)
    assert (now.state, now.nap) == (tree.state, tree.nap)
    following = asyncio.ensure_future(last(node.agent.follow(name, orders.NextWake())))
    await asyncio.wait({following}, timeout=0.05)
    assert (await node.agent.tree(name)).state is TreeState.NAPPING
    for _ in range(2):
        tree = (await last(node.agent.follow(name, orders.Wake()))).tree
        assert (tree.state, tree.nap) == (TreeState.RUNNING, None)
    assert (await following).tree.state is TreeState.RUNNING
    assert node.runs(name)
    await last(node.agent.follow(name, orders.Nap()))
    await node.agent.order(name, orders.Kill())
    assert await living(node) == {}


async def test_nap_of_what_has_no_gpu_is_refused_and_leaves_it_running(node):
    name = node.run(ANN)
    failure = (await last(node.agent.follow(name, orders.Nap()))).failure
    assert (failure.code, failure.retryable) == ("gpu_unused", False)
    assert (await node.agent.tree(name)).state is TreeState.RUNNING
    assert node.runs(name)


async def test_orders_wait_for_the_end_of_a_nap_that_begins(node):
    node.slow_down()
    name = node.run_on_gpu(ANN)
    async with aclosing(node.agent.follow(name, orders.Nap())) as events:
        await anext(events)
        assert (await node.agent.tree(name)).state is TreeState.RUNNING
        refused = await refusal(node.agent.order(name, orders.Thaw()))
        assert refused is Reason.OPERATION_IN_FLIGHT
        wakes = asyncio.create_task(last(node.agent.follow(name, orders.Wake())))
        assert (await last(events)).tree.state is TreeState.NAPPING
    assert (await wakes).tree.state is TreeState.RUNNING


async def test_suspend_from_a_nap_is_undone_to_the_nap_and_comes_back_awake(node):
    name = node.run_on_gpu(ANN)
    await last(node.agent.follow(name, orders.Nap()))
    await last(node.agent.follow(name, orders.Capture("c1", 1)))
    await node.agent.order(name, orders.Thaw())
    assert (await node.agent.tree(name)).state is TreeState.NAPPING
    ended = await last(node.agent.follow(name, orders.Capture("c2", 2)))
    assert ended.checkpoint is not None, ended
    assert (await node.agent.tree(name)).state is TreeState.CAPTURED
    await node.agent.order(name, orders.Release("c2"))
    name = node.hold(ANN)
    ended = await last(node.agent.follow(name, orders.Restore("c2")))
    assert ended.tree is not None, ended
    assert (ended.tree.state, ended.tree.nap) == (TreeState.RUNNING, None)
    assert node.runs(name)


async def test_restore_that_has_come_back_is_told_while_it_wakes(node):
    """Its service was away as it ended, and must not take it for one that failed."""
    node.slow_down()
    name = node.run_on_gpu(ANN)
    await last(node.agent.follow(name, orders.Capture("c1", 1)))
    await node.agent.order(name, orders.Release("c1"))
    name = node.hold(ANN)
    await last(node.agent.follow(name, orders.Restore("c1")))
    await last(node.agent.follow(name, orders.Nap()))
    async with aclosing(node.agent.follow(name, orders.Wake())) as events:
        await anext(events)
        assert (
            await last(node.agent.follow(name, orders.Restore("c1")))
        ).tree.incarnation == name
        again = node.agent.follow(name, orders.Restore("c2"))
        assert await refusal(again) is Reason.OPERATION_IN_FLIGHT
        await last(events)
    assert node.runs(name)


# --- kill and cancel


async def test_kill_repeated_finds_nothing_to_end(node):
    for name in (node.run(ANN), node.hold(BOB)):
        await node.agent.order(name, orders.Kill())
        with pytest.raises(NotFound):
            await node.agent.order(name, orders.Kill())
    assert await living(node) == {}


# --- save


async def test_save_ends_with_its_checkpoint_and_a_tree_that_goes_on(node):
    """It is restored nowhere while that tree goes on."""
    name = node.run(ANN)
    for _ in range(2):
        ended = await last(
            node.agent.follow(name, orders.Save("c1", 3, name="before Monday"))
        )
        info = ended.checkpoint
        assert (info.id, info.key, info.incarnation) == ("c1", ANN, name)
        assert (info.generation, info.name) == (3, "before Monday")
    assert [each.name for each in await node.agent.checkpoints()] == [info.name]
    tree = await node.agent.tree(name)
    assert (tree.state, tree.origin) == (TreeState.RUNNING, "c1")
    assert await stored(node) == ["c1"]
    held = node.hold(ANN)
    assert (
        await refusal(node.agent.follow(held, orders.Restore("c1")))
        is Reason.CHECKPOINT_BUSY
    )
    assert node.runs(name)
    await node.agent.order(name, orders.Kill())
    ended = await last(node.agent.follow(held, orders.Restore("c1")))
    assert ended.tree.state is TreeState.RUNNING


async def test_save_is_cancelled_or_called_off_by_a_capture(node):
    node.slow_down()
    name = node.run(ANN)
    async with aclosing(node.agent.follow(name, orders.Save("c1", 1))) as events:
        await anext(events)
        await node.agent.order(name, orders.Cancel())
        ended = await last(node.agent.follow(name, orders.Save("c1", 1)))
    assert ended.failure.code == Reason.CANCELLED.value
    assert await stored(node) == []
    assert (await node.agent.tree(name)).state is TreeState.RUNNING
    async with aclosing(node.agent.follow(name, orders.Save("c2", 1))) as events:
        await anext(events)
        ended = await last(node.agent.follow(name, orders.Capture("c3", 2)))
    assert ended.checkpoint.id == "c3"
    assert await stored(node) == ["c3"]


# --- restore


async def test_restore_ends_with_a_running_tree_each_time(node):
    await released(node)
    name = node.hold(ANN)
    assert (await node.agent.tree(name)).state is TreeState.HOLDING
    for _ in range(2):
        ended = await last(node.agent.follow(name, orders.Restore("c1")))
        assert (ended.tree.state, ended.tree.incarnation) == (TreeState.RUNNING, name)
    assert await stored(node) == ["c1"]
    info = (await last(node.agent.follow(name, orders.Capture("c2", 2)))).checkpoint
    assert (info.parent, info.incarnation) == ("c1", name)


async def test_restore_is_refused_where_it_does_not_fit_and_of_what_is_in_use(node):
    node.slow_down()

    def restore(name, checkpoint):
        return node.agent.follow(name, orders.Restore(checkpoint))

    name = await captured(node)
    held = node.hold(ANN)
    assert await refusal(restore(held, "c1")) is Reason.CHECKPOINT_BUSY
    await node.agent.order(name, orders.Release("c1"))
    running = node.run(ANN)
    assert await refusal(restore(running, "c1")) is Reason.WRONG_PHASE
    assert await refusal(restore(node.hold(BOB), "c1")) is Reason.RENAMED
    assert await refusal(restore(held, "c2")) is Reason.CHECKPOINT_MISSING
    assert node.runs(running)
    other = node.hold(ANN)  # before, as this takes a while beside other work
    first = restore(held, "c1")
    await anext(first)
    assert await refusal(restore(other, "c1")) is Reason.CHECKPOINT_BUSY
    assert (
        await refusal(node.agent.order(held, orders.Cancel()))
        is Reason.OPERATION_IN_FLIGHT
    )
    ended = await last(first)
    assert (ended.tree.state, ended.tree.nap) == (TreeState.RUNNING, None)
    assert await refusal(restore(other, "c1")) is Reason.CHECKPOINT_BUSY
    assert (await node.agent.tree(other)).state is TreeState.HOLDING


# --- checkpoints, trees and samples


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
    await check_words(node)
    await check_identity(node)


async def check_words(node) -> None:
    """A word about a checkpoint is in the list until a later one."""

    async def marks():
        return {i.id: i.mark for i in await node.agent.checkpoints()}

    soon, left = Mark(aside=Aside(until=1234.5)), Mark(aside=Aside(until=None))
    back = Mark(gone_on=GoneOn(incarnation="i2", since=1234.5))
    for _ in range(2):
        await node.agent.order("c1", orders.Mark(soon, 2))
        assert await marks() == {"c1": soon, "c2": Mark()}
    late = node.agent.order("c1", orders.Mark(Mark(), 1))
    assert await refusal(late) is Reason.FORMER_SERVICE
    await node.agent.order("c2", orders.Mark(left, 3))
    await node.agent.order("c1", orders.Mark(Mark(), 4))
    assert await marks() == {"c1": Mark(), "c2": left}
    await node.agent.order("c1", orders.Mark(back, 5))
    assert await marks() == {"c1": back, "c2": left}
    words = {i.id: i.word for i in await node.agent.checkpoints()}
    assert words["c1"] > words["c2"] > (0, 0)
    missing = node.agent.order("c3", orders.Mark(left, 6))
    assert await refusal(missing) is Reason.CHECKPOINT_MISSING


async def check_identity(node) -> None:
    await node.agent.identity("c1")
    with pytest.raises(NotFound) as caught:
        await node.agent.identity("c3")
    assert caught.value.reason is Reason.CHECKPOINT_MISSING


async def test_samples_are_of_sessions_with_programs(node):
    mine, _ = node.run(ANN), node.hold(BOB)
    (sample,) = await node.agent.samples()
    assert (sample.incarnation, sample.key) == (mine, ANN)


async def test_session_on_one_machine_has_no_labels_and_waits_for_nothing(node):
    assert node.agent.labels(ANN) == {}
    assert node.agent.waiting() == []
