"""Work queue: keys that need a look, one worker per session, backoff per key.

It carries only keys, never events: the worker recomputes everything from state. So a
key that is added twice, late, or again after a crash does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey


_log = logging.getLogger(__name__)


class _Job:
    """A key in the queue: its worker, and what wakes that before its time."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()  #: whether it is to be looked at now
        self.working = False
        self.task: asyncio.Task[None] | None = None


class WorkQueue:
    """Runs ``work(key)`` for each added key until it asks for no further look.

    ``work`` looks at one session, and returns in how many seconds it wants to look
    again, or None. A ``ReclaimError`` from it means: again after a while, which is
    doubled with each failure in a row.
    """

    def __init__(
        self,
        work: Callable[[SessionKey], Awaitable[float | None]],
        *,
        clock: Clock,
        workers: int = 16,
        backoff: float = 1.0,
        backoff_limit: float = 60.0,
    ) -> None:
        self._work = work
        self._clock = clock
        self._slots = asyncio.Semaphore(workers)
        self._backoff = backoff
        self._backoff_limit = backoff_limit
        self._jobs: dict[SessionKey, _Job] = {}
        self._closed = False

    def add(self, key: SessionKey) -> None:
        if self._closed:
            return
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job()
            job.task = asyncio.create_task(self._run(key, job), name=f"work {key}")
        job.wanted.set()

    def busy(self, key: SessionKey) -> bool:
        job = self._jobs.get(key)
        return job is not None and (job.working or job.wanted.is_set())

    async def stop(self) -> None:
        """End all work at once; what is half done is settled after the next start."""
        self._closed = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()

    async def _run(self, key: SessionKey, job: _Job) -> None:
        delay: float | None = 0.0
        failures = 0  # in a row
        while delay is not None or job.wanted.is_set():
            await self._until_wanted(job, delay or 0.0)
            async with self._slots:
                job.wanted.clear()
                job.working = True
                try:
                    delay = await self._work(key)
                    failures = 0
                except ReclaimError as error:
                    delay, failures = self._after(failures), failures + 1
                    _log.info("%s: retrying in %.0f s: %s", key, delay, error)
                except Exception:  # noqa: BLE001 the last line of defence: a fault in one session's work
                    delay, failures = self._after(failures), failures + 1
                    _log.exception("%s: failed; retrying in %.0f s", key, delay)
                finally:
                    job.working = False
        del self._jobs[key]

    async def _until_wanted(self, job: _Job, delay: float) -> None:
        if job.wanted.is_set():
            return
        timer = asyncio.create_task(self._want_after(job, delay))
        try:
            await job.wanted.wait()
        finally:
            timer.cancel()

    async def _want_after(self, job: _Job, delay: float) -> None:
        await self._clock.sleep(delay)
        job.wanted.set()

    def _after(self, failures: int) -> float:
        with contextlib.suppress(OverflowError):
            return min(self._backoff * 2.0**failures, self._backoff_limit)
        return self._backoff_limit
