"""Settles what a former agent, or a failed operation, left in the middle.

:func:`recover` runs once, before the agent answers its first call;
:func:`settle_after` follows an operation that could not undo all of its work. Every
session ends up running, captured or holding; never stopped and unknown to the agent.
The store decides whether a capture has happened: a tree whose checkpoint is committed
stays stopped for the service to release or thaw, any other continues. It ends only what
a restore had not completed or a release had begun to end, and never deletes a
checkpoint whose tree is not known to continue.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups, processes, procfs
from jupyterhub_gpu_reclaim.linux.processes import Process
from jupyterhub_gpu_reclaim.node.operations import trees
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.sessions.placements import Told
from jupyterhub_gpu_reclaim.node.workflows import capture, release

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.common.models import Event
    from jupyterhub_gpu_reclaim.node.dependencies import Parts
    from jupyterhub_gpu_reclaim.node.operations.operations import Operations
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session

_log = logging.getLogger(__name__)

#: Seconds after which the agent answers, even if sessions are not settled.
PATIENCE = 20.0
#: Seconds for which a sweep is waited for; it goes on after them.
_SWEEP_SECONDS = 2.0
#: Seconds until a store that did not answer is asked again.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: How long a CRIU may take to die of SIGTERM, then of SIGKILL.
_END_SECONDS = 5.0
#: What only our own CRIU has in its command line (checkpoint/criu/process.py,
#: namespaces.py).
_CRIU_WORDS = ("--inhibit-cache", "--manage-cgroups=ignore")

#: Not now, but later: memory in use by others, or a driver or disk that is busy.
_LATER = frozenset({Reason.GPU_MEMORY, Reason.GPU_DRIVER_SILENT})
#: Whether there is a checkpoint is the store's word alone.
_UNCOMMITTED = frozenset({Stage.CAPTURING, Stage.ROLLING_BACK})
#: What an operation leaves when it could not undo its work.
_HALF_UNDONE = frozenset({Stage.ROLLING_BACK, Stage.RESTORING})

#: Tasks that outlive :func:`recover`: asyncio alone would forget them.
_kept: set[asyncio.Task[None]] = set()


async def recover(
    parts: Parts, operations: Operations, *, patience: float = PATIENCE
) -> None:
    """Settle every session of this node, all at once; repeat at will.

    A session that cannot be settled now is logged and left as it is: the next start
    tries again. One that takes longer than that, or for which the store does not
    answer yet, is settled as an operation like any other, so that no order touches it
    meanwhile; the others do not wait for it.

    Args:
        parts: the agent's.
        operations: where a session is busy until it is settled.
        patience: seconds until it returns, even if sessions are not settled by then or
            the store is not swept; the sweep is retried until it has been done once.
    """
    await asyncio.to_thread(_remember_pods, parts)
    sessions = await asyncio.to_thread(parts.placements.list)
    sessions = await asyncio.to_thread(_one_each, sessions)
    await asyncio.to_thread(_forget_gone, parts, sessions)
    begun = [(session, _begin(parts, operations, session)) for session in sessions]
    waits = [operation.wait(patience) for _, operation in begun]
    await asyncio.gather(*waits)
    for session, operation in begun:
        if not operation.done:
            _log.warning("%s is not settled yet; it stays busy", session.key)
    sweeping = _keep(_insist(parts, partial(_sweep, parts), "-"))
    if not (await asyncio.wait({sweeping}, timeout=_SWEEP_SECONDS))[0]:
        _log.warning("- the store is not swept yet: it does not answer")


def settle_after(
    parts: Parts, operations: Operations, session: Session, operation: Operation
) -> None:
    """Once that operation has ended, undo what it could not undo itself; at once."""

    async def settle() -> None:
        await operation.wait()
        record = await asyncio.to_thread(parts.records.find, session.incarnation)
        if record is None or not trees.matches(record, session):
            return
        if record.stage in _HALF_UNDONE and not operations.running(session.incarnation):
            _begin(parts, operations, session)

    _keep(settle())


def _keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


def _begin(parts: Parts, operations: Operations, session: Session) -> Operation:
    async def work(operation: Operation) -> AsyncIterator[Event]:
        # Without the store's answer it is unknown whether it may go on; until then it
        # stays stopped, and busy, or the service would take it for a running one.
        settle = partial(_settle, parts, session)
        await _insist(parts, settle, operation.key, operation.cancel)
        told: tuple[Event, ...] = ()  # nothing, but this is how operations run
        for event in told:
            yield event

    operation = Operation(trees.RECOVER, session.key, "")
    return operations.begin(session.incarnation, operation, work)


def _remember_pods(parts: Parts) -> None:
    """Register the former agent's pods; the service names them again only later."""
    for record in parts.records.list():
        if record.pod:
            told = Told(pod=record.pod, key=record.key)
            parts.placements.tell(record.incarnation, told)


def _one_each(sessions: list[Session]) -> list[Session]:
    """The oldest of those that claim one incarnation, without facts of the service."""
    found: dict[str, Session] = {}
    for session in sorted(sessions, key=lambda one: one.init_start):
        found.setdefault(session.incarnation, session)
    return list(found.values())


async def _insist(
    parts: Parts,
    work: Callable[[], object],
    key: object,
    cancel: Cancel | None = None,
) -> None:
    """Repeat it until it succeeds or is cancelled."""
    pause = _FIRST_PAUSE
    while not await asyncio.to_thread(_attempt, work, key):
        if cancel is not None and cancel.is_set:
            return
        await parts.clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _forget_gone(parts: Parts, sessions: list[Session]) -> None:
    """Drop the records of inits that have ended.

    What they had to take back stays if it is committed: with the tree gone it is the
    newest state that there is. What is not committed is swept.
    """
    by_name = {session.incarnation: session for session in sessions}
    for record in parts.records.list():
        session = by_name.get(record.incarnation)
        if session is None or not trees.matches(record, session):
            parts.records.delete(record.incarnation)


def _sweep(parts: Parts) -> None:
    """Remove unfinished checkpoints without a writer; keep saved sessions' ports."""
    swept = parts.store.sweep()
    if swept.removed:
        _log.info("- removed the remains of %s", ", ".join(swept.removed))
    parts.ports.reapply(keep=[info.id for info in parts.store.list()])


def _settle(parts: Parts, session: Session) -> None:
    record = parts.records.find(session.incarnation)
    end_criu(session, parts.limits.criu)
    if record is None:
        _settle_unknown(parts, session)
        return
    match record.stage:
        case Stage.RELEASING if parts.store.exists(record.checkpoint):
            release.finish_release(parts, session, record)
            _log.info("%s is ended, suspended as %s", session.key, record.checkpoint)
        case (
            Stage.CAPTURING
            | Stage.ROLLING_BACK
            | Stage.CAPTURED
            | Stage.THAWING
            | Stage.RELEASING
        ):
            _settle_capture(parts, session, record)
        case Stage.RESTORING:
            processes.kill_tree(
                session.init_pid, session.init_start, timeout=parts.limits.end
            )
            cgroups.restore_memory_limit(record.memory_limit)
            _fail(parts, record)
        case Stage.CONTINUING:
            _settle_continuing(parts, session, record)
        case Stage.RESTORED | Stage.FAILED:
            pass


def _settle_capture(parts: Parts, session: Session, record: Record) -> None:
    """Settle a capture as the store says: committed, or it does not exist."""
    capturing, store = record.stage in _UNCOMMITTED, parts.store
    # What was captured before may have gone on to the store behind this node's folder.
    if store.saved_here(record.checkpoint) or (
        not capturing and store.exists(record.checkpoint)
    ):
        if capturing and goes_on(session):
            # It was rolled back, and neither the store nor the record took note.
            release.undo_capture(parts, session, record)
            _fail(parts, record)
            return
        if record.stage is not Stage.CAPTURED:
            parts.records.save(record.at(Stage.CAPTURED, record.steps, failure=None))
        _log.info("%s is captured as %s", session.key, record.checkpoint)
        return
    capture.let_go_on(parts.accelerator, session, record)
    _fail(parts, record)


def goes_on(session: Session) -> bool:
    """Whether some of its programs run: what is saved is then older than they are."""
    alive = [p for p in trees.look(session).processes if p.state not in processes.DEAD]
    return not all(process.stopped for process in alive)


def _settle_continuing(parts: Parts, session: Session, record: Record) -> None:
    """Continue a restored tree, again if it had been, since that is not known."""
    tree = trees.look(session)
    if tree.root is None:
        _fail(parts, record)
        return
    try:
        parts.accelerator.fill(record.gpus, record.memory_limit, tree)
    except ReclaimError as error:
        # No process may go on without it; the checkpoint is there for another attempt.
        processes.kill_tree(
            session.init_pid, session.init_start, timeout=parts.limits.end
        )
        failed = msgspec.structs.replace(record, failure=codec.failure_of(error))
        _fail(parts, failed)
        return
    engine.proceed(engine.RestoreResult(tree, 0.0, ""), record.stopped_before)
    parts.records.save(record.at(Stage.RESTORED, record.steps))
    _log.info("%s goes on from %s", session.key, record.checkpoint)


def _settle_unknown(parts: Parts, session: Session) -> None:
    """A tree without a record: the state folder was lost, or nothing ever happened."""
    tree = trees.look(session)
    if not any(p.state not in processes.DEAD for p in tree.processes):
        return
    if goes_on(session):
        return
    mine = [i for i in parts.store.list() if i.incarnation == session.incarnation]
    record = Record(
        operation="capture",
        incarnation=session.incarnation,
        key=session.key,
        stage=Stage.CAPTURED,
        checkpoint=mine[-1].id if mine else "",
        generation=mine[-1].generation if mine else 0,
        init_pid=session.init_pid,
        init_start=session.init_start,
        begun=parts.clock.now(),
        pod=session.told.pod,
    )
    if mine:
        parts.records.save(record)
        _log.warning("%s was found captured as %s", session.key, record.checkpoint)
        return
    capture.let_go_on(parts.accelerator, session, record)
    _log.warning("%s was found stopped and goes on: no checkpoint", session.key)


def _fail(parts: Parts, record: Record) -> None:
    """End the operation with an error of the agent's own."""
    restarted = codec.failure_of(ReclaimError(Reason.AGENT_RESTARTED))
    failure = record.failure or restarted
    parts.records.save(record.at(Stage.FAILED, record.steps, failure=failure))
    _log.warning("%s %s undone: agent restarted", record.key, record.operation)


def end_criu(session: Session, seconds: float) -> None:
    """Wait until a CRIU whose agent has died is gone; end it only when it hangs.

    Its stream broke with the agent, so it fails by itself and undoes its work.

    Args:
        session: whose.
        seconds: that it may take.
    """
    running = _criu_inside(session)
    for number, patience in (
        (None, seconds),
        (signal.SIGTERM, _END_SECONDS),
        (signal.SIGKILL, _END_SECONDS),
    ):
        if not running:
            return
        if number is not None:
            for process in running:
                processes.send(process, number)
        running = processes.wait_gone(running, time.monotonic() + patience)
    if running:
        _log.error("%s CRIU does not end: %d", session.key, running[0].pid)


def _criu_inside(session: Session) -> list[Process]:
    """Our CRIU's own processes in that session's pid namespace."""
    space = procfs.link(session.init_pid, "ns/pid")
    found = []
    for entry in procfs.PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        # Whose it is comes first: a user's command line may block who reads it.
        if procfs.link(pid, "ns/pid") != space or _owner(entry) != 0:
            continue
        words = procfs.text(pid, "cmdline").split("\0")
        if not all(word in words for word in _CRIU_WORDS):
            continue
        start = processes.start_time(pid)
        if start is not None:
            name = procfs.name(pid)
            found.append(Process(pid, 0, 0, name, "S", start, 0))
    return found


def _owner(entry: Path) -> int | None:
    """The user of a process; None when it has ended."""
    try:
        return entry.stat().st_uid
    except OSError:
        return None


def _attempt(work: Callable[[], object], key: object) -> bool:
    """Do it, or log why not; False when it is to be tried again."""
    try:
        work()
    except NotFound:
        return True  # it ended while we looked
    except StoreError as error:
        _log.error("%s not settled yet: %s", key, error)
        return False
    except OSError as error:  # the state folder is full, for one
        _log.error("%s not settled yet: %s", key, error)
        return False
    except ReclaimError as error:
        _log.error("%s not settled: %s", key, error)
        return error.reason not in _LATER
    return True
