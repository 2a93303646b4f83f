"""This node's answers to the service's calls."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import Event, Identity, Tree, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import CheckpointContents
from jupyterhub_gpu_reclaim.node.operations.known_term import act_for_itself
from jupyterhub_gpu_reclaim.node.operations.operations import (
    Operation,
    Operations,
    in_thread,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import capture, nap, save
from jupyterhub_gpu_reclaim.node.workflows.outcomes import Outcomes
from jupyterhub_gpu_reclaim.node.workflows.recovery import Recovery
from jupyterhub_gpu_reclaim.node.workflows.release import Releases
from jupyterhub_gpu_reclaim.node.workflows.restore import Restore
from jupyterhub_gpu_reclaim.node.workflows.tools import look_again
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder, PodHint
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Sample, Shortage
    from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
    from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
    from jupyterhub_gpu_reclaim.node.operations.records import Record
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.node.sessions.samples import TreeSampler
    from jupyterhub_gpu_reclaim.node.workflows.tools import Workflow, WorkflowTools

_log = logging.getLogger(__name__)

#: An order of the policy begins nothing, so long after the sample that it went by.
ORDER_SECONDS = 5.0
#: Waiting for an operation that was cancelled before its session is killed.
_CALL_OFF_SECONDS = 60.0
#: A client waiting for a wake asks again after so long: one that left is not kept.
_NEXT_WAKE_SECONDS = 60.0
#: A kill calls off, and waits for, all but these, which are over soon.
_SHORT = frozenset({orders.Thaw.kind, orders.Release.kind, orders.Kill.kind})


@dataclass(kw_only=True, eq=False)
class LocalNode:
    placements: Placements
    operations: Operations
    sampler: TreeSampler
    tools: WorkflowTools
    #: Asked once more right before each effect: the order may have waited.
    term: KnownTerm
    #: Tells versions, room on disks, and what keeps this node from working; it blocks.
    describe: Callable[[], NodeStatus]
    _looking: asyncio.Task[NodeStatus] | None = None
    _fatal: list[str] = field(default_factory=list)  #: found at the last look

    def __post_init__(self) -> None:
        self.releases = Releases(self.tools)
        self.outcomes = Outcomes(placements=self.placements, tools=self.tools)
        self.recovery = Recovery(
            placements=self.placements, operations=self.operations, tools=self.tools
        )

    # --- looking ------------------------------------------------------------------

    async def ready(self) -> bool:
        await self._described()
        return not self._fatal

    async def _described(self) -> NodeStatus:
        # Unauthenticated and unlimited, so one look at a time answers all callers.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> NodeStatus:
        limit = self.tools.limits.check
        found = await in_thread(self.describe, step="check", limit=limit)
        fatal = [finding.message for finding in found.findings if finding.fatal]
        if fatal != self._fatal:
            for message in fatal:
                _log.warning("- not ready: %s", message)
            if not fatal:
                _log.info("- ready")
            self._fatal = fatal
        return found

    async def status(self) -> NodeStatus:
        described, cards = await asyncio.gather(self._described(), self.sampler.cards())
        return msgspec.structs.replace(described, cards=cards, term=self.term.number)

    async def trees(self) -> list[Tree]:
        return [tree for _, tree in await asyncio.to_thread(self._trees)]

    async def tree(self, incarnation: str) -> Tree:
        """The tree of an incarnation; ``NotFound``: it has ended, or is unknown."""
        return await asyncio.to_thread(self._tree, incarnation)

    async def samples(self) -> list[Sample]:
        return await self.sampler.samples(await asyncio.to_thread(self._trees))

    async def checkpoints(self) -> list[CheckpointInfo]:
        return await asyncio.to_thread(self.tools.store.list)

    async def identity(self, checkpoint: str) -> Identity:
        def read() -> Identity:
            there = CheckpointContents(self.tools.store.open(checkpoint))
            return msgspec.structs.replace(
                there.identity,
                image=there.world.image,
                node_labels=there.world.node_labels,
            )

        return await asyncio.to_thread(read)

    async def set_hint(self, incarnation: str, hint: PodHint) -> None:
        await asyncio.to_thread(self.placements.set_hint, incarnation, hint)

    # --- doing --------------------------------------------------------------------

    async def carry_out(
        self, subject: str, order: AgentOrder
    ) -> AsyncIterator[Event] | None:
        if order.about == "sessions":
            await self.set_hint(subject, order.hint)
        work = getattr(self, order.kind.replace("-", "_"))
        answer: AsyncIterator[Event] | None = await work(subject, order)
        return answer

    async def capture(
        self, incarnation: str, order: orders.Capture
    ) -> AsyncIterator[Event]:
        """Capture it, attach to the capture under way, or repeat how it ended.

        Raises:
            Refused: ``order_late``: it may be in use again.
        """
        # What it orders is of the highest term: of a lower one it was refused.
        stamp = self.term.number, order.generation
        work = partial(capture.Capture, self.tools, stamp=stamp)
        return await self._start(incarnation, order, "be suspended now", work)

    async def save(self, incarnation: str, order: orders.Save) -> AsyncIterator[Event]:
        stamp = self.term.number, order.generation
        work = partial(save.Save, self.tools, stamp=stamp, name=order.name)
        return await self._start(incarnation, order, "be saved now", work)

    async def nap(self, incarnation: str, order: orders.Nap) -> AsyncIterator[Event]:
        """Move its GPU memory out, or attach to the nap that begins.

        Raises:
            Refused: ``order_late``: it may be in use again.
        """
        work = partial(nap.Nap, self.tools)
        return await self._start(incarnation, order, "nap now", work)

    async def wake(
        self, incarnation: str, order: orders.Wake, why: str = ""
    ) -> AsyncIterator[Event]:
        """Give it its GPU memory back, or attach; ``why`` is empty for an order."""
        work = partial(nap.Wake, self.tools, why=why)
        return await self._start(incarnation, order, "wake now", work)

    async def next_wake(
        self, incarnation: str, order: orders.NextWake
    ) -> AsyncIterator[Event]:
        del order
        session = await self._find(incarnation)
        operation = await self.operations.next(
            session.incarnation, orders.Wake.kind, _NEXT_WAKE_SECONDS
        )
        return _told() if operation is None else operation.follow()

    async def wake_up(self, incarnation: str, why: str) -> None:
        """Wake it, and wait until that is done; ReclaimError: it naps on."""
        act_for_itself()
        async for event in await self.wake(incarnation, orders.Wake(), why):
            if event.failure is not None:
                raise codec.error_of(event.failure)

    async def restore(
        self, incarnation: str, order: orders.Restore
    ) -> AsyncIterator[Event]:
        """Restore it, attach to the restore under way, or repeat how it ended."""
        checkpoint = order.checkpoint
        with suppress(Refused):  # while a nap or a wake is under way: it may be back
            if known := self.operations.attach(incarnation, order.kind, checkpoint):
                return known.follow()
        session = await self._find(incarnation)
        ended: Event | None = None
        refusal: ReclaimError | None = None
        try:
            ended = await asyncio.to_thread(self.outcomes.restored, session, checkpoint)
        except ReclaimError as error:
            refusal = error
        if ended is None or ended.tree is None:
            # The same call may have come twice; nothing is awaited until begin().
            if known := self.operations.attach(incarnation, order.kind, checkpoint):
                return known.follow()
            if refusal is not None:
                raise refusal
        if ended is not None:
            return _told(ended)
        self.outcomes.refuse_if_leased(self.operations, incarnation, checkpoint)
        self.operations.work_for(session)
        operation = Operation(order.kind, session.key, checkpoint)
        work = Restore(
            self.tools, session, operation, put_files_back=order.put_files_back
        )
        return self._begin(session, operation, lambda _: work.run()).follow()

    async def thaw(self, incarnation: str, order: orders.Thaw) -> None:
        session = await self._find(incarnation)
        await self._do(order.kind, session, "", self.releases.thaw)

    async def release(self, incarnation: str, order: orders.Release) -> None:
        checkpoint = order.checkpoint
        try:
            session = await self._find(incarnation)
        except NotFound:
            await asyncio.to_thread(self.releases.finish_ended, incarnation, checkpoint)
        else:
            await self._do(order.kind, session, checkpoint, self.releases.release)

    async def kill(self, incarnation: str, order: orders.Kill) -> None:
        running = self.operations.running(incarnation)
        if running is not None and running.kind == orders.Capture.kind:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        if running is not None and running.kind not in _SHORT:
            self.term.confirm()
            running.cancel.set()
            await running.wait(_CALL_OFF_SECONDS)
        session = await self._find(incarnation)
        await self._do(order.kind, session, "", self.releases.kill)

    async def cancel(self, incarnation: str, order: orders.Cancel) -> None:
        """Call off what runs; where nothing does there is nothing to do."""
        del order
        running = self.operations.running(incarnation)
        if running is None:
            await self._find(incarnation)
            return
        if running.kind not in orders.CANCELLABLE:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        self.term.confirm()
        running.cancel.set()

    async def discard(self, checkpoint: str, order: orders.Discard) -> None:
        """Delete a checkpoint that is no longer needed.

        Raises:
            NotFound: the incarnation that does without it is unknown.
            Refused: ``wrong_phase``: it has ended, or a stopped tree needs it.
        """
        if order.runs:
            await self._refuse_ended(order.runs)
        await asyncio.to_thread(self.outcomes.refuse_if_needed, checkpoint)
        self.term.confirm()
        await asyncio.to_thread(self.tools.store.delete, checkpoint)
        await asyncio.to_thread(self.tools.ports.let_go, checkpoint)

    async def mark(self, checkpoint: str, order: orders.Mark) -> None:
        """Seal a word about a checkpoint beside it in the store.

        Raises:
            NotFound: ``checkpoint_missing``.
            Refused: ``former_service``: there is a later word.
        """
        self.term.confirm()
        number = MarkNumber(self.term.number, order.word)
        await asyncio.to_thread(self.tools.store.mark, checkpoint, order.said, number)

    async def _refuse_ended(self, incarnation: str) -> None:
        tree = await self.tree(incarnation)
        if not tree.lives:
            raise Refused(
                Reason.WRONG_PHASE, phase=tree.state.value, action="do without it"
            )

    # --- what is shared -----------------------------------------------------------

    async def _start(
        self,
        incarnation: str,
        order: AgentOrder,
        action: str,
        work: Callable[[Session, Operation], Workflow],
    ) -> AsyncIterator[Event]:
        """Events of an order: of a new operation, the one under way, or its end.

        Raises:
            Refused: it cannot be now, or ``order_late``.
        """
        kind, seen = order.kind, getattr(order, "seen", None)
        checkpoint = order.checkpoint if isinstance(order, orders.Saving) else ""
        await self._await_turn(incarnation, kind, seen)
        if known := self.operations.attach(incarnation, kind, checkpoint):
            return known.follow()
        if checkpoint:
            captured = self.outcomes.captured
            if ended := await asyncio.to_thread(captured, incarnation, checkpoint):
                return _told(ended)
        session = await self._find(incarnation)
        tree = await self.tree(incarnation)
        # The same call may have come twice; nothing is awaited from here to begin().
        if known := self.operations.attach(incarnation, kind, checkpoint):
            return known.follow()
        wakes = kind == orders.Wake.kind
        if wakes and tree.state is TreeState.RUNNING and tree.nap is None:
            return _told(Event(tree=tree))
        if tree.state not in {TreeState.RUNNING, TreeState.NAPPING}:
            raise Refused(Reason.WRONG_PHASE, phase=tree.state.value, action=action)
        self._refuse_late(seen)
        if not wakes:
            self.operations.work_for(session)
        operation = Operation(kind, session.key, checkpoint)

        def run(operation: Operation) -> Awaitable[None]:
            return work(session, operation).run()

        if kind in {orders.Capture.kind, orders.Nap.kind}:
            record = partial(trees.record_of, self.tools.records, session)
            again = partial(look_again, run, record, self.tools.clock)
            return self._begin(session, operation, again).follow()
        return self._begin(session, operation, run).follow()

    def _refuse_late(self, seen: float | None) -> None:
        """Refuse to begin what a sample of long ago has led to.

        Raises:
            Refused: ``order_late``.
        """
        if seen is None:
            return
        late = abs(self.tools.clock.now() - seen)  # clocks are set back, too
        if late > ORDER_SECONDS:
            raise Refused(Reason.ORDER_LATE, late=duration(late))

    async def _await_turn(
        self, incarnation: str, kind: str, seen: float | None = None
    ) -> None:
        """Wait for what is in the way of an order and ends soon, or call it off."""
        # What the policy orders (``seen``) waits for no wake that has room, for that
        # is in use.
        running = self.operations.running(incarnation)
        if running is None or running.kind == kind:
            return
        full = self._shortage_of(incarnation) is not None
        wakes = running.kind == orders.Wake.kind
        overtakes = wakes and kind == orders.Capture.kind and (full or seen is None)
        if running.kind == orders.Save.kind or overtakes:
            self._refuse_late(seen)
            self.term.confirm()
            running.cancel.set()
        elif full or seen is not None or not (wakes or running.kind == orders.Nap.kind):
            return
        await running.wait(_CALL_OFF_SECONDS)

    async def _find(self, incarnation: str) -> Session:
        return await asyncio.to_thread(self.placements.find, incarnation)

    def _begin(
        self,
        session: Session,
        operation: Operation,
        work: Callable[[Operation], Awaitable[None]],
    ) -> Operation:
        """Start an operation; what it cannot undo when it fails is undone after it."""
        self.term.confirm()
        begun = self.operations.begin(session.incarnation, operation, work)
        self.recovery.settle_after(session, begun)
        return begun

    async def _do(
        self,
        kind: str,
        session: Session,
        checkpoint: str,
        work: Callable[[Session, Operation], Awaitable[None]],
    ) -> None:
        """Run a short operation, or wait for the same one; raises its error."""
        operation = self.operations.attach(session.incarnation, kind, checkpoint)
        if operation is None:
            self.term.confirm()
            operation = Operation(kind, session.key, checkpoint)
            self.operations.begin(
                session.incarnation, operation, partial(work, session)
            )
        await operation.wait()
        if operation.error is not None:
            raise operation.error

    def _trees(self) -> list[tuple[Session, Tree]]:
        self.tools.records.write_remembered()
        sessions = self.placements.list()
        if sessions:
            with suppress(StoreError):  # a capture tells what is wrong
                self.tools.store.prepare()
        records = {r.incarnation: r for r in self.tools.records.list()}
        for name in records.keys() - {session.incarnation for session in sessions}:
            # Of one that has ended the store has what is left.
            record = records[name]
            lives = processes.start_time(record.init_pid) == record.init_start
            if not lives and self.operations.running(name) is None:
                with suppress(OSError):
                    self.tools.records.delete(name)
        return [
            (session, tree)
            for session in sessions
            if (tree := self._tree_of(session, records.get(session.incarnation)))
            is not None
        ]

    def _tree(self, incarnation: str) -> Tree:
        record = self.tools.records.find(incarnation)
        tree = self._tree_of(self.placements.find(incarnation), record)
        if tree is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return tree

    def _tree_of(self, session: Session, record: Record | None) -> Tree | None:
        """The tree of a session; None when it ended while we looked."""
        operation = self.operations.last(session.incarnation)
        try:
            tree = trees.tree_of(session, record, operation)
        except NotFound:
            return None
        if tree.nap is None:
            return tree
        shortage = self._shortage_of(session.incarnation)
        return msgspec.structs.replace(tree, shortage=shortage)

    def _shortage_of(self, incarnation: str) -> Shortage | None:
        now = self.tools.clock.monotonic()
        return self.tools.accelerator.room.shortage_of(incarnation, now)


async def _told(*events: Event) -> AsyncIterator[Event]:
    for event in events:
        yield event
