"""Settles operations that a former agent, or a failure, left in the middle.

:func:`recover` runs once, before the agent answers its first call;
:func:`settle_after` follows an operation that could not undo all of its work. Every
session ends up running, captured or holding; never stopped and unknown to the agent.

An uncommitted capture has been undone already (``rescue``). A captured tree stays
stopped for the service to release or thaw, if the store confirms it in time, and goes
on if not. It ends only unfinished restores and begun releases, and never deletes a
checkpoint whose tree is not known to continue.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.memory import robust_lists
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups, processes, procfs
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.records import NapStage, Record, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from jupyterhub_gpu_reclaim.node.workflows import capture, nap
from jupyterhub_gpu_reclaim.node.workflows.release import Releases

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.operations import Operations
    from jupyterhub_gpu_reclaim.node.operations.records import Records
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools

_log = logging.getLogger(__name__)

#: Seconds after which the agent answers, even if sessions are not settled.
PATIENCE = 20.0
#: Seconds for which a sweep is waited for; it goes on after them.
_SWEEP_SECONDS = 2.0
#: Seconds until a store that did not answer is asked again.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: How long a CRIU may take to die of SIGTERM, then of SIGKILL.
_END_SECONDS = 5.0
#: Options that only our own CRIU has in its command line (checkpoint/criu/process.py,
#: namespaces.py).
_CRIU_WORDS = ("--inhibit-cache", "--manage-cgroups=ignore")

#: Not now, but later: memory in use by others, or a driver, disk or store that is busy.
_LATER = frozenset(
    {
        Reason.GPU_MEMORY,
        Reason.GPU_DRIVER_SILENT,
        Reason.GPU_STUCK,
        Reason.OPERATION_IN_FLIGHT,
    }
)
#: Whether there is a checkpoint is the store's word alone.
UNCOMMITTED = frozenset({Stage.CAPTURING, Stage.ROLLING_BACK})
#: What stands still, or may.
FROZEN = UNCOMMITTED | {Stage.CAPTURED}
#: Stages that an operation leaves when it could not undo its work.
_HALF_UNDONE = frozenset({Stage.ROLLING_BACK, Stage.RESTORING})

#: Tasks that outlive :func:`recover`: asyncio alone would forget them.
_kept: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, kw_only=True)
class Recovery:
    placements: Placements
    operations: Operations  #: where a session is busy until it is settled
    tools: WorkflowTools
    #: incarnations that went on before the store had said what is committed
    _unasked: set[str] = field(default_factory=set)

    @property
    def releases(self) -> Releases:
        return Releases(self.tools)

    async def recover(self, *, patience: float = PATIENCE) -> None:
        """Settle every session of this node, all at once; repeat at will.

        A session that cannot be settled now is logged and left as it is: the next start
        tries again. After ``patience`` seconds it returns. A session that is not
        settled by then, or for which the store does not answer yet, is settled as an
        operation like any other, so that no order touches it meanwhile. The sweep of
        the store is retried until it has been done once.
        """
        await asyncio.to_thread(self._remember_pods)
        found = await asyncio.to_thread(self._sessions)
        # The oldest of those that claim one incarnation, without the service's facts.
        found.sort(key=lambda one: one.init_start, reverse=True)
        sessions = list({one.incarnation: one for one in found}.values())
        for record in await asyncio.to_thread(self._forget_gone, sessions):
            records, accelerator = self.tools.records, self.tools.accelerator
            _keep(asyncio.to_thread(let_go_on, record, records, accelerator))
        begun = [(session, self._begin(session)) for session in sessions]
        waits = [operation.wait(patience) for _, operation in begun]
        await asyncio.gather(*waits)
        for session, operation in begun:
            if not operation.done:
                _log.warning("%s is not recovered yet and stays busy", session.key)
                going_on = partial(self._let_go_on, session, operation)
                _keep(self._insist(going_on, session.key))
        sweeping = _keep(self._insist(self._sweep, "-"))
        if not (await asyncio.wait({sweeping}, timeout=_SWEEP_SECONDS))[0]:
            _log.warning(
                "- unfinished checkpoints not removed yet: the store does not answer"
            )

    def settle_after(self, session: Session, operation: Operation) -> None:
        """Undo what that operation, once ended, could not undo itself; at once."""

        async def settle() -> None:
            await operation.wait()
            record = await asyncio.to_thread(
                trees.record_of, self.tools.records, session
            )
            busy = self.operations.running(session.incarnation)
            if record is not None and record.stage in _HALF_UNDONE and not busy:
                self._begin(session)

        _keep(settle())

    def _begin(self, session: Session) -> Operation:
        async def work(operation: Operation) -> None:
            # Until the store has answered it is busy: what it has of the session may be
            # older than what runs.
            settle = partial(self._settle, session)
            await self._insist(settle, operation.key, operation.cancel)
            if session.incarnation in self._unasked:
                await self._insist(settle, operation.key, operation.cancel)

        operation = Operation(trees.RECOVER, session.key, "")
        return self.operations.begin(session.incarnation, operation, work)

    def _sessions(self) -> list[Session]:
        """Sessions here; while others cannot be listed, those that have a record."""
        # An agent that waited for the engine would leave the recorded ones frozen.
        try:
            return self.placements.list()
        except Unreachable as error:
            _log.warning("- sessions without a record are not known: %s", error)
        found = []
        for record in self.tools.records.list():
            with suppress(NotFound):
                found.append(self.placements.find(record.incarnation))
        return found

    def _remember_pods(self) -> None:
        """Register the former agent's pods; the service names them again only later."""
        for record in self.tools.records.list():
            if record.hint.pod:
                self.placements.set_hint(record.incarnation, record.hint)

    async def _insist(
        self,
        work: Callable[[], object],
        key: object,
        cancel: Cancel | None = None,
    ) -> None:
        pause = _FIRST_PAUSE
        while not await asyncio.to_thread(_attempt, work, key):
            if cancel is not None and cancel.is_set:
                return
            await self.tools.clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _forget_gone(self, sessions: list[Session]) -> list[Record]:
        """Forget those that have ended; the records of those that nobody looks after.

        They live and are not found: their agent had another placement or realm.
        """
        # A checkpoint that they had to undo stays if it is committed: with the tree
        # gone it is the newest state that there is. An uncommitted one is swept.
        by_name = {session.incarnation: session for session in sessions}
        strangers = []
        for record in self.tools.records.list():
            session = by_name.get(record.incarnation)
            lives = processes.start_time(record.init_pid) == record.init_start
            gone = not lives if session is None else not trees.matches(record, session)
            if gone:
                self.tools.records.delete(record.incarnation)
            elif session is None:
                strangers.append(record)
        return strangers

    def _sweep(self) -> None:
        swept = self.tools.store.sweep()
        if swept.removed:
            _log.info("- removed unfinished checkpoints: %s", ", ".join(swept.removed))
        ports = self.tools.ports
        ports.settle()
        held = ports.checkpoints()  # before the list: a release may add one meanwhile
        saved = self.tools.store.list()
        there = {info.id for info in saved}
        for checkpoint in set(held) - there:
            ports.let_go(checkpoint)
        if isinstance(self.placements, LocalPlacements):
            self._hold_forgotten(saved)

    def _hold_forgotten(self, saved: list[CheckpointInfo]) -> None:
        """Hold ports of suspended sessions that a restored state folder lacks."""
        # Sessions that run here have theirs.
        known = set(self.tools.ports.checkpoints())
        here = {session.key for session in self.placements.list()}
        saved = sorted(saved, key=lambda info: info.stamp)
        newest = {info.key: info.id for info in saved if info.key not in here}
        for checkpoint in set(newest.values()) - known:
            try:
                self.releases.hold_ports(checkpoint)
            except ReclaimError as error:
                _log.warning("- the ports of %s are not held: %s", checkpoint, error)

    def _settle(self, session: Session) -> None:
        record = self.tools.records.find(session.incarnation)
        end_criu(session, self.tools.limits.criu)
        if record is None:
            self._settle_unknown(session)
            return
        match record.stage:
            case Stage.RELEASING if self.tools.store.exists(record.checkpoint):
                self.releases.finish_release(session, record)
                _log.info(
                    "%s released, suspended as %s", session.key, record.checkpoint
                )
            case (
                Stage.CAPTURING | Stage.ROLLING_BACK | Stage.CAPTURED | Stage.RELEASING
            ):
                self._settle_capture(session, record)
            case Stage.RESTORING:
                self._end_unfinished(session)
                cgroups.restore_memory_limit(record.memory_limit)
                self._fail(record)
            case Stage.CONTINUING:
                self._settle_continuing(session, record)
            case Stage.RESTORED:
                self.tools.ports.let_go(record.checkpoint)
            case Stage.FAILED | Stage.SETTLED:
                pass  # what naps is held, or woken, by ``nap.wakers``

    def _let_go_on(self, session: Session, operation: Operation) -> None:
        """Let a captured tree go on: the store does not say whether it is committed."""
        # Nothing can be released or brought back then; its checkpoint is dropped later.
        records = self.tools.records
        record = trees.record_of(records, session)
        if operation.done or record is None or record.stage is not Stage.CAPTURED:
            return
        self._unasked.add(session.incarnation)
        if undo_unasked(session, record, records, self.tools.accelerator):
            _log.warning("%s goes on: the store does not answer", session.key)

    def _settle_capture(self, session: Session, record: Record) -> None:
        """Settle a capture by the store: committed, or it does not exist."""
        capturing, store = record.stage in UNCOMMITTED, self.tools.store
        if store.exists(record.checkpoint):
            if capturing and trees.is_running(session):
                # It was rolled back, and neither the store nor the record took note.
                self.releases.undo_capture(session, record)
                self._fail(record)
                return
            if record.stage is not Stage.CAPTURED:
                self.tools.records.save(
                    record.at(Stage.CAPTURED, record.steps, failure=None)
                )
            _log.info("%s is captured as %s", session.key, record.checkpoint)
            return
        now = self.tools.clock.now()
        record = nap.thawed(self.tools.accelerator, session, record, now)
        # Left alone, its intent would keep its data, and those of earlier generations,
        # for a day. A writer that is still at it may yet commit.
        self.tools.store.delete(record.checkpoint)
        self._fail(record)

    def _end_unfinished(self, session: Session) -> None:
        """End what has come back and never went on; its checkpoint exists."""
        robust_lists.forget(trees.inspect(session))
        processes.kill_tree(
            session.init_pid, session.init_start, timeout=self.tools.limits.end
        )

    def _settle_continuing(self, session: Session, record: Record) -> None:
        """Continue a restored tree, again if it had been, since that is unknown."""
        tree = trees.inspect(session)
        if tree.root is None:
            self._fail(record)
            return
        try:
            self.tools.accelerator.fill(record.gpus, record.memory_limit, tree)
        except ReclaimError as error:
            if trees.is_running(session):
                raise  # it had gone on: what it did since then is saved nowhere
            # No process may go on without it; the checkpoint is there for another
            # attempt.
            self._end_unfinished(session)
            failed = msgspec.structs.replace(record, failure=codec.failure_of(error))
            self._fail(failed)
            return
        engine.proceed(engine.RestoreResult(tree), record.stopped_before)
        self.tools.records.save(record.at(Stage.RESTORED, record.steps))
        self.tools.ports.let_go(record.checkpoint)
        _log.info("%s continues from %s", session.key, record.checkpoint)

    def _settle_unknown(self, session: Session) -> None:
        """Settle a tree without a record: the state folder was lost, or was empty."""
        # It may be in the middle of a capture, so a save point is not its state.
        if not trees.inspect(session).alive or trees.is_running(session):
            return
        infos = self.tools.store.list()
        own = [
            info
            for info in infos
            if info.incarnation == session.incarnation and not info.goes_on
        ]
        saved = max(own, key=lambda info: info.stamp, default=None)
        record = Record.of(
            session,
            operation=orders.Capture.kind,
            stage=Stage.CAPTURED,
            checkpoint=saved.id if saved else "",
            generation=saved.generation if saved else 0,
            begun=self.tools.clock.now(),
        )
        if saved:
            self.tools.records.save(record)
            _log.warning("%s found captured as %s", session.key, record.checkpoint)
            return
        capture.thaw_tree(self.tools.accelerator, session, record)
        _log.warning("%s found frozen without a checkpoint; thawed", session.key)

    def _fail(self, record: Record) -> None:
        restarted = codec.failure_of(ReclaimError(Reason.AGENT_RESTARTED))
        failure = record.failure or restarted
        self.tools.records.save(record.at(Stage.FAILED, record.steps, failure=failure))
        _log.warning("%s %s undone: agent restarted", record.key, record.operation)


def _keep(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


def undo_unasked(
    session: Session, record: Record, records: Records, accelerator: Accelerator
) -> bool:
    """Let a captured tree go on without asking the store; whether it was stopped.

    Raises:
        NotFound: it has ended.
        ReclaimError: its GPU memory cannot be put back; all of it stays stopped.
        OSError: the record cannot be written; likewise.
    """
    # A capture under way cuts connections before it stops anything.
    if record.stage not in UNCOMMITTED and not _stands(session, record):
        return False
    # First: a tree that runs beside a record that calls it captured is released.
    records.save(record.at(Stage.ROLLING_BACK, record.steps))
    capture.thaw_tree(accelerator, session, record, together=True)
    return True


def let_go_on(
    record: Record,
    records: Records,
    accelerator: Accelerator,
    *,
    whole: bool = True,
) -> bool:
    """Let a session without an agent go on; whether nothing is left to do.

    Not the ``whole`` of it: only where a capture was under way.
    """
    session = record.session
    try:
        processes.snapshot_init(session.init_pid, session.init_start)
        if record.stage in (FROZEN if whole else UNCOMMITTED):
            end_criu(session, accelerator.limits.criu)
            if undo_unasked(session, record, records, accelerator):
                _log.warning("%s goes on: no agent looked after it", record.key)
        if whole and _wake(session, record, records, accelerator):
            _log.warning("%s is woken: no agent looked after it", record.key)
    except NotFound:
        pass  # it has ended
    except (ReclaimError, OSError) as error:
        _log.error("%s does not go on, and no agent runs: %s", record.key, error)
        return False
    return True


def _wake(
    session: Session, record: Record, records: Records, accelerator: Accelerator
) -> bool:
    record = records.find(record.incarnation) or record
    if record.nap is None or not (record.naps or record.stage in FROZEN):
        return False  # else it is being ended, or brought back
    whole = record.nap_at(NapStage.WAKING)
    nap.end_nap(accelerator, session, whole)
    records.save(whole.with_nap(None))
    return True


def _stands(session: Session, record: Record) -> bool:
    tree = trees.inspect(session)
    return not tree.stopped <= set(trees.left_stopped(record, tree))


def end_criu(session: Session, seconds: float) -> None:
    """Wait until a CRIU whose agent has died is gone; end it only when it hangs.

    Its stream broke with the agent, so it fails by itself and undoes its work.
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
        _log.error("%s CRIU cannot be ended: process %d", session.key, running[0].pid)


def _criu_inside(session: Session) -> list[Process]:
    space = procfs.link(session.init_pid, "ns/pid")
    found = []
    for pid in procfs.pids():
        # Whose it is comes first: a user's command line may block who reads it.
        owner = procfs.target_status(pid, "")
        if owner is None or owner.st_uid or procfs.link(pid, "ns/pid") != space:
            continue
        words = procfs.text(pid, "cmdline").split("\0")
        if all(word in words for word in _CRIU_WORDS):
            with suppress(NotFound):
                found.append(processes.snapshot_init(pid))
    return found


def _attempt(work: Callable[[], object], key: object) -> bool:
    # False: it is to be tried again.
    try:
        work()
    except NotFound:
        return True  # it ended while we looked
    except (StoreError, OSError) as error:  # the state folder is full, for one
        _log.error("%s not recovered yet, retrying: %s", key, error)
        return False
    except ReclaimError as error:
        _log.error("%s not recovered: %s", key, error)
        return error.reason not in _LATER
    return True
