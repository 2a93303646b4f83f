"""Restores a session under a holding init: every step, and the way back.

``docs/explanation/walks.md`` shows the order. Any failure leaves the checkpoint as it
was and nothing under the init; if the tree continues and does not answer, the init ends
with it. It never deletes or changes a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import credentials_of
from jupyterhub_gpu_reclaim.checkpoint.files.put_back import incomplete, put_back
from jupyterhub_gpu_reclaim.checkpoint.kinds import attributes
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.sockets import abstract_names, inet, ports
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    RestoreFailed,
)
from jupyterhub_gpu_reclaim.common.findings import finding, refuse_fatal
from jupyterhub_gpu_reclaim.common.models import Event
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment, size
from jupyterhub_gpu_reclaim.linux import cgroups, processes
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node.jupyter import wake_up
from jupyterhub_gpu_reclaim.node.jupyter.connection import find_connections
from jupyterhub_gpu_reclaim.node.jupyter.server import address_of
from jupyterhub_gpu_reclaim.node.jupyter.wake_up import WakeUp
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    CheckpointContents,
    CheckpointImages,
)
from jupyterhub_gpu_reclaim.node.operations.host_memory import Need
from jupyterhub_gpu_reclaim.node.operations.operations import in_thread, reported
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.requirements import (
    HostRequirements,
    compare_images,
    compare_machines,
    compare_rights,
    refuse_reaching,
    refuse_user_namespace,
    rights_of,
    this_machine,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import filesystem
from jupyterhub_gpu_reclaim.node.workflows.lost_rights import without_lost
from jupyterhub_gpu_reclaim.node.workflows.tools import Workflow
from jupyterhub_gpu_reclaim.sampling import jupyter_api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import ImageSource
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools

#: An idle kernel answers its wake-up within milliseconds.
_WAKE_SECONDS = 3.0
#: How often it is looked at whether those that have not answered compute.
_WAKE_LOOK = 0.1
#: Another program's short connection is over by then, and a page still waits.
_PORT_SECONDS = 10.0
#: Lists that a page reads before it connects a notebook to its kernel; each once.
_KERNELS: Final = ("api/kernels", jupyter_api.KERNELS)
_NOTEBOOKS: Final = ("api/sessions", jupyter_api.NOTEBOOKS)
_LIST_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Fit(NamedTuple):
    """Parts of a saved session, adapted to this place, for CRIU."""

    images: dict[str, bytes]  #: those that differ
    opened: Sequence[FileFingerprint]
    changed: Sequence[FileFingerprint]  #: of these, what is put back as it was
    lifted: LimitRecord  #: the memory limit that is off meanwhile


class Restore(Workflow):
    def __init__(
        self,
        tools: WorkflowTools,
        session: Session,
        operation: Operation,
        *,
        put_files_back: bool = False,
    ) -> None:
        super().__init__(tools, session, operation)
        self._put_files_back = put_files_back
        self._busy: frozenset[str] = frozenset()  # kernels, once its server tells
        self._newer: list[str] = []  # folders, with what is newer than its memory
        self._record = Record.of(
            session,
            operation=orders.Restore.kind,
            stage=Stage.RESTORING,
            checkpoint=operation.checkpoint,
            begun=tools.clock.now(),
        )

    async def run(self) -> None:
        try:
            async with self._progress("check", "Checking the machine"):
                there, fit = await self._thread("check", self._check)
            info = there.checkpoint.info
            await self._note(
                Stage.RESTORING,
                generation=info.generation,
                stopped_before=there.world.stopped,
                gpus=there.world.gpus,
                memory_limit=fit.lifted,
                as_of=info.created if info.goes_on else 0.0,
            )
            if fit.changed:
                await self._put_back(there, fit)
                await self._note(Stage.RESTORING, newer=self._newer)
            # What its GPUs held comes back as memory of its processes first.
            cgroups.lift_memory_limit(self._record.memory_limit)
            result = await self._restore(there, fit)
            self._tools.memory.release(self._operation)  # it is in use from here on
            self._cancel.check()
            await self._note(Stage.CONTINUING)
            self._tools.ports.let_datagrams_go(self._record.checkpoint)
            await self._continue(there, result)
        # CancelledError is left out: it is the agent's own end; recovery settles that.
        except Exception as error:
            why = reported(error, RestoreFailed, Reason.RESTORE_FAILED)
            if await self._clear():
                await self._note(Stage.FAILED, failure=codec.failure_of(why))
            raise why from error
        await self._note(Stage.RESTORED)
        with contextlib.suppress(ReclaimError):  # ports held too long are harmless
            self._tools.ports.let_go(self._record.checkpoint)
        self._operation.add(
            Event(tree=trees.tree_of(self._session, self._record, None))
        )

    def _check(self) -> tuple[CheckpointContents, Fit]:
        tools, session = self._tools, self._session
        there = CheckpointContents(tools.store.open(self._record.checkpoint))
        found, opened, changed = _compare(
            tools, session, there, put_files_back=self._put_files_back
        )
        lost, anew = without_lost(session, there)
        refuse_fatal([*found, *lost], RestoreFailed)
        lifted = trees.limit_of(session) if there.world.gpus else LimitRecord()
        need = Need(
            filesystem.memory_needed(session, there.checkpoint, there.world),
            session.init_pid,
            lifted,
            taken=lambda: trees.resident_bytes(trees.inspect(session)),
        )
        try:
            tools.memory.promise(self._operation, need)
        except Refused as error:
            raise RestoreFailed(error.reason, **error.facts) from None
        return there, Fit(anew, opened, changed, lifted)

    async def _put_back(self, there: CheckpointContents, fit: Fit) -> None:
        """Put its files back as they were; newer ones are moved beside them."""
        # It is not called off in the middle: it can be repeated, but not undone. It is
        # done with the rights that the session's user has today.
        self._cancel.check()
        world, checkpoint = there.world, there.checkpoint
        images = SavedImages(CheckpointImages(checkpoint), fit.images)
        core = images.core(world.server or world.root)
        self._newer = await self._step(
            "files-back",
            "Putting its files back",
            lambda: put_back(
                self._session.init_pid,
                fit.changed,
                fit.opened,
                credentials_of(core)._replace(effective=0),
                moment=checkpoint.info.created,
                read=checkpoint.stream,
            ),
            limit=self._limits.archive,
        )

    async def _restore(
        self, there: CheckpointContents, fit: Fit
    ) -> engine.RestoreResult:
        await self._step(
            "files",
            "Putting temporary files back",
            lambda: filesystem.restore_archives(
                self._session, there.checkpoint, there.world
            ),
            limit=self._limits.archive,
        )
        self._cancel.check()
        source = CheckpointImages(there.checkpoint)
        images = SavedImages(source, fit.images)
        async with self._progress(
            "programs", "Bringing the programs back", done=lambda: source.bytes
        ):
            result = await in_thread(
                lambda: self._run_criu(there.world, images, fit),
                step="restore",
                limit=self._limits.restore + self._limits.criu,
            )
        self._cancel.check()
        total = source.bytes + result.missing.total
        return await self._step(
            "memory",
            "Bringing the memory back",
            lambda: engine.fill(
                self._init,
                result,
                source=images,
                limit=self._limits.restore,
                cancel=self._cancel,
            ),
            limit=self._limits.restore + self._limits.end,
            done=lambda: source.bytes,
            total=lambda: total,
        )

    def _run_criu(
        self, world: HostRequirements, source: ImageSource, fit: Fit
    ) -> engine.RestoreResult:
        self._tools.ports.let_names_go(self._record.checkpoint)
        with tempfile.TemporaryDirectory(dir=self._tools.work) as folder:
            return engine.restore(
                self._tools.criu.criu(),
                self._init,
                source=source,
                folder=Path(folder),
                limit=self._limits.restore,
                opened=fit.opened,
                cut=world.cut,
                prepare=lambda helper: cgroups.join(helper, self._init.init_pid),
                cancel=self._cancel,
            )

    async def _continue(
        self, there: CheckpointContents, result: engine.RestoreResult
    ) -> None:
        session, world = self._session, there.world
        address = address_of(there.identity, session)
        gpus, limit = self._record.gpus, self._record.memory_limit
        if gpus is not None:  # before any process but its owners continues
            await self._move_back(
                lambda: self._tools.accelerator.fill(gpus, limit, result.tree), gpus
            )
        self._cancel.check()  # the last moment at which it has done nothing yet
        async with self._progress("answer", "Waiting for the server"):
            if address is None:
                await self._thread(
                    "continue", lambda: engine.proceed(result, world.stopped)
                )
                return
            with WakeUp(address) as wake:
                await self._thread("wake", lambda: _queue(wake, result, world))
                await self._thread(
                    "continue",
                    lambda: wake_up.thaw_server_last(wake, result, world),
                )
                waking = asyncio.create_task(self._await_woken(wake))
                try:
                    await self._await_answer(address)
                    await self._await_lists(address)
                finally:
                    await waking

    async def _await_woken(self, wake: WakeUp) -> None:
        """Wait until all kernels have answered but those that compute.

        Such a one answers when its cell is over, and is not culled meanwhile. The
        server tells which they are (:meth:`_await_lists`).
        """
        for _ in range(round(_WAKE_SECONDS / _WAKE_LOOK)):
            if await self._thread("wake", lambda: wake.wait(_WAKE_LOOK)):
                return
            if wake.silent <= self._busy:
                break
        _log.info("%s a kernel has not answered the wake-up yet", self._session.key)

    async def _await_answer(self, address: jupyter_api.ServerAddress) -> None:
        """Ask the server until it answers; the connect timeout paces the attempts.

        Raises:
            RestoreFailed: it did not, in time (``timed_out``).
        """
        limit = self._limits.answer
        try:
            async with asyncio.timeout(limit):
                while not await self._answers(address, limit):
                    self._cancel.check()
                    tree = await self._thread(
                        "answer", lambda: trees.inspect(self._session)
                    )
                    if tree.server is None:
                        why = "its server ended at once"
                        raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
                    await self._tools.clock.sleep(0.1)
        except TimeoutError:
            raise RestoreFailed(
                Reason.TIMED_OUT, step="answer", seconds=limit
            ) from None

    async def _await_lists(self, address: jupyter_api.ServerAddress) -> None:
        """Wait until it has listed its kernels once; its first answers take longest.

        A page that is shown before it knows them replaces the restored kernel as soon
        as a cell is run. A server that does not tell in time is not an error: with our
        extension its page waits by itself.
        """
        with contextlib.suppress(ReclaimError):
            listed = await jupyter_api.ask(
                self._tools.client, address, *_KERNELS, seconds=_LIST_SECONDS
            )
            busy = (one.id for one in listed if one.execution_state == "busy")
            self._busy = frozenset(busy)
        with contextlib.suppress(ReclaimError):
            await jupyter_api.ask(
                self._tools.client, address, *_NOTEBOOKS, seconds=_LIST_SECONDS
            )

    async def _answers(
        self, address: jupyter_api.ServerAddress, seconds: float
    ) -> bool:
        try:
            await jupyter_api.ask(
                self._tools.client, address, "api", jupyter_api.Version, seconds=seconds
            )
        except NotFound:
            return True  # it speaks HTTP; what it serves is its own affair
        except ReclaimError:
            return False
        return True

    async def _clear(self) -> bool:
        """Leave nothing under the init; otherwise record and lease stay."""
        try:
            with contextlib.suppress(NotFound):  # it has ended
                await in_thread(
                    lambda: engine.clear(self._init, timeout=self._limits.end),
                    step="clear",
                    limit=self._limits.end * 2,
                )
                cgroups.restore_memory_limit(self._record.memory_limit)
            self._tools.ports.take_again(self._record.checkpoint)
        except ReclaimError as error:
            _log.error(
                "%s remains of a failed restore cannot be removed: %s",
                self._session.key,
                error,
            )
            return False
        return True


def _compare(
    tools: WorkflowTools,
    session: Session,
    there: CheckpointContents,
    *,
    put_files_back: bool,
) -> tuple[list[Finding], Sequence[FileFingerprint], list[FileFingerprint]]:
    world, init_pid = there.world, session.init_pid
    found = list(compare_machines(world.machine, this_machine()))
    found += compare_images(world.image, session.hint.image)
    init = processes.snapshot_init(init_pid, session.init_start)
    found += refuse_user_namespace(init)
    found += compare_rights(world.rights, rights_of([init]))
    saved = attributes.load(SavedImages(CheckpointImages(there.checkpoint)))
    found += attributes.refuse_beyond_agent(saved)
    found += refuse_reaching(world.rights, session, tools.trusted_capabilities)
    found += tools.accelerator.compare(world.gpus, init_pid)
    limit = cgroups.memory_limit(init_pid)
    # What its GPUs held does not stay in its processes.
    needed = world.memory - (world.gpus.bytes() if world.gpus else 0)
    if limit is not None and needed > limit:
        found.append(
            finding(Reason.MEMORY_LIMIT, needed=size(needed), limit=size(limit))
        )
    # Only a first look: what is opened for the session is judged itself (named_files).
    opened = there.world.files
    if there.checkpoint.info.goes_on:
        opened = open_files.by_contents(opened)
    changed, strange = open_files.look(opened, Path(f"/proc/{init_pid}/root"))
    found += strange
    files = [one.file for one in changed]
    if lost := incomplete(files, opened):
        names = open_files.newer(changed, lost)
        found.append(finding(Reason.FILE_CHANGED, path=names))
    elif changed and not put_files_back:
        when = moment(there.checkpoint.info.created)
        names = open_files.newer(changed)
        found.append(finding(Reason.FILES_NEWER, when=when, path=names))
    entries = filesystem.entries_in(there.checkpoint, world, init_pid)
    abstract_names.renew(entries, init_pid)
    found += ports.await_free(
        init_pid,
        inet.ports_of(entries),
        inet.connections_of(entries),
        seconds=0.0 if found else _PORT_SECONDS,
        uid=world.uid,
    )
    held = tools.ports.names(there.checkpoint.info.id)
    bound = abstract_names.names_of(entries) - held
    found += abstract_names.check_free(init_pid, bound, uid=world.uid)
    return found, opened, files


def _queue(wake: WakeUp, result: engine.RestoreResult, world: HostRequirements) -> None:
    pids = [process.pid for process in result.tree.processes]
    kernels = find_connections(result.tree.init.pid, pids, world.kernels)
    wake.queue(kernels, world.terminals)
