"""The state of each session, a ``Tree``, from its processes and its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.models import Nap, Tree, TreeState
from jupyterhub_gpu_reclaim.linux import cgroups, processes, procfs
from jupyterhub_gpu_reclaim.node.operations.records import NapStage, Record, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.operations.records import NapRecord, Records
    from jupyterhub_gpu_reclaim.node.session import Session

#: Stopped by us; also where taking that back has failed, so that it can be tried again.
_STOPPED = {Stage.CAPTURED, Stage.RELEASING, Stage.ROLLING_BACK}
#: The operation that settles what a former agent left (``recovery``).
RECOVER = "recover"
#: A wake has its memory back a moment before it ends, and other orders wait for that.
_IN_HAND = {
    orders.Capture.kind: TreeState.CAPTURING,
    orders.Restore.kind: TreeState.RESTORING,
    orders.Wake.kind: TreeState.NAPPING,
}
#: Of what it settles, this is as unfinished as it was then.
_UNFINISHED = {Stage.CAPTURING, Stage.RESTORING, Stage.CONTINUING}


def inspect(
    session: Session, children: Mapping[int, Sequence[int]] | None = None
) -> Snapshot:
    """The session's processes now; NotFound: its init has ended."""
    return processes.snapshot(session.init_pid, session.init_start, children)


def limit_of(session: Session) -> LimitRecord:
    """The memory limit to be lifted while GPU memory is in its programs' own."""
    return cgroups.find_memory_limit(session.init_pid, session.hint.pod)


def resident_bytes(snapshot: Snapshot) -> int:
    """Private memory of all its processes: about what a capture will write."""
    return sum(procfs.private_bytes(process.pid) for process in snapshot.processes)


def matches(record: Record | None, session: Session) -> bool:
    """Whether a record is about that very init, not about one of the same name."""
    return record is not None and (record.init_pid, record.init_start) == (
        session.init_pid,
        session.init_start,
    )


def record_of(records: Records, session: Session) -> Record | None:
    record = records.find(session.incarnation)
    return record if matches(record, session) else None


def left_stopped(record: Record, snapshot: Snapshot) -> list[int]:
    """Pids in the session of those that stay stopped when a capture is undone."""
    napping = record.nap.in_tree(snapshot) if record.nap else []
    return [*record.stopped_before, *(process.ns_pid for process in napping)]


def awake(record: Record | None, snapshot: Snapshot) -> Snapshot:
    if record is None or record.nap is None:
        return snapshot
    return without(snapshot, record.nap.in_tree(snapshot))


def without(snapshot: Snapshot, some: Iterable[Process]) -> Snapshot:
    known = {(process.pid, process.start_time) for process in some}
    others = (p for p in snapshot.processes if (p.pid, p.start_time) not in known)
    return processes.Snapshot(snapshot.init, tuple(others))


def tree_of(
    session: Session, record: Record | None, operation: Operation | None
) -> Tree:
    record = record if matches(record, session) else None
    running = operation if operation is not None and not operation.done else None
    return Tree(
        incarnation=session.incarnation,
        key=session.key,
        state=_state(session, record, running),
        init_pid=session.init_pid,
        checkpoint=_checkpoint(record, running),
        origin=record.origin if record else "",
        generation=record.generation if record else 0,
        operation=running.kind if running else "",
        steps=(operation.steps if operation else [])
        or (record.steps if record else []),
        failure=record.failure if record else None,
        pod=session.hint.pod,
        ending=running is not None and running.kind == orders.Kill.kind,
        nap=_nap(record.nap) if record is not None and record.naps else None,
        session=session.hint.session,
        account=session.hint.account,
        as_of=record.as_of if record else 0.0,
        newer=record.newer if record else [],
    )


def _nap(record: NapRecord | None) -> Nap | None:
    if record is None or record.stage is NapStage.FALLING:
        return None
    return Nap(begun=record.begun, gpus=record.gpus.held())


def _checkpoint(record: Record | None, running: Operation | None) -> str:
    if running and running.checkpoint and running.kind != orders.Save.kind:
        return running.checkpoint
    return record.checkpoint if record else ""


def has_programs(session: Session) -> bool:
    """Whether anything runs below the session's init; NotFound: that has ended."""
    processes.snapshot_init(session.init_pid, session.init_start)
    return processes.has_children(session.init_pid)


def is_running(session: Session) -> bool:
    """Whether programs run, newer than its saved state; NotFound: its init ended."""
    return not all(process.stopped for process in inspect(session).alive)


def _state(
    session: Session, record: Record | None, operation: Operation | None
) -> TreeState:
    kind = operation.kind if operation is not None else ""
    if kind == RECOVER and record is not None and record.stage in _UNFINISHED:
        kind = record.operation
    if kind in _IN_HAND:
        return _IN_HAND[kind]
    if record is not None and record.stage in _STOPPED:
        # It may go on, and only the store not have taken note of it yet.
        undone = record.stage is Stage.ROLLING_BACK and is_running(session)
        return TreeState.RUNNING if undone else TreeState.CAPTURED
    if session.holding and not has_programs(session):
        return TreeState.HOLDING
    # While a nap is carried out, the session still counts as running.
    naps = record is not None and record.nap is not None and kind != orders.Nap.kind
    if naps and record is not None and (record.naps or kind == orders.Save.kind):
        return TreeState.NAPPING
    if record is not None and record.stage is Stage.RESTORING:
        return TreeState.RESTORING  # half of it, which could not be ended
    return TreeState.RUNNING
