"""Naps of a real session by the workflow itself; the cards are doubles.

They have no room, or others have it: for the session's memory, and at its wake.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.models import (
    CardShortage,
    Event,
    Failure,
    GpuSample,
    Shortage,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.nap import wakers as wakers_module
from jupyterhub_gpu_reclaim.node.nap.inputs import ENDED
from jupyterhub_gpu_reclaim.node.nap.wakers import Wakers
from jupyterhub_gpu_reclaim.node.operations.card_room import CardRoom
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.operations.operations import Operation, TimeLimits
from jupyterhub_gpu_reclaim.node.operations.records import NapStage
from jupyterhub_gpu_reclaim.node.requirements import GpuCard, Gpus, GpuUse
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import capture, save
from jupyterhub_gpu_reclaim.node.workflows import nap as workflow
from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
from tests.support import gpu
from tests.support.agent import goes_on, wait_for


class FullCards:
    """The session's program has a card; nothing more is known, and nothing is done.

    Its memory has no room: neither on the machine, nor, until ``free``, on the card.
    """

    free = False

    def __init__(self, process: processes.Process, count: int) -> None:
        self._process, self._count = process, count

    def survey(self, snapshot) -> Survey:
        return Survey(users=(self._process,))

    def findings(self, survey, snapshot) -> list:
        return []

    def without_memory(self, survey) -> list[processes.Process]:
        return []

    def to_stop(self, survey, snapshot) -> list[processes.Process]:
        return [self._process]

    def describe(self, survey) -> Gpus:
        pid = self._process.ns_pid
        return Gpus(
            driver="580",
            cards=[GpuCard(uuid="a" * 32, name="Card")],
            users=[pid],
            uses=[GpuUse(pid=pid, uuid="a" * 32, bytes=self._count)],
        )

    def empty(self, look, survey, limit, cancel, standing) -> None:
        standing()
        processes.send(self._process, signal.SIGSTOP)

    room, limits = CardRoom(), TimeLimits(room=0.0)

    def claim(self, gpus, snapshot, claim, waker) -> Shortage | None:
        if self.free:
            return None
        card = CardShortage(uuid="a" * 32, name="Card", needed=1 << 30, free=0)
        return Shortage(waited=0.0, place=1, cards=[card])

    def fill(self, gpus, limit, snapshot, cancel, claim) -> None:
        if not self.free:
            raise ReclaimError(
                Reason.GPU_MEMORY, card="Card", needed="1 GiB", free="0 B"
            )


def tools_of(recovery, cards, client=None) -> WorkflowTools:
    return dataclasses.replace(recovery.tools, client=client, accelerator=cards)


async def run(recovery, place, cards, kind: str, client=None) -> ReclaimError | None:
    """A nap or a wake of a real session, with those cards; its error."""
    tools = tools_of(recovery, cards, client)
    session = recovery.placements.find(place.incarnation)
    operation = Operation(kind, session.key, "")
    work = (
        workflow.Nap(tools, session, operation)
        if kind == "nap"
        else workflow.Wake(tools, session, operation, why="")
    )
    recovery.operations.begin(place.incarnation, operation, lambda _: work.run())
    await operation.wait()
    return operation.error


async def test_nap_that_the_machine_has_no_memory_for_is_refused_untouched(
    recovery, counter
):
    cards = FullCards(counter.tree.server, 1 << 60)
    error = await run(recovery, counter, cards, "nap")
    assert error.reason is Reason.NOT_ENOUGH_MEMORY
    assert recovery.tools.records.list() == []
    assert goes_on(counter)


#: ``sleep 1001`` has started ``sleep 1002``, as a pool for compilers its workers.
POOL = """
sh -c 'sleep 1002 & exec sleep 1001' &
while :; do echo x; sleep 0.05; done
"""


class PoolOnCard(FullCards):
    """What holds the card besides: a pool without memory, and its workers by fork.

    A worker is told by the pool that it has its descriptors from, where one sees both.
    """

    def survey(self, snapshot) -> Survey:
        named = {argument(process): process for process in snapshot.processes}
        pool = [named[word] for word in ("1001",) if word in named]
        workers = tuple(named[word] for word in ("1002",) if word in named)
        users = (self._process, *pool)
        return Survey(users, stale=workers) if pool else Survey(users, others=workers)

    def without_memory(self, survey) -> list[processes.Process]:
        return [process for process in survey.users if process != self._process]

    def empty(self, look, survey, limit, cancel, standing) -> None:
        if found := self.survey(look()).others:
            raise RolledBack(Reason.GPU_BEGUN, pid=found[0].ns_pid, name=found[0].name)
        super().empty(look, survey, limit, cancel, standing)


def argument(process: processes.Process) -> str:
    """The last word of its command line; empty when it has ended."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{process.pid}/cmdline").read_text()
        return line.rstrip("\0").split("\0")[-1]
    return ""


async def test_workers_of_a_pool_without_memory_run_on_with_it(recovery, places):
    """They are no new users of the card (PyTorch's compiler, H200: each nap failed)."""
    place = places("start", "sh", "-c", POOL, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: {"1001", "1002"} <= {argument(p) for p in place.tree.processes})
    program = place.tree.server
    assert await run(recovery, place, PoolOnCard(program, 7), "nap") is None
    wait_for(lambda: processes.is_stopped(program))
    others = [one for one in place.tree.processes if argument(one) in {"1001", "1002"}]
    assert len(others) == 2
    assert not any(processes.is_stopped(one) for one in others)


async def test_tree_tells_what_its_nap_has_moved_out_of_which_card(recovery, counter):
    assert (
        await run(recovery, counter, FullCards(counter.tree.server, 7), "nap") is None
    )
    session = recovery.placements.find(counter.incarnation)
    record = trees.record_of(recovery.tools.records, session)
    nap = trees.tree_of(session, record, None).nap
    assert nap.gpus == [GpuSample(uuid="a" * 32, name="Card", memory=7)]
    assert (nap.bytes, nap.begun) == (7, record.nap.begun)


async def test_wake_counts_as_a_nap_until_it_has_ended(recovery, counter):
    """Who sees it run orders something at once: not refused because of the wake."""
    session = recovery.placements.find(counter.incarnation)
    operation = Operation(orders.Wake.kind, session.key, "")
    record = trees.record_of(recovery.tools.records, session)
    assert trees.tree_of(session, record, operation).state is TreeState.NAPPING
    operation.end()
    assert trees.tree_of(session, record, operation).state is TreeState.RUNNING


async def test_wake_that_finds_the_card_full_naps_on_and_is_made_up_for(
    recovery, counter
):
    cards = FullCards(counter.tree.server, 1)
    assert await run(recovery, counter, cards, "nap") is None
    records = recovery.tools.records
    assert records.find(counter.incarnation).nap.stage is NapStage.ASLEEP
    error = await run(recovery, counter, cards, "wake")
    assert error.reason is Reason.GPU_MEMORY
    assert processes.is_stopped(counter.tree.server)
    assert records.find(counter.incarnation).naps

    cards.free = True
    assert await run(recovery, counter, cards, "wake") is None
    assert records.find(counter.incarnation).nap is None
    assert goes_on(counter)


class CrowdedCard(gpu.WellDriver):
    """One card, of which others have so much; says what it has."""

    taken = 0

    def measure(self, since: float) -> list[CardUse]:
        use = [ProcessUse(pid=1, memory=self.taken)]
        card = CardUse(
            uuid=gpu.CARD.uuid, name="H", free=100 - self.taken, processes=use
        )
        return [card]


async def waker_of(recovery, place, monkeypatch):
    """A wake of a nap that had 60 of the 100 bytes of a card; and that card."""
    card = CrowdedCard(place.tree.server.pid)
    monkeypatch.setattr(workflow, "ROOM_PAUSE", 0.01)
    cards = FullCards(place.tree.server, 60)
    assert await run(recovery, place, cards, "nap") is None
    record = recovery.tools.records.find(place.incarnation)
    there = Gpus(
        driver="580",
        cards=[GpuCard(uuid=gpu.CARD.uuid, name=gpu.CARD.name)],
        users=record.nap.gpus.users,
        uses=[GpuUse(pid=record.nap.gpus.users[0], uuid=gpu.CARD.uuid, bytes=60)],
    )
    nap = record.nap_at(NapStage.ASLEEP, gpus=there)
    recovery.tools.records.save(nap)
    accelerator = Accelerator(card, card, TimeLimits(room=0.1))
    return card, accelerator


def shortage_of(place, accelerator):
    return accelerator.room.shortage_of(place.incarnation, time.monotonic())


async def test_wake_that_waits_says_so_and_goes_on_as_soon_as_there_is_room(
    recovery, counter, monkeypatch
):
    card, accelerator = await waker_of(recovery, counter, monkeypatch)
    card.taken = 50
    first = await run(recovery, counter, accelerator, "wake")
    assert first.reason is Reason.GPU_MEMORY
    short = shortage_of(counter, accelerator)
    assert (short.place, short.cards[0].needed, short.cards[0].free) == (1, 60, 50)

    accelerator.limits = TimeLimits(room=60)
    waiting = asyncio.ensure_future(run(recovery, counter, accelerator, "wake"))
    operation = await recovery.operations.next(counter.incarnation, "wake", 5)
    async for event in operation.follow():
        if event.step.step == "room":
            break
    assert event.step.title == "Waiting for a GPU"
    assert shortage_of(counter, accelerator).waited > short.waited
    card.taken = 40
    assert await waiting is None
    assert [step.state for step in operation.steps] == ["done", "done"]
    assert shortage_of(counter, accelerator) is None
    assert goes_on(counter)


async def waking_without_room(recovery, counter, monkeypatch):
    """A wake that waits for room, and what tells how much it lacks."""
    card, accelerator = await waker_of(recovery, counter, monkeypatch)
    card.taken, accelerator.limits = 100, TimeLimits(room=60)
    waiting = asyncio.ensure_future(run(recovery, counter, accelerator, "wake"))
    while shortage_of(counter, accelerator) is None:
        await asyncio.sleep(0.01)
    return accelerator, waiting


async def test_wake_that_is_called_off_while_it_waits_gives_its_turn_up(
    recovery, counter, monkeypatch
):
    accelerator, waiting = await waking_without_room(recovery, counter, monkeypatch)
    recovery.operations.running(counter.incarnation).cancel.set()
    assert (await waiting).reason is Reason.CANCELLED
    assert shortage_of(counter, accelerator) is None
    assert recovery.tools.records.find(counter.incarnation).naps


def node_of(recovery, cards) -> LocalNode:
    return LocalNode(
        placements=recovery.placements,
        operations=recovery.operations,
        sampler=None,
        tools=tools_of(recovery, cards),
        term=KnownTerm(Path("/nonexistent")),
        describe=lambda: NodeStatus(host="here", version="1"),
    )


class Refused:
    """A capture, a save or a nap that fails at once."""

    def __init__(self, _tools, _session, operation, *_, **__) -> None:
        self._operation = operation

    async def run(self):
        self._operation.add(Event(failure=Failure(code="io_uring", message="No.")))


@pytest.mark.parametrize("order", ["capture", "save", "nap"])
async def test_order_that_meets_a_wake_waits_for_its_end(
    recovery, counter, monkeypatch, order
):
    """The agent wakes by itself, and the memory is back a moment before that ends."""
    cards = FullCards(counter.tree.server, 1)
    assert await run(recovery, counter, cards, "nap") is None
    cards.free, moved = True, threading.Event()
    monkeypatch.setattr(cards, "fill", lambda *_: moved.wait(30))
    monkeypatch.setattr(capture, "Capture", Refused)
    monkeypatch.setattr(save, "Save", Refused)
    monkeypatch.setattr(workflow, "Nap", Refused)
    waking = asyncio.ensure_future(run(recovery, counter, cards, "wake"))
    await recovery.operations.next(counter.incarnation, "wake", 5)
    node = node_of(recovery, cards)
    kinds = {each.kind: each for each in orders.AGENT_ORDERS}
    given = kinds[order](*(() if order == "nap" else ("cp", 1)))
    if order == "nap":
        with pytest.raises(ReclaimError):  # the policy's: somebody uses it
            await node.nap(counter.incarnation, orders.Nap(seen=time.time()))
    work = asyncio.ensure_future(node.carry_out(counter.incarnation, given))
    done, _ = await asyncio.wait([work], timeout=0.5)
    assert not done
    moved.set()
    events = [event async for event in await work]
    assert events[-1].failure.code == "io_uring"
    assert await waking is None
    assert goes_on(counter)


async def test_suspend_calls_off_a_wake_that_waits_for_room(
    recovery, counter, monkeypatch
):
    accelerator, waiting = await waking_without_room(recovery, counter, monkeypatch)
    node = node_of(recovery, accelerator)
    assert (await node.tree(counter.incarnation)).shortage.place == 1

    monkeypatch.setattr(capture, "Capture", Refused)
    events = [
        e
        async for e in await node.capture(counter.incarnation, orders.Capture("cp", 1))
    ]
    assert events[-1].failure.code == "io_uring"
    assert (await waiting).reason is Reason.CANCELLED
    tree = await node.tree(counter.incarnation)
    assert (tree.state, tree.shortage) == (TreeState.NAPPING, None)


async def test_nap_that_fails_while_the_card_is_taken_is_ended_later(
    recovery, counter, monkeypatch
):
    cards = FullCards(counter.tree.server, 1)

    def empty(*_) -> None:
        FullCards.empty(cards, *_)
        raise RolledBack(Reason.NAP_FAILED, why="the card is gone")

    monkeypatch.setattr(cards, "empty", empty)
    error = await run(recovery, counter, cards, "nap")
    assert error.reason is Reason.GPU_MEMORY
    records = recovery.tools.records
    assert records.find(counter.incarnation).naps

    tries = 0

    async def order(incarnation: str, why: str) -> None:
        nonlocal tries
        tries += 1
        cards.free = tries > 2
        if failure := await run(recovery, counter, cards, "wake"):
            raise failure

    monkeypatch.setattr(wakers_module, "_FIRST_PAUSE", 0.05)
    wakers = Wakers(recovery.placements, records, recovery.operations, order)
    wakers.begin()
    async with asyncio.timeout(60):
        while records.find(counter.incarnation).naps:
            await asyncio.sleep(0.02)
    wakers.close()
    assert tries == 3
    assert goes_on(counter)


@pytest.mark.long
async def test_cell_that_a_kernel_has_taken_in_before_it_was_stopped_ends_the_nap(
    recovery, jupyter
):
    """It lies in the kernel's own memory; no look at connections finds it."""
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))

    class LastMoment(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            standing()
            server.run(kernel, "import time; time.sleep(60)", wait=False)
            wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")
            processes.send(process, signal.SIGSTOP)

    client = jupyter_api.make_client()
    cards = LastMoment(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    record = recovery.tools.records.find(server.place.incarnation)
    assert record.nap.stage is NapStage.WAKING
    client.close()


def is_kernel(process: processes.Process, kernel: str) -> bool:
    return any(kernel.encode() in word for word in procfs.words(process.pid, "cmdline"))


@pytest.mark.long
async def test_what_comes_while_memory_moves_is_not_taken_for_what_was_left_unread(
    recovery, jupyter
):
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))
    code = """import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1])"""
    port = int(await asyncio.to_thread(server.run, kernel, code))
    old = socket.create_connection(("127.0.0.1", port))
    new = socket.create_connection(("127.0.0.1", port))
    code = "ends = [listener.accept()[0] for _ in 'ab']; [e.fileno() for e in ends]"
    numbers = json.loads(await asyncio.to_thread(server.run, kernel, code))

    class DataMeanwhile(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            new.send(b"x")
            super().empty(look, survey, limit, cancel, standing)

    old.send(b"left lying")
    client = jupyter_api.make_client()
    cards = DataMeanwhile(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    nap = recovery.tools.records.find(server.place.incarnation).nap
    assert nap.stage is NapStage.ASLEEP
    first, second = (nap.standing.get(f"{process.ns_pid}/{fd}") for fd in numbers)
    assert (first, second) == (len("left lying"), None)
    for one in (client, old, new):
        one.close()


@pytest.mark.long
async def test_pipe_that_the_driver_has_not_closed_when_it_is_stopped_wakes_nobody(
    recovery, jupyter
):
    """Seen on a card under load: three naps of ten."""
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))
    code = "import os; end, other = os.pipe(); os.close(other); print(end)"
    ends = []

    class PipeLeft(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            def held() -> None:
                standing()
                ends.append(int(server.run(kernel, code)))

            super().empty(look, survey, limit, cancel, held)

    client = jupyter_api.make_client()
    cards = PipeLeft(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    nap = recovery.tools.records.find(server.place.incarnation).nap
    assert nap.stage is NapStage.ASLEEP
    assert nap.standing.get(f"{process.ns_pid}/{ends[0]}") == ENDED
    client.close()
