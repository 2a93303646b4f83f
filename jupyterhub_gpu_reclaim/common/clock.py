"""Time as an argument, for tests: decisions use no ``time.time``, ``asyncio.sleep``."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall clock, seconds since the epoch (UTC)."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
