"""Work queue: keys that need a look, one worker per session, backoff per key.

It carries only keys, never events: the worker recomputes everything from state. So a
key
that is added twice, late, or again after a crash does no harm.
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


class WorkQueue:
    """Runs ``work(key)`` for each added key until it asks for no further look.

    Args:
        work: looks at one session; returns in how many seconds it wants to look
            again, or None. A ``ReclaimError`` from it means: again after a while.
        clock: waits.
        workers: how many sessions are worked on at the same time.
        backoff: seconds after a first failure; doubled with each one in a row.
        backoff_limit: bound of that.
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
        self._running: dict[SessionKey, asyncio.Task[None]] = {}
        self._again: set[SessionKey] = set()
        self._later: dict[SessionKey, asyncio.Task[None]] = {}
        self._failures: dict[SessionKey, int] = {}
        self._closed = False

    def add(self, key: SessionKey) -> None:
        """Look at that session as soon as possible; again if a worker is at it."""
        if self._closed:
            return
        self._forget_timer(key)
        if key in self._running:
            self._again.add(key)
            return
        task = asyncio.create_task(self._run(key), name=f"work {key}")
        self._running[key] = task

    def add_later(self, key: SessionKey, delay: float) -> None:
        """Look at it after that many seconds, or earlier if it is added meanwhile."""
        if self._closed:
            return
        self._forget_timer(key)
        self._later[key] = asyncio.create_task(self._wait(key, delay))

    def busy(self, key: SessionKey) -> bool:
        """Whether a worker is at that session now."""
        return key in self._running

    async def stop(self) -> None:
        """End all work at once; what is half done is settled after the next start."""
        self._closed = True
        tasks = [*self._running.values(), *self._later.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        self._later.clear()

    def _forget_timer(self, key: SessionKey) -> None:
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _wait(self, key: SessionKey, delay: float) -> None:
        await self._clock.sleep(delay)
        self._later.pop(key, None)
        self.add(key)

    async def _run(self, key: SessionKey) -> None:
        delay: float | None = None
        try:
            async with self._slots:
                self._again.discard(key)
                delay = await self._look(key)
        finally:
            self._running.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif delay is not None:
            self.add_later(key, delay)

    async def _look(self, key: SessionKey) -> float | None:
        """One look; its failure never ends the queue."""
        try:
            delay = await self._work(key)
        except ReclaimError as error:
            delay = self._after_failure(key)
            _log.info("%s: retrying in %.0f s: %s", key, delay, error)
        except Exception:  # noqa: BLE001 the last line of defence: a fault in one session's work
            delay = self._after_failure(key)
            _log.exception("%s: failed; retrying in %.0f s", key, delay)
        else:
            self._failures.pop(key, None)
        return delay

    def _after_failure(self, key: SessionKey) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        with contextlib.suppress(OverflowError):
            return min(self._backoff * 2.0**failures, self._backoff_limit)
        return self._backoff_limit
