"""Copies the journal's audit log into the event log, in a task of its own.

It reads the audit by a mark in the journal: a failing disk of the event log delays no
session, and a failed write is repeated later, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.controlplane.audit import AuditReader
from jupyterhub_gpu_reclaim.service.events.log import EventLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

_log = logging.getLogger(__name__)

#: Seconds between two looks at the audit; and after a failure.
PACE, PAUSE = 1.0, 30.0
#: Reads at the end; what is left then is written after the next start.
LAST_LOOKS = 10


class Feed:
    def __init__(self, trail: AuditReader, log: EventLog, clock: Clock) -> None:
        self._trail = trail
        self._log = log
        self._clock = clock

    def once(self) -> bool:
        """Write new lines, a limited number; returns whether there were any.

        A crash between a line and its mark writes this line once more.

        Raises:
            OSError: the log could not be written; the mark is before that line.
            StoreError: the journal could not be read or written.
        """
        lines = self._trail.next()
        for each in lines:
            self._log.session(each)
            self._trail.done(each.id)
        return bool(lines)

    async def run(self) -> None:
        while True:
            try:
                pause = 0.0 if self.once() else PACE
            except (OSError, ReclaimError) as error:
                _log.warning("events: not written now, later again: %s", error)
                pause = PAUSE
            await self._clock.sleep(pause)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with contextlib.suppress(OSError, ReclaimError):
                for _ in range(LAST_LOOKS):
                    if not self.once():
                        break


@contextlib.asynccontextmanager
async def feeding(journal: Journal, place: str, clock: Clock) -> AsyncIterator[None]:
    """Keep an event log while the block lasts, if a place is named.

    Raises:
        Refused: the place cannot be written.
    """
    if not place:
        yield
        return
    log = EventLog(place)
    try:
        async with Feed(AuditReader(journal, "events"), log, clock).running():
            yield
    finally:
        log.close()
