"""The rehearsal of a capture: its return is tried while the rest is being saved.

It runs beside the archives and the writing of the last packs, and the manifest waits
for its result: a session that would not come back is never committed. It is called off
with the capture, which does not wait for its end: it touches neither the session nor
the store.
"""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import rehearse
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node import cgroup_escape
from jupyterhub_gpu_reclaim.node.operations.operations import in_thread, reported_step

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools


class Rehearsal:
    """One rehearsal under way; a context manager that calls it off at its end."""

    def __init__(
        self,
        tools: WorkflowTools,
        session: Session,
        operation: Operation,
    ) -> None:
        self._tools = tools
        self._init = SessionInit(session.init_pid, session.init_start)
        self._progress = partial(reported_step, operation, tools.clock)
        self._capture = operation.cancel
        self._cancel = Cancel()
        self._word: Future[None] = Future()

    def begin(self, dumped: Dumped) -> None:
        loop = asyncio.get_running_loop()
        self._word = asyncio.run_coroutine_threadsafe(self._run(dumped), loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel.set()

    def wait(self) -> None:
        """Wait for its result, in a thread.

        Raises:
            RolledBack: the session would not come back (``would_not_return``); that
                could not be found out in time; or the capture was called off.
        """
        limit = self._tools.limits.rehearsal
        either = [self._word, self._capture.told]
        wait(either, limit, return_when=FIRST_COMPLETED)
        self._capture.check()
        if not self._word.done():
            raise RolledBack(Reason.TIMED_OUT, step="rehearsal", seconds=limit)
        self._word.result()

    async def _run(self, dumped: Dumped) -> None:
        limits = self._tools.limits
        async with self._progress("rehearsal", "Trying its return"):
            await in_thread(
                lambda: self._rehearse(dumped),
                step="rehearsal",
                limit=limits.rehearsal + limits.check,
            )

    def _rehearse(self, dumped: Dumped) -> None:
        with tempfile.TemporaryDirectory(dir=self._tools.work) as folder:
            rehearse(
                self._tools.criu.criu(),
                self._init,
                dumped,
                folder=Path(folder),
                limit=self._tools.limits.rehearsal,
                prepare=cgroup_escape.move,
                cancel=self._cancel,
            )
