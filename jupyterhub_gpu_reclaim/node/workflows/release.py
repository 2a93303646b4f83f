"""Release, kill and thaw: ends a captured session, or takes its capture back.

``release`` ends a tree only when the store confirms its checkpoint. ``thaw`` drops the
checkpoint before the tree continues, so that no checkpoint exists of a session that has
run on; until the checkpoint is gone the tree stays captured, so that whatever fails in
between can be tried again, or the tree released.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import shares_network
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.thaw import thaw as engine_thaw
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    RolledBack,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import Event, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.operations import trees
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import Saved
from jupyterhub_gpu_reclaim.node.operations.progress import Progress, in_thread
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.workflows import filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.node.dependencies import Parts
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session

_log = logging.getLogger(__name__)

#: A process not stopped by then waits for a disk; it is killed all the same.
_STOP_SECONDS = 2.0


async def release(
    parts: Parts, session: Session, operation: Operation
) -> AsyncIterator[Event]:
    """End a captured tree and its init; the last event is the tree, gone.

    Raises:
        Refused: it is not captured, or that checkpoint is not its own
            (``not_captured``); it was continued meanwhile (``went_on``): then all of it
            continues, and its checkpoint is dropped.
        StoreError: the store does not answer, or the agent's state folder cannot be
            written; nothing was ended.
        ReclaimError: it did not end in time (``release_failed``).
    """
    checkpoint = operation.checkpoint

    def work() -> None:
        record = _committed_record(parts, session, checkpoint)
        _refuse_if_it_went_on(parts, session, record)
        _note_release(parts, record)
        if shares_network(session.init_pid):
            reserve_ports(parts, checkpoint)
        _end(parts, session)
        parts.records.delete(session.incarnation)

    progress = Progress(operation, parts.clock)
    async with progress.step("release", "Ending the suspended programs"):
        await in_thread(work, step="release", limit=_limit(parts))
    yield Event(tree=trees.gone(session, checkpoint))


async def kill(
    parts: Parts, session: Session, operation: Operation
) -> AsyncIterator[Event]:
    """End a session, whatever it does; its checkpoints stay.

    Raises:
        ReclaimError: it did not end in time (``release_failed``).
    """
    record = parts.records.find(session.incarnation)

    def work() -> None:
        _end(parts, session)
        parts.records.delete(session.incarnation)

    progress = Progress(operation, parts.clock)
    async with progress.step("kill", "Ending its programs"):
        await in_thread(work, step="kill", limit=_limit(parts))
    yield Event(tree=trees.gone(session, record.checkpoint if record else ""))


async def thaw(
    parts: Parts, session: Session, operation: Operation
) -> AsyncIterator[Event]:
    """Thaw a captured tree and drop its checkpoint; one that runs is left alone.

    Raises:
        Refused: there is nothing in it to go on, or it is being ended already
            (``wrong_phase``).
        StoreError: the checkpoint could not be dropped; the tree stays captured.
        ReclaimError: its GPU memory could not be put back; likewise.
    """

    def work() -> None:
        record = parts.records.find(session.incarnation)
        record = record if trees.matches(record, session) else None
        state = trees.tree_of(session, record, None).state
        if state is TreeState.HOLDING:
            raise Refused(Reason.WRONG_PHASE, phase=state.value, action="go on")
        if record is None or state is not TreeState.CAPTURED:
            return
        if record.stage is Stage.RELEASING:
            # Its connections may be gone already: what would go on is not what stood.
            raise Refused(Reason.WRONG_PHASE, phase=record.stage.value, action="go on")
        undo_capture(parts, session, record)
        _note_thaw(parts, record)

    progress = Progress(operation, parts.clock)
    async with progress.step("thaw", "Letting it go on"):
        await in_thread(
            work, step="thaw", limit=parts.limits.check + parts.limits.restore
        )
    record = parts.records.find(session.incarnation)
    yield Event(tree=trees.tree_of(session, record, None))


def undo_capture(parts: Parts, session: Session, record: Record) -> None:
    """Thaw a captured tree without its checkpoint, and forget the capture.

    The checkpoint goes only when nothing is left that could fail: before that the tree
    stands as it was captured, and after it the tree is known to go on, also to a later
    agent, which finds it stopped and without a checkpoint.

    Raises:
        StoreError: the checkpoint could not be dropped; the tree stays stopped.
        ReclaimError: its GPU memory could not be put back (``gpu_memory``,
            ``gpu_stuck``); likewise.
    """
    parts.accelerator.fill(record.gpus, record.memory_limit, trees.look(session))
    parts.store.delete(record.checkpoint)
    engine_thaw(trees.look(session), record.stopped_before)
    parts.ports.release(record.checkpoint)
    parts.records.delete(session.incarnation)


def finish_release(parts: Parts, session: Session, record: Record) -> None:
    """End what a former agent had begun to end: its checkpoint was committed then."""
    _end(parts, session)
    parts.records.delete(record.incarnation)


def reserve_ports(parts: Parts, checkpoint: str) -> None:
    """Keep others off the ports that a saved session will bind again. Idempotent."""
    there = Saved(parts.store.open(checkpoint))
    needed = filesystem.ports_needed(there.checkpoint, there.world)
    parts.ports.reserve(checkpoint, needed)


def _committed_record(parts: Parts, session: Session, checkpoint: str) -> Record:
    """The record of a captured tree, if the store vouches for its checkpoint.

    Raises:
        Refused: ``not_captured``.
        StoreError: the store does not answer, so nothing is ended.
    """
    record = parts.records.find(session.incarnation)
    if (
        record is None
        or not trees.matches(record, session)
        or record.checkpoint != checkpoint
        or record.stage not in {Stage.CAPTURED, Stage.RELEASING}
    ):
        raise Refused(Reason.NOT_CAPTURED)
    try:
        info = parts.store.open(checkpoint).info
    except NotFound:
        raise Refused(Reason.NOT_CAPTURED) from None
    if info.incarnation != session.incarnation:
        raise Refused(Reason.NOT_CAPTURED)
    return record


def _refuse_if_it_went_on(parts: Parts, session: Session, record: Record) -> None:
    """Refuse to end a tree that is not as it was saved: its user may have woken it.

    Raises:
        Refused: ``went_on``; all of it goes on then, without its checkpoint.
        ReclaimError: the checkpoint could not be dropped, or its GPU memory not be put
            back; the same again next time.
    """
    there = Saved(parts.store.open(record.checkpoint))
    who = freeze.gone_on(trees.look(session), there.world.pids)
    if not who:
        return
    refusal = Refused(Reason.WENT_ON, who=who)
    undo_capture(parts, session, record)
    failed = record.at(Stage.FAILED, record.steps, failure=codec.failure_of(refusal))
    parts.records.save(failed)
    raise refusal


def _note_release(parts: Parts, record: Record) -> None:
    """Make it durable that the tree is being ended: it can only be ended from now on.

    Raises:
        StoreError: the state folder cannot be written (``state_full``).
    """
    try:
        parts.records.save(record.at(Stage.RELEASING, record.steps))
    except OSError as error:
        raise StoreError(Reason.STATE_FULL, detail=str(error)) from error


def _note_thaw(parts: Parts, record: Record) -> None:
    """Record the thaw, so that a late repeat of the capture's order learns of it."""
    failure = codec.failure_of(RolledBack(Reason.CANCELLED))
    try:
        parts.records.save(record.at(Stage.FAILED, record.steps, failure=failure))
    except OSError as error:
        # It goes on all the same; such an order would be obeyed once more.
        _log.warning("%s its thaw is not noted: %s", record.key, error)


def _end(parts: Parts, session: Session) -> None:
    """Reset its connections, then end its init and with it all of its namespace."""
    try:
        _reset(session)
    except NotFound:
        return
    except ReclaimError as error:
        _log.info("%s connections are left to time out: %s", session.key, error)
    processes.kill_session(
        session.init_pid, session.init_start, timeout=parts.limits.end
    )


def _reset(session: Session) -> None:
    """Close its sockets, once no process runs that would miss them.

    A server without its listener complains in the session's log, over and over. After
    its end it would be too late: what it leaves in TIME_WAIT keeps its port busy.
    """
    try:
        freeze.stop(session.init_pid, session.init_start, timeout=_STOP_SECONDS)
    except NotFound:
        raise
    except ReclaimError as error:
        _log.info("%s is ended as it runs: %s", session.key, error)
    pids = [process.pid for process in trees.look(session).processes]
    inet.reset_all(session.init_pid, pids)


def _limit(parts: Parts) -> float:
    return parts.limits.check + parts.limits.end
