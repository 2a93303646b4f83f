"""Work queue: keys that need a look, one worker per session, backoff per key.

It carries only keys, never events: the worker recomputes everything from state. So a
key that is added twice, late, or again after a crash does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey


_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """A key in the queue: its worker, or the timer that adds it again."""

    task: asyncio.Task[None] | None = None
    timer: asyncio.Task[None] | None = None
    again: bool = False  #: whether the key was added while a worker was at it
    failures: int = 0  #: in a row

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


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
        job = self._jobs.setdefault(key, _Job())
        job.cancel_timer()
        if job.task is not None:
            job.again = True
        else:
            job.task = asyncio.create_task(self._run(key, job), name=f"work {key}")

    def add_later(self, key: SessionKey, delay: float) -> None:
        if self._closed:
            return
        job = self._jobs.setdefault(key, _Job())
        job.cancel_timer()
        job.timer = asyncio.create_task(self._add_after(key, job, delay))

    def busy(self, key: SessionKey) -> bool:
        job = self._jobs.get(key)
        return job is not None and job.task is not None

    async def stop(self) -> None:
        """End all work at once; what is half done is settled after the next start."""
        self._closed = True
        tasks = [
            task
            for job in self._jobs.values()
            for task in (job.task, job.timer)
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()

    async def _add_after(self, key: SessionKey, job: _Job, delay: float) -> None:
        await self._clock.sleep(delay)
        job.timer = None
        self.add(key)

    async def _run(self, key: SessionKey, job: _Job) -> None:
        delay: float | None = None
        try:
            async with self._slots:
                job.again = False
                delay = await self._look_once(key, job)
        finally:
            job.task = None
        if job.again:
            self.add(key)
        elif delay is not None:
            self.add_later(key, delay)
        elif job.timer is None:
            self._jobs.pop(key, None)

    async def _look_once(self, key: SessionKey, job: _Job) -> float | None:
        try:
            delay = await self._work(key)
        except ReclaimError as error:
            delay = self._after_failure(job)
            _log.info("%s: retrying in %.0f s: %s", key, delay, error)
        except Exception:  # noqa: BLE001 the last line of defence: a fault in one session's work
            delay = self._after_failure(job)
            _log.exception("%s: failed; retrying in %.0f s", key, delay)
        else:
            job.failures = 0
        return delay

    def _after_failure(self, job: _Job) -> float:
        failures = job.failures
        job.failures += 1
        with contextlib.suppress(OverflowError):
            return min(self._backoff * 2.0**failures, self._backoff_limit)
        return self._backoff_limit
