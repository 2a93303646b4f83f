"""Reads the store while the agent runs, one part an hour, to find damage early.

Which part is due says the clock alone: an agent that is restarted goes on where it was,
and after so many days every pack that was there all the time has been read once. It
reads in a thread of the lowest priority, and holds up neither suspends nor returns.
What it finds stands in the log and, where a file is given, in metrics.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import metrics_file
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.store.read.subset import Subset
from jupyterhub_gpu_reclaim.store.verification import Verification

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.repository import Repository

_log = logging.getLogger(__name__)

PERIOD = 3600.0
_LOWEST_PRIORITY = 19


class StoreChecks:
    """Verifies the store, all of it in so many days.

    Args:
        repository: of the store.
        clock: says which part is due.
        days: in which all is read.
        metrics: file for Prometheus; empty: none.
    """

    def __init__(
        self, repository: Repository, clock: Clock, *, days: float, metrics: str = ""
    ) -> None:
        self._repository = repository
        self._clock = clock
        self._parts = max(1, round(days * 86400 / PERIOD))
        self._metrics = metrics
        self._stop = threading.Event()
        #: Damaged checkpoints, by the part in which they were last found.
        self._damaged: dict[int, set[str]] = {}
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="verify", initializer=_gently
        )

    async def run(self) -> None:
        """Verify the part that is due, then the next in an hour, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._thread, self.check_part)
            except (ReclaimError, OSError) as error:
                _log.warning("- the store could not be verified: %s", error)
            await self._clock.sleep(PERIOD - self._clock.now() % PERIOD)

    def close(self) -> None:
        """End what is under way between two blocks."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)

    def check_part(self) -> Verification:
        """Read the part that is due now; blocks.

        Raises:
            StoreError: the store does not work, or ``CANCELLED`` by :meth:`close`.
            OSError: the metrics cannot be written.
        """
        begun = self._clock.monotonic()
        hour = int(self._clock.now() // PERIOD)
        part = Subset(hour % self._parts + 1, self._parts)
        done = Verification(self._repository, part)
        ids = self._repository.ids()
        for checkpoint in ids:
            done.check(checkpoint, self._go_on)
        self._damaged[part.number] = {each.checkpoint for each in done.damage}
        damaged = set().union(*self._damaged.values()).intersection(ids)
        for each in done.damage:
            state = "cannot be opened" if each.locked else "is damaged"
            _log.error("- %s %s: %s", each.checkpoint, state, each.why)
        seconds = self._clock.monotonic() - begun
        _log.info("- verified part %s of the store: %s", part, size(done.bytes))
        if self._metrics:
            metrics_file.verified(
                self._metrics, done.bytes, seconds, len(damaged), self._clock.now()
            )
        return done

    def _go_on(self, _done: int, _total: int) -> None:
        if self._stop.is_set():
            raise StoreError(Reason.CANCELLED)


def _gently() -> None:
    """Give way to everybody else; on Linux a thread has a priority of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
