"""Saves a session that goes on: it is stopped for a copy in memory, and no longer.

As a capture, but for three things. Connections that lead out of the session are not
ended, only left out of the image. Everything is written into memory first
(``checkpoint/staging.py``), and the tree goes on before any of it is in the store. And
its return is rehearsed beside the tree that runs.

More memory than was promised is taken only if the machine has it; otherwise the session
continues at once, and is saved another time. Any other order cancels the save, before
or after the stop; everything written is then removed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import credentials_now
from jupyterhub_gpu_reclaim.checkpoint.files.kept_files import KeptFiles
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import without_pages
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import pids_of
from jupyterhub_gpu_reclaim.checkpoint.staging import PIECE, Staging
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.models import Event
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.linux.processes import Snapshot
from jupyterhub_gpu_reclaim.node.jupyter.server import ask_state
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import IMAGES, WORLD
from jupyterhub_gpu_reclaim.node.operations.host_memory import Need
from jupyterhub_gpu_reclaim.node.operations.operations import reported
from jupyterhub_gpu_reclaim.node.operations.records import NapStage, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import filesystem
from jupyterhub_gpu_reclaim.node.workflows.capture import Capture, Look, thaw_tree
from jupyterhub_gpu_reclaim.node.workflows.rehearsal import Rehearsal

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped
    from jupyterhub_gpu_reclaim.checkpoint.tree.standing import StandingMemory
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.requirements import HostRequirements
    from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter


class Save(Capture):
    _goes_on = True
    _staging: Staging | None = None
    _standing: StandingMemory  #: of its dump, once that has begun
    _world: HostRequirements  #: without what is known of its files once they are stored
    _kept: KeptFiles | None = None
    _files_bytes: int | None = None  #: of memory, for its files

    def __init__(self, *given: Any, name: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self._name = name

    async def run(self) -> None:
        try:
            await self._steps()
        finally:
            if self._kept is not None:
                await asyncio.to_thread(self._kept.close)
            if self._staging is not None:
                await asyncio.to_thread(self._staging.release)

    async def _steps(self) -> None:
        look = await self._look()
        await self._thread("memory", lambda: self._take_memory(look))
        state = await ask_state(self._tools.client, look.login, self._session)
        await self._begun(look)
        try:
            await self._open(look.snapshot)
            frozen = self._tools.clock.monotonic()
            await self._empty(look.survey)
            assert self._staging is not None
            async with self._dumping(self._staging, look.snapshot):
                dumped = await self._image(self._staging, look.login, state, cut=[])
                # Theirs is saved when the rest of it goes on.
                stand_on = {one.ns_pid for one in self._stands_on()}
                self._standing, moving = dumped.result.memory.split(stand_on)
                await self._read(self._staging, moving)
            await self._archive(self._staging)
            dumped = await self._thread("rehearsal", lambda: self._as_it_stands(dumped))
            await self._step(
                "thaw",
                "Letting it go on",
                lambda: thaw_tree(self._tools.accelerator, self._session, self._record),
                limit=self._limits.filling,
            )
        except Exception as error:
            why = reported(error, RolledBack, Reason.CAPTURE_FAILED)
            await self._note(Stage.ROLLING_BACK, failure=codec.failure_of(why))
            if await self._roll_back() is Stage.FAILED:
                await self._settled()
            raise why from error
        seconds = self._since(frozen)
        # From here on it is a session that runs, whatever becomes of what it was.
        await self._settled()
        try:
            info = await self._store(dumped, seconds)
        except Exception as error:
            await self._remove(committed=self._cancel.is_set)
            raise reported(error, RolledBack, Reason.CAPTURE_FAILED) from error
        await self._settled(parent=info.id)
        self._operation.add(Event(checkpoint=info))

    def _promise(self, look: Look) -> None:
        moved = look.gpus.bytes() if look.gpus else 0
        need = Need(self._copied(look) + moved, os.getpid())
        self._tools.memory.promise(self._operation, need)

    def _take_memory(self, look: Look) -> None:
        """Take the memory of the copy now, while nothing is stopped."""
        memory = self._tools.memory
        self._staging = Staging(
            self._copied(look),
            # More than was promised is taken if it is there; else it is called off.
            lambda count, take: memory.grant(Need(count, os.getpid()), take),
        )
        super()._promise(look)

    def _copied(self, look: Look) -> int:
        """Bytes of the copy, as of now; programs that stay stopped are read later."""
        standing = Snapshot(look.snapshot.init, tuple(self._stands_on()))
        left_out = trees.resident_bytes(standing)
        if self._files_bytes is None:
            limit = self._tools.save_point_file_bytes
            self._files_bytes = filesystem.kept_bytes(
                self._session, look.snapshot, limit
            )
        begun = (len(look.snapshot.processes) + 1) * PIECE
        return max(0, look.most - left_out) + begun + self._files_bytes

    def _stands_on(self) -> list[Process]:
        """Programs that nap: they stay stopped when the rest of it goes on."""
        nap = self._record.nap
        if nap is None or nap.stage is not NapStage.ASLEEP:
            return []
        return nap.in_tree(self._tree())

    def _as_it_stands(self, dumped: Dumped) -> Dumped:
        """The input of the rehearsal, for a tree that has gone on by then."""
        memory = without_pages(dumped.result.images, pids_of(self._tree()))
        return dumped._replace(memory=memory)

    async def _describe(
        self, target: CheckpointWriter | Staging, world: HostRequirements
    ) -> None:
        # Copies of the files are described once they are stored.
        del target
        assert self._staging is not None
        self._world = world
        self._kept = KeptFiles(self._tools.save_point_file_bytes, self._staging.stage)
        await self._thread("files", self._keep_files)

    def _keep_files(self) -> None:
        server = self._tree().server
        if server is None or self._kept is None:
            return
        who = credentials_now(server.pid)._replace(effective=0)
        self._kept.take(self._session.init_pid, self._world.files, who)

    async def _settled(self, parent: str = "") -> None:
        await self._note(
            Stage.SETTLED,
            operation=orders.Save.kind,
            checkpoint="",
            parent=parent or self._record.parent,
            stopped_before=[],
            gpus=None,
            memory_limit=LimitRecord(),
            failure=None,
        )

    async def _store(self, dumped: Dumped, frozen: float) -> CheckpointInfo:
        writer, staging = self._writer, self._staging
        assert writer is not None
        assert staging is not None
        with Rehearsal(self._tools, self._session, self._operation) as rehearsal:
            rehearsal.begin(dumped)
            await self._step(
                "save",
                "Saving it while it goes on",
                lambda: self._deliver(staging, writer),
                limit=self._limits.dump,
                done=lambda: writer.logical_bytes,
                total=lambda: staging.logical_bytes + self._standing.logical_bytes,
                cancel=self._cancel,
            )
            return await self._commit(writer, rehearsal, frozen)

    def _deliver(self, staging: Staging, writer: CheckpointWriter) -> None:
        assert self._kept is not None
        files = self._kept.deliver(writer.file, self._cancel)
        self._not_kept = open_files.not_kept(files)
        world = msgspec.structs.replace(self._world, files=files)
        writer.add(WORLD, codec.encode(world))
        staging.deliver(writer.file, self._cancel)
        self._standing.deliver(writer.file, IMAGES, self._cancel)

    def _word(self, rehearsal: Rehearsal) -> None:
        """Wait for the rehearsal; a session that has ended has only the copy.

        Raises:
            RolledBack: it would not come back, or that could not be found out.
        """
        try:
            super()._word(rehearsal)
        except ReclaimError:
            self._cancel.check()
            if self._lives():
                raise

    def _lives(self) -> bool:
        try:
            return self._tree().root is not None
        except NotFound:
            return False
