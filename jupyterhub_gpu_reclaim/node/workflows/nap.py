"""Naps and wakes: GPU memory moved out of a session that goes on, and back.

Only programs that use a GPU are stopped, and the shells that they were started from;
server, pages, terminals and all other programs run on. The nap is recorded before
anything is touched, so that whoever comes next can end it. A nap that fails leaves the
session running with its memory; what cannot be given back at once is given back later
(``node.nap.wakers``). Host memory and room on the cards are promised first, as for a
capture and its undoing (law 11).
"""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.models import Event, Step
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups, processes
from jupyterhub_gpu_reclaim.node.jupyter.server import busy_kernels
from jupyterhub_gpu_reclaim.node.nap import inputs
from jupyterhub_gpu_reclaim.node.nap.inputs import Unread
from jupyterhub_gpu_reclaim.node.operations.card_room import Waker
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import refuse_fatal
from jupyterhub_gpu_reclaim.node.operations.gpu import ROOM_PAUSE, no_room
from jupyterhub_gpu_reclaim.node.operations.host_memory import Need
from jupyterhub_gpu_reclaim.node.operations.operations import (
    StepReporter,
    durably,
    in_thread,
    reported,
)
from jupyterhub_gpu_reclaim.node.operations.records import (
    ENDED,
    NapRecord,
    NapStage,
    Record,
    Stage,
    StoppedProgram,
)
from jupyterhub_gpu_reclaim.node.sessions import trees

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
    from jupyterhub_gpu_reclaim.common.models import Shortage
    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.requirements import Gpus
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools

#: The operation that ends a nap.
WAKE: Final = "wake"
#: Its step of waiting for memory of its cards.
ROOM: Final = "room"
_INTERRUPT: Final = 1 << (signal.SIGINT - 1)
#: The driver needs so much beside the memory that it moves (1.3 GiB: H200, 580).
_OVERHEAD_BYTES: Final = 2 << 30


class _Look(NamedTuple):
    """What was seen while nothing was touched."""

    snapshot: Snapshot
    survey: Survey
    gpus: Gpus
    spared: list[Process]  #: hold a GPU, but nothing on it
    programs: list[Process]  #: that are going to be stopped
    unread: Unread  #: of those


class Nap:
    """The begin of one nap."""

    def __init__(
        self, tools: WorkflowTools, session: Session, operation: Operation
    ) -> None:
        self._tools = tools
        self._session = session
        self._operation = operation
        self._cancel = operation.cancel
        self._progress = StepReporter(operation, tools.clock)
        self._limits = tools.limits
        self._standing: dict[str, int] = {}

    async def run(self, operation: Operation) -> AsyncIterator[Event]:
        """Begin the nap; the last event is the tree."""
        del operation
        async for event in durably(self._steps(), self._tools.records):
            yield event

    async def _steps(self) -> AsyncGenerator[Record | Event, None]:
        """Yields what must be durable before the next step is taken."""
        async with self._progress.step("preflight", "Looking at its programs"):
            look = await in_thread(
                self._look, step="preflight", limit=self._limits.check
            )
            busy = await self._busy_kernels(look)
            self._cancel.check()
        record = self._record(look)
        yield record
        try:
            await self._empty(look, record)
            self._cancel.check()
        # CancelledError is left out: it is the agent's own end, and the next one ends
        # the nap.
        except Exception as error:
            why = _renamed(reported(error, RolledBack, Reason.NAP_FAILED))
            record = record.nap_at(NapStage.WAKING)
            yield record
            await self._roll_back(record)
            yield record.woken()
            raise why from error
        record = record.nap_at(NapStage.ASLEEP, standing=self._standing)
        if await self._busy_kernels(look) - busy:
            # What it had been sent just before lies in its own memory, where no
            # look at its connections would find it.
            record = record.nap_at(NapStage.WAKING)
        yield record
        yield Event(tree=trees.tree_of(self._session, record, None))

    async def _busy_kernels(self, look: _Look) -> frozenset[str]:
        """As their server calls them; none where that is stopped itself."""
        server = look.snapshot.server
        if server is None or server in look.programs:
            return frozenset()
        return await busy_kernels(self._tools.client, self._session, server.pid)

    def _look(self) -> _Look:
        """Refuse what cannot nap; the last moment at which nothing has been touched."""
        tools, session = self._tools, self._session
        whole = trees.inspect(session)
        survey = tools.accelerator.survey(whole)
        # A server that shows the use of a GPU is one of them, and must run on.
        spared = tools.accelerator.without_memory(survey)
        snapshot = trees.without(whole, spared)
        users = (user for user in survey.users if user.process not in spared)
        survey = dataclasses.replace(survey, users=tuple(users))
        refuse_fatal(list(tools.accelerator.findings(survey, snapshot)), Refused)
        for process in survey.others:
            device = held_by(process.pid)
            names = [d.target for d in device.descriptors] or ["a GPU"]
            raise Refused(
                Reason.DEVICE_OPEN,
                pid=process.ns_pid,
                name=process.name,
                device=names[0],
            )
        gpus = tools.accelerator.describe(survey)
        if gpus is None:
            raise Refused(Reason.GPU_UNUSED)
        to_stop = tools.accelerator.to_stop(survey, whole)
        programs = [process for process in to_stop if not process.stopped]
        try:
            there = inputs.find_inputs(session.init_pid, programs)
        except inputs.TooManyError:
            limit = inputs.MOST_DESCRIPTORS
            raise Refused(Reason.NAP_CROWDED, limit=limit) from None
        self._promise(gpus, whole)
        unread = Unread(there)
        return _Look(whole, survey, gpus, spared, programs, unread)

    def _promise(self, gpus: Gpus, snapshot: Snapshot) -> None:
        """Keep the memory that its GPUs' is moved into, until it is there.

        Raises:
            Refused: it is not there (``not_enough_memory``).
        """
        session = self._session
        before = trees.resident_bytes(snapshot)
        lifted = cgroups.find_memory_limit(session.init_pid, session.hint.pod)
        need = Need(
            gpus.bytes(),
            session.init_pid,
            lifted,
            taken=lambda: trees.resident_bytes(trees.inspect(session)) - before,
        )
        self._tools.memory.promise(self._operation, need)

    def _record(self, look: _Look) -> Record:
        """What it takes to end it; the record of what came before stays beside it.

        Raises:
            Refused: something else is to be undone first (``wrong_phase``).
        """
        session, clock = self._session, self._tools.clock
        record = trees.record_of(self._tools.records, session) or Record(
            operation=trees.NAP,
            incarnation=session.incarnation,
            key=session.key,
            stage=Stage.SETTLED,
            checkpoint="",
            init_pid=session.init_pid,
            init_start=session.init_start,
            begun=clock.now(),
            pod=session.hint.pod,
        )
        if record.stage not in ENDED or record.nap is not None:
            raise Refused(
                Reason.WRONG_PHASE, phase=record.stage.value, action="nap now"
            )
        nap = NapRecord(
            stage=NapStage.FALLING,
            begun=clock.now(),
            gpus=look.gpus,
            memory_limit=cgroups.find_memory_limit(session.init_pid, session.hint.pod),
            programs=_stopped(look.programs),
        )
        return record.with_nap(nap)

    async def _empty(self, look: _Look, record: Record) -> None:
        assert record.nap is not None
        limit, total = record.nap.memory_limit, look.gpus.bytes()

        def note_standing() -> None:
            self._standing = look.unread.standing()

        def empty() -> None:
            self._tools.accelerator.empty(
                lambda: trees.without(trees.inspect(self._session), look.spared),
                look.survey,
                limit,
                self._cancel,
                note_standing,
            )
            _limit_memory(limit, look.gpus)

        async with self._progress.step(
            "gpu", "Moving the memory of its GPU out", total=lambda: total
        ):
            await in_thread(
                empty,
                step="gpu",
                limit=self._limits.gpu_lock + self._limits.dump + self._limits.check,
            )
        self._tools.memory.release(self._operation)  # it is in use from here on

    async def _roll_back(self, record: Record) -> None:
        """Let all of it go on as it was.

        Raises:
            ReclaimError: its memory could not be given back yet; the nap stays
                recorded, and is ended later.
        """
        async with self._progress.step("thaw", "Letting it go on"):
            await in_thread(
                lambda: end_nap(self._tools.accelerator, self._session, record),
                step="thaw",
                limit=self._limits.restore + self._limits.check,
            )


class Wake:
    """The end of a nap."""

    def __init__(
        self,
        tools: WorkflowTools,
        session: Session,
        operation: Operation,
        why: str,
    ) -> None:
        self._tools = tools
        self._session = session
        self._why = why
        self._operation = operation
        self._cancel = operation.cancel
        self._progress = StepReporter(operation, tools.clock)

    async def run(self, operation: Operation) -> AsyncIterator[Event]:
        """Give the memory back; the last event is the tree."""
        del operation
        async for event in durably(self._steps(), self._tools.records):
            yield event

    async def _steps(self) -> AsyncGenerator[Record | Event, None]:
        """Yields what must be durable before the next step is taken."""
        tools, session = self._tools, self._session
        record = trees.record_of(tools.records, session)
        if record is not None and record.nap is not None:
            total = record.nap.gpus.bytes()
            yield (record := record.nap_at(NapStage.WAKING))
            title = "Bringing the memory of its GPU back"
            title += f": {self._why}" if self._why else ""
            waking, claim = record, object()
            await self._await_room(waking, claim)
            async with self._progress.step("gpu", title, total=lambda: total):
                await in_thread(
                    lambda: end_nap(
                        tools.accelerator, session, waking, self._cancel, claim
                    ),
                    step="gpu",
                    limit=tools.limits.restore + tools.limits.check,
                )
            yield (record := record.woken())
        yield Event(tree=trees.tree_of(session, record, None))

    async def _await_room(self, record: Record, claim: object) -> None:
        """Wait for room on its cards, in turn; nothing is said where there is some.

        Raises:
            ReclaimError: others use the memory for longer than we wait; the next try
                keeps its place. Or it was cancelled.
        """
        tools = self._tools
        begun = tools.clock.monotonic()
        told = ""
        while short := await in_thread(
            lambda: _claim(tools.accelerator, self._session, record, claim),
            step=ROOM,
            limit=tools.limits.check,
        ):
            if self._cancel.is_set:
                tools.accelerator.leave(record.incarnation)
                self._cancel.check()
            told = "Waiting for a GPU"
            told += f", place {short.place}" if short.place > 1 else ""
            self._tell_waiting(told, begun, "going")
            if tools.clock.monotonic() - begun > tools.accelerator.room_seconds:
                self._tell_waiting(told, begun, "failed")
                raise no_room(short)
            await tools.clock.sleep(ROOM_PAUSE)  # memory comes free without a word
        if told:
            self._tell_waiting(told, begun, "done")

    def _tell_waiting(self, title: str, begun: float, state: str) -> None:
        seconds = round(self._tools.clock.monotonic() - begun, 3)
        step = Step(step=ROOM, title=title, state=state, seconds=seconds)
        self._operation.add(Event(step=step))


def left_asleep(session: Session, record: Record, now: float) -> Record:
    """What a capture leaves that was undone but for the memory of its GPUs: a nap.

    Args:
        session: of which nobody else is stopped by us any more.
        record: of the capture.
        now: seconds since the epoch.
    """
    if record.gpus is None:
        return record
    tree = trees.inspect(session).processes
    users = [process for process in tree if process.ns_pid in record.gpus.users]
    _limit_memory(record.memory_limit, record.gpus)
    asleep = NapRecord(
        stage=NapStage.WAKING,
        begun=now,
        gpus=record.gpus,
        memory_limit=record.memory_limit,
        programs=_stopped(users),
    )
    return record.at(record.stage, record.steps, gpus=None, nap=asleep)


def brought_back_asleep(
    record: Record,
    programs: Iterable[Process],
    gpus: Gpus,
    standing: dict[str, int],
    now: float,
) -> Record:
    """What a restore leaves that does not fill its GPUs: a nap.

    Args:
        record: of the restore, whose tree is whole and stands.
        programs: that are not to go on.
        gpus: what those had.
        standing: what they had left unread before they were saved.
        now: seconds since the epoch.
    """
    _limit_memory(record.memory_limit, gpus)
    asleep = NapRecord(
        stage=NapStage.ASLEEP,
        begun=now,
        gpus=gpus,
        memory_limit=record.memory_limit,
        programs=_stopped(programs),
        standing=standing,
    )
    return record.at(record.stage, record.steps, gpus=None, nap=asleep)


def _limit_memory(limit: LimitRecord, gpus: Gpus) -> None:
    """A nap may last for hours, and nobody must be without a limit for so long."""
    cgroups.restore_memory_limit(limit.raised(gpus.bytes() + _OVERHEAD_BYTES))


def _stopped(programs: Iterable[Process]) -> list[StoppedProgram]:
    return [StoppedProgram(pid=one.ns_pid, start=one.start_time) for one in programs]


def _claim(
    accelerator: Accelerator, session: Session, record: Record, claim: object
) -> Shortage | None:
    """Keep room for the programs of a nap, or say what they lack."""
    if record.nap is None:
        return None
    gpus, tree = _napping(session, record.nap)
    waker = Waker(session.incarnation, session.key)
    return accelerator.claim(gpus, tree, claim, waker)


def _napping(session: Session, nap: NapRecord) -> tuple[Gpus, Snapshot]:
    """The programs of a nap that are there still, and what they had of its cards."""
    snapshot = trees.inspect(session)
    mine = nap.in_tree(snapshot)
    gpus = nap.gpus.only({process.ns_pid for process in mine})
    return gpus, processes.Snapshot(snapshot.init, tuple(mine))


def end_nap(
    accelerator: Accelerator,
    session: Session,
    record: Record,
    cancel: Cancel | None = None,
    claim: object = None,
) -> None:
    """Give the programs of a nap their GPU memory back, and let them go on. Idempotent.

    Args:
        accelerator: fills its GPUs.
        session: whose nap.
        record: of it, which is not changed.
        cancel: cancels it while it waits for room.
        claim: for which room is kept already; None: it is waited for.

    Raises:
        NotFound: the session has ended.
        ReclaimError: there is no room on the card yet (``gpu_memory``), or a program
            did not get its memory back (``gpu_stuck``), or it was cancelled. Those that
            have theirs go on, the others stay stopped.
    """
    nap = record.nap
    if nap is None:
        return
    try:
        gpus, tree = _napping(session, nap)
        mine = tree.processes
        interrupted = [p for p in mine if processes.pending_signals(p.pid) & _INTERRUPT]
        try:
            accelerator.fill(gpus, nap.memory_limit, tree, cancel, claim)
        except ReclaimError:
            processes.resume([one for one in mine if held_by(one.pid)])
            raise
    finally:
        accelerator.release(claim)
    for process in interrupted:
        # Any thread may take one that came while it stood, and a first thread that
        # sleeps would sleep on: in Python it alone can act on it.
        processes.send_to_threads(process, [process.pid], signal.SIGINT)
    processes.resume(mine)


def _renamed(why: ReclaimError) -> ReclaimError:
    """What is said of a capture, said of a nap."""
    if why.reason is not Reason.CAPTURE_FAILED:
        return why
    return RolledBack(Reason.NAP_FAILED, detail=why.detail, why=why.facts.get("why"))
