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

    from jupyterhub_gpu_reclaim.common.models import SessionKey


_log = logging.getLogger(__name__)

#: Seconds between two looks after a failure, doubled by each in a row; their bound.
BACKOFF, BACKOFF_LIMIT = 1.0, 60.0


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
        workers: int = 16,
    ) -> None:
        self._work = work
        self._slots = asyncio.Semaphore(workers)
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay or 0.0):
                    await job.wanted.wait()
            job.wanted.set()  # its time has come
            async with self._slots:
                job.wanted.clear()
                job.working = True
                try:
                    delay = await self._work(key)
                    failures = 0
                except ReclaimError as error:
                    delay, failures = _after(failures), failures + 1
                    _log.info("%s: retrying in %.0f s: %s", key, delay, error)
                except Exception:  # noqa: BLE001 the last line of defence: a fault in one session's work
                    delay, failures = _after(failures), failures + 1
                    _log.exception("%s: failed; retrying in %.0f s", key, delay)
                finally:
                    job.working = False
        del self._jobs[key]


def _after(failures: int) -> float:
    return min(BACKOFF * 2.0 ** min(failures, 32), BACKOFF_LIMIT)
