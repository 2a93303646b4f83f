"""Resume: from a placed init to a session that answers, or back to the checkpoint.

Begins after the spawner has reported the place. Nothing here starts a session cold, and
a failure never gives up a checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, moment
from jupyterhub_gpu_reclaim.controlplane import operations
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    NO_ORDER,
    Intent,
    SessionEvent,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        Event,
        Failure,
        SessionKey,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import GpuQueue
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Resumer:
    sessions: Sessions
    line: GpuQueue
    #: requests to the Hub for starts, which it has not answered yet
    _asking: dict[SessionKey, asyncio.Task[None]] = field(
        default_factory=dict, init=False
    )

    def start(self, row: SessionRow) -> None:
        """Ask the Hub for the start that a person asked for; may be repeated.

        Nobody waits for the answer: it comes when the session runs, and the worker is
        needed meanwhile.
        """
        if row.key not in self._asking:
            asking = asyncio.create_task(self._ask_for_start(row))
            self._asking[row.key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(row.key))

    async def _ask_for_start(self, row: SessionRow) -> None:
        try:
            await self.sessions.hub.start(row.key)
        except ReclaimError as error:
            asked, row = row, self.sessions.row(row.key)
            if row.intent is not Intent.RESUME or row.since != asked.since:
                return  # it was begun; the agent has reported its end
            if isinstance(error, Unreachable) or error.retryable:
                _log.info("%s: the Hub is not ready for a start: %s", row.key, error)
                return
            failure = codec.failure_of(error)
            self.sessions.update(row.key, failure=failure, **NO_ORDER)

    async def follow(self, row: SessionRow) -> None:
        """Start or attach to the restore of a RESUMING session, up to its end.

        It returns, too, where it waits for GPU memory: call it again then.

        Raises:
            Unreachable: the agent was lost on the way; the restore may go on there.
        """
        over = self.line.over(row)
        if over is not None:
            self.failed(row, over)
            return
        if not self.line.may_try(row):
            return
        end = await self._restore(row)
        row = self.sessions.row(row.key) if self._is_unchanged(row) else row
        ended = end.failure and self.line.ended(row, end.failure)
        if ended is not None:
            self.failed(row, ended)

    async def _restore(self, row: SessionRow) -> Event:
        unserved = self.sessions.runtime(row.key).lacks_memory_since is not None
        noted = self.sessions.journal.noted(NoteKind.FILES_BACK, row.checkpoint)
        order = orders.Restore(row.checkpoint, put_files_back=noted is not None)

        def hear(event: Event) -> bool:
            nonlocal unserved
            if not self._is_unchanged(row):
                raise Refused(Reason.CANCELLED)
            checks = event.step is not None and event.step.step == "check"
            if event.failure is not None or (unserved and checks):
                return False  # most tries of waiting sessions end here
            if unserved:
                unserved = False
                self.sessions.step(row.key, "resume", self.line.served(row))
            self.sessions.step(row.key, "resume", event)
            if event.tree is not None and event.tree.as_of:
                self._note_moment(row, event.tree)
            return True

        return await operations.end_of(self.sessions, row, order, "resume", hear=hear)

    def _note_moment(self, row: SessionRow, tree: Tree) -> None:
        note = f"It is as it was at {moment(tree.as_of)}; outputs may be newer."
        if tree.newer:
            note += f" Newer files lie in {', '.join(tree.newer)}."
        line = self.sessions.audit_line(row.key, SERVICE, "went back", note)
        self.sessions.update(row.key, line)

    def _forget_files_back(self, row: SessionRow) -> None:
        self.sessions.journal.forget_notes(NoteKind.FILES_BACK, row.checkpoint)

    def _is_unchanged(self, row: SessionRow) -> bool:
        now = self.sessions.row(row.key)
        return (now.phase, now.incarnation) == (row.phase, row.incarnation)

    def restored(self, row: SessionRow, *, answered: bool = True) -> SessionRow:
        """RESUMING -> RUNNING; until it has answered, its checkpoint has no limit."""
        self.sessions.counters.ended("resume", "ok")
        self._forget_files_back(row)
        now = self.sessions.clock.now()
        return self.sessions.apply(
            row.key,
            SessionEvent.RESTORED,
            note=f"That took {duration(now - row.since)}.",
            resumed_at=now if answered else None,
        )

    def failed(self, row: SessionRow, failure: Failure | None) -> None:
        if not self._is_unchanged(row):
            return
        self._forget_files_back(row)
        self.sessions.counters.ended(
            "resume", "failed", failure.code if failure else Reason.CANCELLED.value
        )
        self.sessions.end(row.key, failure)
        self.sessions.apply(
            row.key,
            SessionEvent.RESTORE_FAILED,
            failure=failure,
        )
