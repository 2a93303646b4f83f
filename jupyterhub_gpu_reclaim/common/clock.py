"""Time, passed in as an argument, so that tests can control it.

Decisions must use it instead of ``time.time``, ``datetime.now`` or ``asyncio.sleep``.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The time, and waiting for it."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch (UTC)."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
