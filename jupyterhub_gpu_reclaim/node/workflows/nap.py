"""Naps and wakes: GPU memory moved out of a session that goes on, and back.

Only programs that use a GPU are stopped, and the shells that they were started from;
server, pages, terminals and all other programs run on. They nap together and wake
together. Another nap includes programs that have begun to use a GPU since.

The nap is recorded before anything is touched, so that the next agent can end it. A nap
that fails leaves the session running with its memory; any that cannot be given back at
once is given back later (``node.nap.wakers``). Host memory and room on the cards are
promised first, as for a capture and its undoing (law 11).
"""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey, held_by
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.findings import refuse_fatal
from jupyterhub_gpu_reclaim.common.models import Event
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups, continuing, processes
from jupyterhub_gpu_reclaim.node.jupyter.server import busy_kernels
from jupyterhub_gpu_reclaim.node.nap import inputs
from jupyterhub_gpu_reclaim.node.nap.inputs import Unread
from jupyterhub_gpu_reclaim.node.operations.gpu import ROOM_PAUSE, no_room
from jupyterhub_gpu_reclaim.node.operations.operations import reported
from jupyterhub_gpu_reclaim.node.operations.records import (
    ENDED,
    NapRecord,
    NapStage,
    Record,
    Stage,
    StoppedProgram,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import capture
from jupyterhub_gpu_reclaim.node.workflows.tools import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.common.models import Shortage
    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.requirements import Gpus
    from jupyterhub_gpu_reclaim.node.session import Session

#: Step of a wake that waits for memory of its cards.
ROOM: Final = "room"
_INTERRUPT: Final = 1 << (signal.SIGINT - 1)
#: The driver needs so much beside the memory that it moves (1.3 GiB: H200, 580).
_OVERHEAD_BYTES: Final = 2 << 30


class _Look(NamedTuple):
    snapshot: Snapshot
    survey: Survey
    gpus: Gpus
    left: list[Process]  #: hold a GPU, but nothing on it; or nap already
    programs: list[Process]  #: that are going to be stopped
    unread: Unread  #: of those


class Nap(Workflow):
    _standing: dict[str, int]  #: unread by what stands still, once it does

    async def run(self) -> None:
        async with self._progress("preflight", "Looking at its programs"):
            look = await self._thread("preflight", self._look)
            busy = await self._busy_kernels(look) if look else frozenset()
            self._cancel.check()
        if look is None:
            former = trees.record_of(self._tools.records, self._session)
            self._operation.add(Event(tree=trees.tree_of(self._session, former, None)))
            return
        record = self._recorded(look)
        await self._keep(record)
        try:
            await self._empty(look, record)
            self._cancel.check()
        # CancelledError is left out: it is the agent's own end, and the next one ends
        # the nap.
        except Exception as error:
            why = reported(error, RolledBack, Reason.NAP_FAILED)
            record = record.nap_at(NapStage.WAKING)
            await self._keep(record)
            await self._roll_back(record)
            await self._keep(record.with_nap(None))
            raise why from error
        assert record.nap is not None
        standing = record.nap.standing | self._standing
        # Input of just before lies in a kernel's own memory, where no look at its
        # connections would find it.
        began = await self._busy_kernels(look) - busy
        stage = NapStage.WAKING if began else NapStage.ASLEEP
        record = record.nap_at(stage, standing=standing)
        await self._keep(record)
        self._operation.add(Event(tree=trees.tree_of(self._session, record, None)))

    async def _busy_kernels(self, look: _Look) -> frozenset[str]:
        """Busy kernels by their ids; none if their server is stopped itself."""
        server = look.snapshot.server
        if server is None or server in look.programs:
            return frozenset()
        return await busy_kernels(self._tools.client, self._session, server.pid)

    def _look(self) -> _Look | None:
        """Refuse what cannot nap; the last moment at which nothing has been touched.

        None if all of it naps already, and nothing else of it uses a GPU.
        """
        tools, session = self._tools, self._session
        whole = trees.inspect(session)
        record = trees.record_of(tools.records, session)
        asleep = record.nap.in_tree(whole) if record and record.nap else []
        survey = tools.accelerator.survey(trees.without(whole, asleep))
        # A server that shows the use of a GPU is one of them, and must run on.
        spared = tools.accelerator.without_memory(survey)
        if spared and survey.stale:
            # Its forked children run on with it: without it in sight they would be
            # taken for new users. PyTorch's compiler is such a pool.
            rest = trees.without(whole, [*spared, *asleep])
            others = tools.accelerator.survey(rest).others
            spared += [process for process in others if process in survey.stale]
        users = tuple(user for user in survey.users if user not in spared)
        survey = dataclasses.replace(survey, users=users)
        left = [*spared, *asleep]
        snapshot = trees.without(whole, left)
        refuse_fatal(list(tools.accelerator.findings(survey, snapshot)), Refused)
        for process in survey.others:
            opened = held_by(process.pid).descriptors
            device = opened[0].target if opened else "a GPU"
            raise Refused(Reason.DEVICE_OPEN, device=device, **process.facts)
        gpus = tools.accelerator.describe(survey)
        if gpus is None:
            if record is not None and record.naps:
                return None
            raise Refused(Reason.GPU_UNUSED)
        to_stop = tools.accelerator.to_stop(survey, whole)
        programs = [process for process in to_stop if not process.stopped]

        def find() -> list[inputs.Input]:
            # All that nap are watched together, and may not have too many together.
            found = inputs.find_inputs(session.init_pid, [*asleep, *programs])
            return [one for one in found if one.process in programs]

        try:
            unread = Unread(find)
        except inputs.TooManyError:
            limit = inputs.MOST_DESCRIPTORS
            raise Refused(Reason.NAP_CROWDED, limit=limit) from None
        need = capture.need_of(session, gpus, whole)
        tools.memory.promise(self._operation, need)
        return _Look(whole, survey, gpus, left, programs, unread)

    def _recorded(self, look: _Look) -> Record:
        """Record of the nap beside the record of what came before.

        Raises:
            Refused: something else is to be undone first (``wrong_phase``).
        """
        session, clock = self._session, self._tools.clock
        record = trees.record_of(self._tools.records, session) or Record.of(
            session,
            operation=orders.Nap.kind,
            stage=Stage.SETTLED,
            checkpoint="",
            begun=clock.now(),
        )
        former = record.nap
        unfinished = former is not None and former.stage is not NapStage.ASLEEP
        if record.stage not in ENDED or unfinished:
            raise Refused(
                Reason.WRONG_PHASE, phase=record.stage.value, action="nap now"
            )
        nap = NapRecord(
            stage=NapStage.FALLING,
            begun=clock.now(),
            gpus=look.gpus,
            memory_limit=trees.limit_of(session),
            programs=_stopped(look.programs),
        )
        return record.with_nap(former.with_more(nap) if former else nap)

    async def _empty(self, look: _Look, record: Record) -> None:
        nap = record.nap
        assert nap is not None

        def note_standing() -> None:
            self._standing = look.unread.standing()

        def empty() -> None:
            self._tools.accelerator.empty(
                lambda: trees.without(trees.inspect(self._session), look.left),
                look.survey,
                nap.memory_limit,
                self._cancel,
                note_standing,
            )
            self._standing |= look.unread.left_by_driver()
            cgroups.restore_memory_limit(_raised(nap.memory_limit, nap.gpus))

        await self._move_out("Moving the memory of its GPU out", empty, look.gpus)

    async def _roll_back(self, record: Record) -> None:
        """Let all of it go on as it was.

        Raises:
            ReclaimError: its memory could not be given back yet; the nap stays
                recorded, and is ended later.
        """
        await self._step(
            "thaw",
            "Letting it go on",
            lambda: end_nap(self._tools.accelerator, self._session, record),
            limit=self._limits.filling,
        )


class Wake(Workflow):
    """The end of a nap; ``why``: what has woken it, empty for an order."""

    def __init__(self, *more: Any, why: str) -> None:
        super().__init__(*more)
        self._why = why

    async def run(self) -> None:
        tools, session = self._tools, self._session
        record = trees.record_of(tools.records, session)
        if record is not None and (nap := record.nap) is not None:
            record = record.nap_at(NapStage.WAKING)
            await self._keep(record)
            waking, claim = record, object()
            await self._await_room(nap, claim)
            await self._move_back(
                lambda: end_nap(
                    tools.accelerator, session, waking, self._cancel, claim
                ),
                nap.gpus,
                self._why,
            )
            record = record.with_nap(None)
            await self._keep(record)
        self._operation.add(Event(tree=trees.tree_of(session, record, None)))

    async def _await_room(self, nap: NapRecord, claim: object) -> None:
        """Wait for room on its cards, in turn; reports nothing if there is some.

        Raises:
            ReclaimError: others use the memory for longer than we wait; the next try
                keeps its place. Or it was cancelled.
        """
        tools, session = self._tools, self._session

        def try_it() -> Shortage | None:
            gpus, tree = _napping(session, nap)
            return tools.accelerator.claim(gpus, tree, claim, session)

        if await self._thread(ROOM, try_it) is None:
            return
        until = tools.clock.monotonic() + tools.accelerator.limits.room
        async with self._progress(ROOM, "Waiting for a GPU"):
            while short := await self._thread(ROOM, try_it):
                if self._cancel.is_set:
                    tools.accelerator.room.leave(session.incarnation)
                    self._cancel.check()
                if tools.clock.monotonic() > until:
                    raise no_room(short)
                await tools.clock.sleep(ROOM_PAUSE)  # memory comes free without a word


def thawed(
    accelerator: Accelerator, session: Session, record: Record, now: float
) -> Record:
    """Thaw a tree whose checkpoint is gone; where its card is full, its users nap.

    All others go on then, and the users are woken in turn, as from any nap.

    Raises:
        NotFound: the session has ended.
        ReclaimError: as :func:`capture.thaw_tree`, but for a full card.
    """
    try:
        capture.thaw_tree(accelerator, session, record)
    except ReclaimError as error:
        full = error.reason is Reason.GPU_MEMORY and record.nap is None
        if not full or record.gpus is None:
            raise
    else:
        return record
    tree = trees.inspect(session)
    users = [one for one in tree.processes if one.ns_pid in record.gpus.users]
    cgroups.restore_memory_limit(_raised(record.memory_limit, record.gpus))
    asleep = NapRecord(
        stage=NapStage.WAKING,
        begun=now,
        gpus=record.gpus,
        memory_limit=record.memory_limit,
        programs=_stopped(users),
    )
    return record.at(record.stage, record.steps, gpus=None, nap=asleep)


def _raised(limit: LimitRecord, gpus: Gpus) -> LimitRecord:
    # A nap may last for hours, and must not be without a limit for so long.
    return limit.raised(gpus.bytes() + _OVERHEAD_BYTES)


def _stopped(programs: Iterable[Process]) -> list[StoppedProgram]:
    return [StoppedProgram(pid=one.ns_pid, start=one.start_time) for one in programs]


def _napping(session: Session, nap: NapRecord) -> tuple[Gpus, Snapshot]:
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
    """Give programs that nap their GPU memory back, and let them go on. Idempotent.

    The record says which programs. A claim is for room that is kept already; without
    one it is waited for, until the cancel.

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
            continuing.resume([one for one in mine if held_by(one.pid)])
            raise
    finally:
        accelerator.room.release(claim)
    for process in interrupted:
        # Any thread may take one that came while it stood, and a first thread that
        # sleeps would sleep on: in Python it alone can act on it.
        processes.send_to_threads(process, [process.pid], signal.SIGINT)
    continuing.resume(mine)
