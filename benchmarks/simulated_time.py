"""An event loop whose time is simulated: nobody sleeps, the clock jumps.

Used by ``simulation.py``. Everything in asyncio that waits (sleep, timeout, wait) waits
in that time; whenever nobody has anything to do, it jumps to the next thing due. Order
and times depend on nothing outside, so that a run with the same seed is the same run.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

#: A Monday, 00:00 UTC.
MONDAY = 1_735_516_800.0


class _Selector(selectors.SelectSelector):
    """Never waits: it moves the loop's time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("everybody waits for somebody else")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated seconds, from 0 on."""

    def __init__(self) -> None:
        self._moved = _Selector()
        super().__init__(self._moved)

    def time(self) -> float:
        return self._moved.now


class LoopClock:
    """``common.clock.Clock`` in the running loop's time."""

    def now(self) -> float:
        return MONDAY + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
