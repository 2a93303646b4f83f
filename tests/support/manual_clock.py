"""A clock that stands still until a test moves it."""

import asyncio


class ManualClock:
    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Wall clock, seconds since the epoch (UTC)."""
        return self._now

    def monotonic(self) -> float:
        """The same time: this clock never jumps by itself."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        self._now += seconds
        due = [s for s in self._sleepers if s[0] <= self._now]
        self._sleepers = [s for s in self._sleepers if s[0] > self._now]
        for _, future in due:
            if not future.done():
                future.set_result(None)
