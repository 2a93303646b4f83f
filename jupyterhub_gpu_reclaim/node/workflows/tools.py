"""What captures, restores, naps and wakes share: their tools, wired once by ``app``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import DEVICES
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.operations import in_thread, reported_step
from jupyterhub_gpu_reclaim.node.operations.records import ENDED, NapStage, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation, TimeLimits
    from jupyterhub_gpu_reclaim.node.operations.records import Record, Records
    from jupyterhub_gpu_reclaim.node.requirements import Gpus
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.setup.readiness import CheckedCriu
    from jupyterhub_gpu_reclaim.store.repository import Repository


T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Stages after which the way goes on even if the record of it cannot be written: the
#: tree must not stay stopped because the agent's own disk is full.
_UNDOING: Final = {Stage.ROLLING_BACK, Stage.FAILED, Stage.RESTORED, Stage.SETTLED}


@dataclass(frozen=True, kw_only=True)
class WorkflowTools:
    """CRIU, GPUs, memory, store and records, with their limits.

    Attributes:
        work: folder in which each operation makes one for CRIU's socket and log.
        trusted_capabilities: see the agent's setting.
        save_point_file_bytes: likewise.
    """

    records: Records
    store: Repository
    criu: CheckedCriu
    client: AsyncHTTPClient
    clock: Clock
    limits: TimeLimits
    work: Path
    accelerator: Accelerator
    memory: HostMemory
    ports: HeldPorts
    trusted_capabilities: tuple[str, ...] = ()
    save_point_file_bytes: int = 256 << 20


class Workflow:
    _record: Record

    def __init__(
        self, tools: WorkflowTools, session: Session, operation: Operation
    ) -> None:
        self._tools = tools
        self._session = session
        self._init = SessionInit(session.init_pid, session.init_start)
        self._operation = operation
        self._cancel = operation.cancel
        self._progress = partial(reported_step, operation, tools.clock)
        self._limits = tools.limits

    async def run(self) -> None:
        raise NotImplementedError

    async def _note(self, stage: Stage, **changes: object) -> None:
        self._record = self._record.at(stage, self._operation.steps, **changes)
        await self._keep(self._record)

    async def _keep(self, record: Record) -> None:
        """Save a record, before the next step is taken.

        Raises:
            StoreError: it cannot be saved (``state_full``): the operation is to be
                undone. What leads back to a session that runs is remembered instead.
        """
        try:
            await asyncio.to_thread(self._tools.records.save, record)
        except OSError as error:
            _log.error("%s record cannot be written: %s", record.key, error)
            falls = record.nap is not None and record.nap.stage is NapStage.FALLING
            if falls or record.stage not in _UNDOING:
                raise StoreError(Reason.STATE_FULL, detail=str(error)) from error
            self._tools.records.remember(record)

    async def _step(
        self,
        name: str,
        title: str,
        work: Callable[[], T],
        *,
        limit: float = 0.0,
        done: Callable[[], int] = int,
        total: Callable[[], int] = int,
        cancel: Cancel | None = None,
    ) -> T:
        """Do one step in a thread, and tell of it; ``limit`` as of a look if 0."""
        limit = limit or self._limits.check
        async with self._progress(name, title, done=done, total=total):
            return await in_thread(work, step=name, limit=limit, cancel=cancel)

    async def _move_out(self, title: str, work: Callable[[], None], gpus: Gpus) -> None:
        limit = self._limits.emptying
        await self._step("gpu", title, work, limit=limit, total=gpus.bytes)
        self._tools.memory.release(self._operation)  # it is in use from here on

    async def _move_back(
        self, work: Callable[[], None], gpus: Gpus, why: str = ""
    ) -> None:
        title = "Bringing the memory of its GPU back" + (f": {why}" if why else "")
        limit = self._limits.filling
        await self._step("gpu", title, work, limit=limit, total=gpus.bytes)

    async def _thread(self, step: str, work: Callable[[], T]) -> T:
        return await in_thread(work, step=step, limit=self._limits.check)


#: Seconds before each further attempt; a program's first call takes up to three.
_PAUSES: Final = (0.5, 1.5, 3.0)


async def look_again(
    attempt: Callable[[Operation], Awaitable[None]],
    record: Callable[[], Record | None],
    clock: Clock,
    operation: Operation,
) -> None:
    """Do the work, again where a program was just beginning to use a GPU.

    The driver knows it seconds later, or it has gone (PyTorch's compilers). An attempt
    undoes its work when it raises; the record tells whether it could.
    """
    for pause in _PAUSES:
        try:
            return await attempt(operation)
        except ReclaimError as error:
            opened = error.reason is Reason.DEVICE_OPEN and DEVICES in str(error)
            left = record()
            undone = left is None or left.stage in ENDED
            if not (opened or error.reason is Reason.GPU_BEGUN) or not undone:
                raise
            await clock.sleep(pause)
            operation.cancel.check()
    return await attempt(operation)
