"""This node's answers to the service's calls.

:class:`LocalNode` looks a session up, ensures that one operation at a time works on it,
and starts the work that ``workflows.capture``, ``restore`` and ``release`` do. It keeps
no policy: it does what it is told, or says why not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.models import Event, Identity, Tree, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities
from jupyterhub_gpu_reclaim.node.operations import checkpoint_files, trees
from jupyterhub_gpu_reclaim.node.operations.operations import Operation, Operations
from jupyterhub_gpu_reclaim.node.operations.progress import in_thread
from jupyterhub_gpu_reclaim.node.setup import inotify_limits
from jupyterhub_gpu_reclaim.node.workflows import (
    capture,
    outcomes,
    recovery,
    release,
    restore,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Finding, Sample
    from jupyterhub_gpu_reclaim.node.dependencies import Parts
    from jupyterhub_gpu_reclaim.node.operations.records import Record
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session, Told
    from jupyterhub_gpu_reclaim.node.watcher import Watcher

#: Waiting for an operation that was cancelled before its session is killed.
_CALL_OFF_SECONDS = 60.0
#: Killed sessions of which a repeated kill still hears that they are gone.
_REMEMBERED = 256


class LocalNode:
    """Everything that the service may ask of this node (``http.handler.Node``)."""

    def __init__(self, parts: Parts, operations: Operations, watcher: Watcher) -> None:
        self._parts = parts
        self._operations = operations
        self._watcher = watcher
        self._gone: dict[str, Tree] = {}
        self._look: asyncio.Task[list[Finding]] | None = None

    # --- looking ------------------------------------------------------------------

    async def ready(self) -> list[Finding]:
        """What keeps this node from saving sessions, or makes it slow."""
        # Unauthenticated and unlimited, so one look at a time answers all callers.
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._look_at_node())
        return await asyncio.shield(self._look)

    async def _look_at_node(self) -> list[Finding]:
        parts = self._parts

        def look() -> list[Finding]:
            return [
                *capabilities.findings(),
                *parts.tool.findings(),
                *parts.accelerator.node_findings(),
                *inotify_limits.findings(),
            ]

        return await in_thread(look, step="check", limit=parts.limits.check)

    async def trees(self) -> list[Tree]:
        """Every incarnation with an init or a record here."""
        return await asyncio.to_thread(self._trees)

    async def tree(self, incarnation: str) -> Tree:
        """That incarnation, also when it has ended; ``NotFound`` when unknown."""
        return await asyncio.to_thread(self._tree, incarnation)

    async def samples(self) -> list[Sample]:
        """What every session with programs in it does now."""
        return await self._watcher.samples(await self.trees())

    async def preflight(self, incarnation: str) -> list[Finding]:
        """What keeps that session from being saved; touches nothing."""
        session = await self._find(incarnation)
        found = await in_thread(
            lambda: capture.examine(self._parts, session, trees.look(session)).found,
            step="preflight",
            limit=self._parts.limits.check,
        )
        return [*found, *await capture.ask_server(self._parts, session)]

    async def checkpoints(self) -> list[CheckpointInfo]:
        """The committed checkpoints."""
        return await asyncio.to_thread(self._parts.store.list)

    async def identity(self, checkpoint: str) -> Identity:
        """The login of a saved session, from inside its checkpoint."""

        def read() -> Identity:
            there = checkpoint_files.Saved(self._parts.store.open(checkpoint))
            return msgspec.structs.replace(
                there.identity,
                image=there.world.image,
                node_labels=there.world.node_labels,
            )

        return await asyncio.to_thread(read)

    async def tell(self, incarnation: str, told: Told) -> None:
        """Take the service's facts about a session, before any other call."""
        await asyncio.to_thread(self._parts.placements.tell, incarnation, told)

    # --- doing --------------------------------------------------------------------

    async def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        """Capture it, attach to the capture under way, or repeat how it ended."""
        known = self._operations.attach(incarnation, "capture", checkpoint)
        if known is not None:
            return known.follow()
        ended = await asyncio.to_thread(
            outcomes.captured, self._parts, incarnation, checkpoint
        )
        if ended is not None:
            return _only(ended)
        session = await self._find(incarnation)
        tree = await self.tree(incarnation)
        # The same call may have come twice; nothing is awaited from here to begin().
        again = self._operations.attach(incarnation, "capture", checkpoint)
        if again is not None:
            return again.follow()
        if tree.state is not TreeState.RUNNING:
            raise Refused(
                Reason.WRONG_PHASE, phase=tree.state.value, action="be suspended now"
            )
        operation = Operation("capture", session.key, checkpoint)
        work = capture.Capture(self._parts, session, operation, generation)
        return self._begin(session, operation, work.run).follow()

    async def restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        """Restore it, attach to the restore under way, or repeat how it ended."""
        known = self._operations.attach(incarnation, "restore", checkpoint)
        if known is not None:
            return known.follow()
        session = await self._find(incarnation)
        ended: Event | None = None
        refusal: ReclaimError | None = None
        try:
            ended = await asyncio.to_thread(
                outcomes.restored, self._parts, session, checkpoint
            )
        except ReclaimError as error:
            refusal = error
        # The same call may have come twice; nothing is awaited from here to begin().
        again = self._operations.attach(incarnation, "restore", checkpoint)
        if again is not None:
            return again.follow()
        if refusal is not None:
            raise refusal
        if ended is not None:
            return _only(ended)
        outcomes.refuse_if_leased(
            self._parts, self._operations, incarnation, checkpoint
        )
        operation = Operation("restore", session.key, checkpoint)
        work = restore.Restore(self._parts, session, operation)
        return self._begin(session, operation, work.run).follow()

    async def thaw(self, incarnation: str) -> Tree:
        """Thaw a captured tree; its checkpoint is discarded. Idempotent."""
        session = await self._find(incarnation)
        return await self._do(
            "thaw", session, "", lambda op: release.thaw(self._parts, session, op)
        )

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured tree; only when that checkpoint is committed. Idempotent."""
        try:
            session = await self._find(incarnation)
        except NotFound:
            return await asyncio.to_thread(
                outcomes.released, self._parts, incarnation, checkpoint
            )
        return await self._do(
            "release",
            session,
            checkpoint,
            lambda op: release.release(self._parts, session, op),
        )

    async def kill(self, incarnation: str) -> Tree:
        """End a session whatever it does, but not while it is being saved."""
        running = self._operations.running(incarnation)
        if running is not None and running.kind == "capture":
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        if running is not None and running.kind in {"restore", trees.RECOVER}:
            running.cancel.set()
            await running.wait(_CALL_OFF_SECONDS)
        try:
            session = await self._find(incarnation)
        except NotFound:
            return await self.tree(incarnation)
        tree = await self._do(
            "kill", session, "", lambda op: release.kill(self._parts, session, op)
        )
        self._gone[incarnation] = tree
        while len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        return tree

    async def cancel(self, incarnation: str) -> None:
        """Cancel a running capture; where none runs there is nothing to do."""
        running = self._operations.running(incarnation)
        if running is None:
            await self.tree(incarnation)
        elif running.kind == "capture":
            running.cancel.set()
        else:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)

    async def discard(self, checkpoint: str) -> None:
        """Delete a checkpoint that is no longer needed; idempotent."""
        await asyncio.to_thread(outcomes.refuse_if_needed, self._parts, checkpoint)
        await asyncio.to_thread(self._parts.store.delete, checkpoint)
        await asyncio.to_thread(self._parts.ports.release, checkpoint)

    # --- what is shared -----------------------------------------------------------

    async def _find(self, incarnation: str) -> Session:
        return await asyncio.to_thread(self._parts.placements.find, incarnation)

    def _begin(
        self,
        session: Session,
        operation: Operation,
        work: Callable[[Operation], AsyncIterator[Event]],
    ) -> Operation:
        """Start an operation; what it cannot undo when it fails is undone after it."""
        begun = self._operations.begin(session.incarnation, operation, work)
        recovery.settle_after(self._parts, self._operations, session, begun)
        return begun

    async def _do(
        self,
        kind: str,
        session: Session,
        checkpoint: str,
        work: Callable[[Operation], AsyncIterator[Event]],
    ) -> Tree:
        """Run a short operation, or wait for the same one; its tree or its error."""
        operation = self._operations.attach(session.incarnation, kind, checkpoint)
        if operation is None or operation.done:
            operation = Operation(kind, session.key, checkpoint)
            self._operations.begin(session.incarnation, operation, work)
        await operation.wait()
        if operation.error is not None:
            raise operation.error
        tree = operation.events[-1].tree
        if tree is None:
            raise Refused(Reason.INTERNAL, detail=f"{kind} ended without a tree")
        return tree

    def _trees(self) -> list[Tree]:
        """Trees of all inits, then of the records whose init has ended."""
        sessions = self._parts.placements.list()
        records = {r.incarnation: r for r in self._parts.records.list()}
        found = [
            tree
            for session in sessions
            if (tree := self._tree_of(session, records.get(session.incarnation)))
            is not None
        ]
        here = {session.incarnation for session in sessions}
        return found + [
            trees.gone(record, record.checkpoint)
            for name, record in records.items()
            if name not in here
        ]

    def _tree(self, incarnation: str) -> Tree:
        record = self._parts.records.find(incarnation)
        try:
            session = self._parts.placements.find(incarnation)
        except NotFound:
            if record is not None:
                return trees.gone(record, record.checkpoint)
            if incarnation in self._gone:
                return self._gone[incarnation]
            raise
        tree = self._tree_of(session, record)
        if tree is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return tree

    def _tree_of(self, session: Session, record: Record | None) -> Tree | None:
        """That session's tree; None when it ended while we looked."""
        operation = self._operations.last(session.incarnation)
        try:
            return trees.tree_of(session, record, operation)
        except NotFound:
            return None


async def _only(event: Event) -> AsyncIterator[Event]:
    yield event
