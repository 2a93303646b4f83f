"""Release, kill and thaw: ends a captured session, or undoes its capture.

``release`` ends a tree only when the store confirms its checkpoint. ``thaw`` drops the
checkpoint before the tree continues, so that no checkpoint exists of a session that has
run on; until the checkpoint is gone the tree stays captured, so that a failure in
between can be retried, or the tree released.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.memory import robust_lists
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import lasting_names_of
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    RolledBack,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import CheckpointContents
from jupyterhub_gpu_reclaim.node.operations.operations import in_thread, reported_step
from jupyterhub_gpu_reclaim.node.operations.records import SAVED, Record, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import filesystem, nap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools

_log = logging.getLogger(__name__)

#: A process not stopped by then waits for a disk; it is killed all the same.
_STOP_SECONDS = 2.0


@dataclass(frozen=True)
class Releases:
    """Ends captured sessions, kills any, and undoes captures."""

    tools: WorkflowTools

    async def release(self, session: Session, operation: Operation) -> None:
        """End a captured tree and its init.

        Raises:
            Refused: it is not captured, or that checkpoint is not its own
                (``not_captured``); it was continued meanwhile (``went_on``): then all
                of it continues, and its checkpoint is dropped.
            StoreError: the store does not answer, or the agent's state folder cannot be
                written; nothing was ended.
            ReclaimError: it did not end in time (``release_failed``).
        """
        checkpoint = operation.checkpoint

        def work() -> None:
            record, there = self._committed(session, checkpoint)
            # Looked at last: the store may be slow, and its user may wake it meanwhile.
            self._refuse_if_it_went_on(session, record, there)
            try:  # from now on the tree can only be ended
                self.tools.records.save(record.at(Stage.RELEASING, record.steps))
            except OSError as error:
                raise StoreError(Reason.STATE_FULL, detail=str(error)) from error
            self._end_held(session, there)
            self.tools.records.delete(session.incarnation)

        await self._step(operation, "release", "Ending the suspended programs", work)

    async def kill(self, session: Session, operation: Operation) -> None:
        """End a session, whatever it does; its checkpoints stay.

        Raises:
            ReclaimError: it did not end in time (``release_failed``).
        """
        record = self.tools.records.find(session.incarnation)

        def work() -> None:
            self._end(session, saved=record is not None and record.stage in SAVED)
            self.tools.records.delete(session.incarnation)

        await self._step(operation, "kill", "Ending its programs", work)

    async def thaw(self, session: Session, operation: Operation) -> None:
        """Thaw a captured tree and drop its checkpoint; one that runs is left alone.

        Raises:
            Refused: there is nothing in it to continue, or it is being ended already
                (``wrong_phase``).
            StoreError: the checkpoint could not be dropped; the tree stays captured.
            ReclaimError: its GPU memory could not be put back; likewise.
        """

        def work() -> None:
            record = trees.record_of(self.tools.records, session)
            state = trees.tree_of(session, record, None).state
            if state is TreeState.HOLDING:
                raise Refused(Reason.WRONG_PHASE, phase=state.value, action="go on")
            if record is None or state is not TreeState.CAPTURED:
                return
            if record.stage is Stage.RELEASING:
                # Its connections may be gone already: what would go on is not what
                # stood.
                raise Refused(
                    Reason.WRONG_PHASE, phase=record.stage.value, action="go on"
                )
            self.undo_capture(session, record)
            # A late repeat of the capture order learns of it.
            self._note_failed(record, RolledBack(Reason.CANCELLED))

        await self._step(operation, "thaw", "Letting it go on", work)

    def undo_capture(self, session: Session, record: Record) -> None:
        """Thaw a captured tree without its checkpoint, and forget the capture.

        The checkpoint goes only when nothing is left that could fail: before that the
        tree stays as it was captured, and after it the tree is known to go on, also to
        a later agent, which finds it stopped and without a checkpoint.

        Raises:
            NotFound, Refused: the tree has died; its checkpoint is all that is left.
            StoreError: the checkpoint could not be dropped; the tree stays stopped.
            ReclaimError: its GPU memory could not be put back (``gpu_memory``,
                ``gpu_stuck``); likewise.
        """
        self.tools.accelerator.fill(
            record.gpus, record.memory_limit, trees.inspect(session)
        )
        snapshot = trees.inspect(session)
        if snapshot.root is None or snapshot.root.state in processes.DEAD:
            # It may have died of just that memory.
            raise Refused(Reason.WRONG_PHASE, phase="dead", action="go on")
        self.tools.store.delete(record.checkpoint)
        thaw(snapshot, trees.left_stopped(record, snapshot))
        self.tools.ports.let_go(record.checkpoint)
        if record.nap is None:  # that began before, and goes on
            self.tools.records.delete(record.incarnation)
        else:
            self.tools.records.note(record.at(Stage.SETTLED, record.steps, gpus=None))

    def finish_release(self, session: Session, record: Record) -> None:
        """Finish a former agent's release; its checkpoint is committed."""
        self._end_held(session, self._contents(record.checkpoint))
        self.tools.records.delete(record.incarnation)

    def finish_ended(self, incarnation: str, checkpoint: str) -> None:
        """Release a session that has ended, if that checkpoint is its own."""
        try:
            info = self.tools.store.info(checkpoint)
        except NotFound:
            info = None
        if info is None or info.incarnation != incarnation:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        self.hold_ports(checkpoint)
        self.tools.records.delete(incarnation)

    def hold_ports(self, checkpoint: str) -> None:
        """Keep others off the ports that the session will bind again. Idempotent."""
        self._hold(self._contents(checkpoint))

    def _hold(self, there: CheckpointContents, pids: Collection[int] = ()) -> None:
        """The same; its pids are given if it is just about to be ended."""
        if there.world.shares_network:
            info = there.checkpoint.info
            entries = filesystem.entries_in(there.checkpoint, there.world, os.getpid())
            needed, names = inet.ports_of(entries), lasting_names_of(entries)
            self.tools.ports.hold(info.id, info.key.user, needed, pids, names)

    def _contents(self, checkpoint: str) -> CheckpointContents:
        return CheckpointContents(self.tools.store.open(checkpoint))

    def _end_held(self, session: Session, there: CheckpointContents) -> None:
        with suppress(NotFound):
            pids = [process.pid for process in trees.inspect(session).processes]
            self._hold(there, pids)
        self._end(session, saved=True)
        self.tools.ports.take_again(
            there.checkpoint.info.id
        )  # what could not be had before

    def _committed(
        self, session: Session, checkpoint: str
    ) -> tuple[Record, CheckpointContents]:
        """The record of a captured tree, and the checkpoint that the store vouches for.

        Raises:
            Refused: ``not_captured``.
            StoreError: the store does not answer, so nothing is ended.
        """
        record = trees.record_of(self.tools.records, session)
        if (
            record is None
            or record.checkpoint != checkpoint
            or record.stage not in SAVED
        ):
            raise Refused(Reason.NOT_CAPTURED)
        try:
            there = self._contents(checkpoint)
        except NotFound:
            raise Refused(Reason.NOT_CAPTURED) from None
        if there.checkpoint.info.incarnation != session.incarnation:
            raise Refused(Reason.NOT_CAPTURED)
        return record, there

    def _refuse_if_it_went_on(
        self, session: Session, record: Record, there: CheckpointContents
    ) -> None:
        """Refuse to end a tree that is not as it was saved: its user may have woken it.

        Raises:
            Refused: ``went_on``; all of it goes on then, without its checkpoint. What
                finds its card full naps.
            ReclaimError: the checkpoint could not be dropped, or the driver does not
                put its memory back; the same again next time.
        """
        who = freeze.continued(trees.inspect(session), there.world.pids)
        if not who:
            return
        refusal = Refused(Reason.WENT_ON, who=who)
        try:
            self.undo_capture(session, record)
        except ReclaimError as error:
            if error.reason is not Reason.GPU_MEMORY:
                raise
            # That save is over, whether there is room for it or not.
            self.tools.store.delete(record.checkpoint)
            record = nap.thawed(
                self.tools.accelerator, session, record, self.tools.clock.now()
            )
            self.tools.ports.let_go(record.checkpoint)
        self._note_failed(record, refusal)
        raise refusal

    def _note_failed(self, record: Record, why: ReclaimError) -> None:
        failed = record.at(Stage.FAILED, record.steps, failure=codec.failure_of(why))
        self.tools.records.note(failed)

    def _end(self, session: Session, *, saved: bool) -> None:
        """Reset its connections, then end its init and with it all of its namespace."""
        try:
            _reset(session)
            if saved:
                robust_lists.forget(trees.inspect(session))
        except NotFound:
            return
        except ReclaimError as error:
            _log.info(
                "%s connections cannot be reset and will time out: %s",
                session.key,
                error,
            )
        processes.kill_session(
            session.init_pid, session.init_start, timeout=self.tools.limits.end
        )

    async def _step(
        self, operation: Operation, name: str, title: str, work: Callable[[], None]
    ) -> None:
        limits = self.tools.limits
        limit = limits.filling if name == "thaw" else limits.check + limits.end
        async with reported_step(operation, self.tools.clock, name, title):
            await in_thread(work, step=name, limit=limit)


def _reset(session: Session) -> None:
    """Close its sockets, once no process runs that would miss them.

    A server without its listener complains in the session's log, over and over. After
    its end it would be too late: its sockets in TIME_WAIT keep its port busy.
    """
    try:
        freeze.stop(session.init_pid, session.init_start, timeout=_STOP_SECONDS)
    except NotFound:
        raise
    except ReclaimError as error:
        _log.info("%s is killed without being stopped first: %s", session.key, error)
    pids = [process.pid for process in trees.inspect(session).processes]
    inet.reset_all(session.init_pid, pids)
