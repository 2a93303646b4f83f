"""Captures a session: every step, in order, and the way back from each of them.

``docs/explanation/walks.md`` shows the order. The dump stops the tree, which stays so
until it is released or thawed. Any failure before the commit ends with the tree running
and nothing left. It never ends a process of the session.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped
from jupyterhub_gpu_reclaim.checkpoint.tree import dump, freeze, quiesce
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    RolledBack,
)
from jupyterhub_gpu_reclaim.common.findings import refuse_fatal
from jupyterhub_gpu_reclaim.common.models import Event, Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.linux import far_files
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node import cgroup_escape
from jupyterhub_gpu_reclaim.node.jupyter.server import ask_state, read_login
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    IDENTITY,
    IMAGES,
    WORLD,
)
from jupyterhub_gpu_reclaim.node.operations.host_memory import Need
from jupyterhub_gpu_reclaim.node.operations.operations import in_thread, reported
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.requirements import refuse_reaching, rights_of
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import filesystem
from jupyterhub_gpu_reclaim.node.workflows.rehearsal import Rehearsal
from jupyterhub_gpu_reclaim.node.workflows.tools import Workflow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
    from jupyterhub_gpu_reclaim.checkpoint.staging import Staging
    from jupyterhub_gpu_reclaim.checkpoint.tree.standing import StandingMemory
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, GpuSample
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.jupyter.server import ServerState
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.requirements import Gpus, HostRequirements
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
    from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter

_log = logging.getLogger(__name__)

#: No session takes less of the store: CRIU's images of one process, and the manifest.
_LEAST_BYTES = 1 << 20
#: Aborting a writer only removes files; a store that hangs must not keep the tree.
_ABORT_SECONDS = 30.0
#: The same for who has called it off, and waits: what a slow store has not removed by
#: then is removed behind the session, which goes on.
_CALLED_OFF_SECONDS = 0.3


class Look(NamedTuple):
    """A session, right before it is captured."""

    snapshot: Snapshot
    login: Identity
    survey: Survey
    gpus: Gpus | None
    most: int  #: bytes that it may store


class Capture(Workflow):
    _goes_on = False  #: whether the session does, once it is copied
    _not_kept = ""  #: files that it could write, and that were not copied
    _name = ""  #: of a save point
    _held: Sequence[GpuSample]  #: its cards, while it had them

    def __init__(
        self,
        tools: WorkflowTools,
        session: Session,
        operation: Operation,
        stamp: tuple[int, int],
    ) -> None:
        super().__init__(tools, session, operation)
        self._checkpoint = operation.checkpoint
        self._term, self._generation = stamp
        self._writer: CheckpointWriter | None = None
        self._committing = False
        former = trees.record_of(tools.records, session)
        self._record = Record.of(
            session,
            operation=orders.Capture.kind,
            stage=Stage.CAPTURING,
            checkpoint=operation.checkpoint,
            generation=self._generation,
            begun=tools.clock.now(),
            parent=former.origin if former else "",
            nap=former.nap if former else None,
        )

    async def run(self) -> None:
        look = await self._look()
        await self._begun(look)
        try:
            info = await self._save(look)
            await self._note(Stage.CAPTURED)
        # CancelledError is left out: it is the agent's own end, and recovery undoes
        # at the next start what is unfinished then.
        except Exception as error:
            why = reported(error, RolledBack, Reason.CAPTURE_FAILED)
            await self._note(Stage.ROLLING_BACK, failure=codec.failure_of(why))
            stage = await self._roll_back()
            if stage is not Stage.CAPTURED:
                if stage is Stage.FAILED:
                    await self._note(Stage.FAILED)
                raise why from error
            # Its programs have ended, and what was committed is all that is left.
            await self._note(Stage.CAPTURED, failure=None)
            info = await self._thread(
                "commit", lambda: self._tools.store.info(self._checkpoint)
            )
        self._operation.add(Event(checkpoint=info))

    async def _begun(self, look: Look) -> None:
        stopped = await self._thread(
            "preflight", lambda: self._stopped_before(look.snapshot)
        )
        limit = trees.limit_of(self._session) if look.gpus else LimitRecord()
        await self._note(
            Stage.CAPTURING,
            stopped_before=sorted(stopped),
            gpus=look.gpus,
            memory_limit=limit,
        )

    def _stopped_before(self, snapshot: Snapshot) -> frozenset[int]:
        # Not those that nap.
        nap = self._record.nap
        napping = nap.in_tree(snapshot) if nap else []
        return freeze.stopped_before(snapshot) - {one.ns_pid for one in napping}

    async def _look(self) -> Look:
        """Preflight: the last moment at which nothing has been touched.

        Raises:
            Refused: with the first fatal finding's reason.
        """
        async with self._progress("preflight", "Looking at its programs"):
            look = await self._thread("preflight", self._examine)
            await self._thread("preflight", lambda: self._promise(look))
            self._cancel.check()
            return look

    def _examine(self) -> Look:
        """Refuse what keeps a session from being captured; touches nothing.

        Napping programs hold no GPU, and are not looked at for one.
        """
        tools, session = self._tools, self._session
        snapshot = trees.inspect(session)
        if snapshot.server is None:
            raise Refused(Reason.NO_TREE)
        refuse_fatal(preflight.too_many_files(snapshot), Refused)
        if use := far_files.silent(snapshot):
            raise Refused(Reason.FILES_SILENT, **use.facts)
        awake = trees.awake(trees.record_of(tools.records, session), snapshot)
        survey = tools.accelerator.survey(awake)
        gpus = tools.accelerator.describe(survey)
        # First: what they say of a GPU is the cause of what the others see of it.
        found = list(tools.accelerator.findings(survey, awake))
        found += preflight.examine(
            session.init_pid,
            snapshot,
            tools.criu.findings(),
            gpu_savable=survey.savable,
        )
        found += filesystem.refuse_container(session)
        rights = rights_of(snapshot.processes)
        found += refuse_reaching(rights, session, tools.trusted_capabilities)
        found += filesystem.refuse_ports(session, snapshot, tools.ports)
        refuse_fatal(found, Refused)
        # How much it stores is known at its end; so it is tried with some room.
        free = tools.store.free_bytes()
        if free is not None and free < _LEAST_BYTES:
            needed = f"at least {size(_LEAST_BYTES)}"
            raise Refused(Reason.STORE_FULL, needed=needed, free=size(free))
        try:
            login = read_login(snapshot.server.pid)
        except OSError as error:
            raise Refused(Reason.NO_TREE, detail=str(error)) from None
        if login.environment.get("JUPYTERHUB_SERVICE_URL", "").startswith("https:"):
            raise Refused(Reason.SERVER_TLS)
        most = trees.resident_bytes(snapshot) + (gpus.bytes() if gpus else 0)
        return Look(snapshot, login, survey, gpus, most)

    def _promise(self, look: Look) -> None:
        """Reserve host memory for its GPUs' memory.

        Raises:
            Refused: it is not there (``not_enough_memory``).
        """
        need = need_of(self._session, look.gpus, look.snapshot)
        self._tools.memory.promise(self._operation, need)

    async def _save(self, look: Look) -> CheckpointInfo:
        state = await ask_state(self._tools.client, look.login, self._session)
        writer = await self._open(look.snapshot)
        frozen = self._tools.clock.monotonic()
        await self._empty(look.survey)
        cut = await self._cut(look.snapshot)
        with Rehearsal(self._tools, self._session, self._operation) as rehearsal:
            async with self._dumping(writer, look.snapshot):
                dumped = await self._image(writer, look.login, state, cut)
                rehearsal.begin(dumped)
                await self._read(writer, dumped.result.memory)
                await self._archive(writer)
            info = await self._commit(writer, rehearsal, self._since(frozen))
        # The manifest cannot tell how long its own commit took; the service is told.
        return msgspec.structs.replace(
            info, steps=self._operation.steps, frozen_seconds=self._since(frozen)
        )

    def _dumping(
        self, target: CheckpointWriter | Staging, snapshot: Snapshot
    ) -> AbstractAsyncContextManager[None]:
        total = trees.resident_bytes(snapshot)
        return self._progress(
            "dump",
            "Saving the memory",
            done=lambda: target.logical_bytes,
            total=lambda: max(total, target.logical_bytes),
        )

    async def _image(
        self,
        target: CheckpointWriter | Staging,
        login: Identity,
        state: ServerState,
        cut: list[int],  # inodes of the connections that were ended
    ) -> Dumped:
        result = await in_thread(
            lambda: self._run_criu(target),
            step="dump",
            limit=self._limits.dump + self._limits.criu,
        )
        world = await self._thread(
            "files",
            lambda: filesystem.describe(
                self._session,
                result=result,
                cut=cut,
                server_state=state,
                uid=login.uid,
                gpus=self._record.all_gpus(),
                reads=not self._goes_on,
            ),
        )
        target.add(IDENTITY, codec.encode(login))
        await self._describe(target, world)
        return Dumped(result, world.files, cut)

    async def _describe(
        self, target: CheckpointWriter | Staging, world: HostRequirements
    ) -> None:
        target.add(WORLD, codec.encode(world))

    async def _read(
        self, target: CheckpointWriter | Staging, memory: StandingMemory
    ) -> None:
        """Save the memory of programs, which stand."""
        await in_thread(
            lambda: memory.deliver(target.file, IMAGES, self._cancel),
            step="dump",
            limit=self._limits.dump,
        )

    async def _archive(self, target: CheckpointWriter | Staging) -> None:
        await self._step(
            "files",
            "Saving its temporary files",
            lambda: filesystem.save_archives(self._session, target, self._cancel),
            limit=self._limits.archive,
        )
        self._cancel.check()

    async def _commit(
        self, writer: CheckpointWriter, rehearsal: Rehearsal, seconds: float
    ) -> CheckpointInfo:
        def commit() -> CheckpointInfo:
            return writer.commit(
                steps=self._operation.steps,
                frozen_seconds=seconds,
                gpus=self._held,
                goes_on=self._goes_on,
                not_kept=self._not_kept,
                name=self._name,
                timeout=self._limits.commit,
                last_look=lambda: self._word(rehearsal),
            )

        self._committing = True
        return await self._step(
            "commit",
            "Making it safe",
            commit,
            limit=self._limits.commit * 2,
            done=lambda: writer.stored_bytes,
            cancel=self._cancel,
        )

    def _word(self, rehearsal: Rehearsal) -> None:
        """Wait for the rehearsal, in a thread.

        Raises:
            RolledBack: it would not come back, or that could not be found out.
        """
        rehearsal.wait()

    def _since(self, begun: float) -> float:
        return round(self._tools.clock.monotonic() - begun, 3)

    async def _open(self, snapshot: Snapshot) -> CheckpointWriter:
        """Begin the checkpoint; one that has begun too late is removed again."""

        def begin() -> CheckpointWriter:
            session = self._session
            name = session.hint.session
            listed = self._tools.store.list() if name else []
            stamps = [info.stamp for info in listed if info.session == name]
            if max(stamps, default=(0, 0)) > (self._term, self._generation):
                raise Refused(Reason.ORDER_OVERTAKEN)  # older than what was saved
            gpus = self._record.all_gpus()
            self._held = self._tools.accelerator.held(gpus, snapshot)
            moved = self._record.gpus.bytes() if self._record.gpus else 0
            self._writer = writer = self._tools.store.begin(
                id=self._checkpoint,
                key=session.key,
                incarnation=session.incarnation,
                generation=self._generation,
                expected_bytes=trees.resident_bytes(snapshot) + moved,
                parent=self._record.parent,
                session=name,
                account=session.hint.account,
                term=self._term,
            )
            if self._cancel.is_set:
                writer.abort()
            self._cancel.check()
            return writer

        return await in_thread(
            begin, step="store", limit=self._limits.check, cancel=self._cancel
        )

    async def _empty(self, survey: Survey) -> None:
        """Empty its GPUs; its processes must still run, and are stopped from now on."""
        gpus = self._record.gpus
        if gpus is None:
            return

        def empty() -> None:
            self._tools.accelerator.empty(
                lambda: trees.awake(self._record, self._tree()),
                survey,
                self._record.memory_limit,
                self._cancel,
            )

        await self._move_out("Saving the memory of its GPU", empty, gpus)

    async def _cut(self, snapshot: Snapshot) -> list[int]:
        """End the connections that lead out of the session; their inodes.

        From here on its kernels are stopped, until they are restored or thawed.
        """
        async with self._progress("connections", "Closing its connections"):
            cut = await self._thread(
                "connections", lambda: quiesce.cut_in_silence(snapshot)
            )
            self._cancel.check()
            return sorted({*cut} - {0})

    def _run_criu(self, target: CheckpointWriter | Staging) -> dump.DumpResult:
        if self._record.all_gpus() is not None:
            # CRIU cannot save a device; it would say so in its own words.
            self._tools.accelerator.refuse_holders(self._tree())
        with tempfile.TemporaryDirectory(dir=self._tools.work) as folder:
            return dump.dump(
                self._tools.criu.criu(),
                self._init,
                sinks=lambda name: target.file(IMAGES + name),
                parts=target.parts,
                folder=Path(folder),
                limit=self._limits.dump,
                stopped=self._record.stopped_before,
                prepare=cgroup_escape.move,
                cancel=self._cancel,
            )

    def _tree(self) -> Snapshot:
        return trees.inspect(self._session)

    async def _roll_back(self) -> Stage:
        """Thaw the tree, then remove everything written.

        In this order: a store that hangs must not keep the tree. A checkpoint that may
        be committed is removed only once the tree is known to go on; until then it may
        be all that can come back.

        The stage is FAILED when nothing is left of the capture; CAPTURED when the tree
        has ended and its checkpoint exists; ROLLING_BACK when some of it is still to be
        undone (``recovery.settle_after``).
        """
        committing = self._committing
        try:
            await in_thread(
                lambda: thaw_tree(
                    self._tools.accelerator,
                    self._session,
                    self._record,
                    together=committing,
                ),
                step="thaw",
                limit=self._limits.filling,
            )
        except NotFound:
            _log.warning("%s ended during its capture", self._session.key)
            return await self._remove()
        except ReclaimError as error:
            _log.error(
                "%s may still be frozen after a failed capture: %s",
                self._session.key,
                error,
            )
            await self._remove()
            return Stage.ROLLING_BACK
        return await self._remove(committed=True)

    async def _remove(self, *, committed: bool = False) -> Stage:
        """Remove everything written; if it may be ``committed``, that, too."""
        writer = self._writer
        if writer is None:
            return Stage.FAILED

        def work() -> bool:
            aborted = writer.abort()
            if not aborted and committed:
                self._tools.store.delete(self._checkpoint)
            return aborted or committed

        limit = _CALLED_OFF_SECONDS if self._cancel.is_set else _ABORT_SECONDS
        try:
            removed = await in_thread(work, step="abort", limit=limit)
        except ReclaimError as error:
            _log.error(
                "%s the remains of %s are not removed yet: %s",
                self._session.key,
                self._checkpoint,
                error,
            )
            # A thread that takes longer does it yet; only a commit could get before it.
            late = error.reason is Reason.TIMED_OUT and not self._committing
            # A session that goes on does so whatever the store does.
            return Stage.FAILED if late or self._goes_on else Stage.ROLLING_BACK
        return Stage.FAILED if removed else Stage.CAPTURED


def need_of(session: Session, gpus: Gpus | None, snapshot: Snapshot) -> Need:
    """Host memory for its GPUs' memory, beside what it has in that snapshot.

    Its own limit is lifted meanwhile.
    """
    if gpus is None:
        return Need(0, session.init_pid)
    before = trees.resident_bytes(snapshot)
    return Need(
        gpus.bytes(),
        session.init_pid,
        trees.limit_of(session),
        taken=lambda: trees.resident_bytes(trees.inspect(session)) - before,
    )


def thaw_tree(
    accelerator: Accelerator,
    session: Session,
    record: Record,
    *,
    together: bool = False,
) -> None:
    """Thaw the tree, but not those that were stopped before; fill its GPUs.

    Programs that napped before nap again, and need no room on a card. ``together``: all
    or none of it continues, as it is, or may be, committed.

    Raises:
        NotFound: the session has ended.
        ReclaimError: processes that did not get their GPU memory back do not continue
            (``gpu_memory``, ``gpu_stuck``); the others do, unless ``together``.
    """
    stopped = trees.left_stopped(record, trees.inspect(session))
    failure: ReclaimError | None = None
    try:
        accelerator.fill(record.gpus, record.memory_limit, trees.inspect(session))
    except ReclaimError as error:
        if together:
            raise
        failure = error
        stopped += record.gpus.users if record.gpus else []
    thaw(trees.inspect(session), stopped)
    if failure is not None:
        raise failure
