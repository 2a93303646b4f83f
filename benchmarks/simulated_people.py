"""People who come, work, pause, come back and leave; what they meet is measured.

Used by ``simulation.py``; the model is ``Habits``, and every number in it is a choice,
stated in ``docs/explanation/policy.md``. Whoever comes and finds no GPU waits as long
as their patience lasts. Each person has a source of chance of their own, so that all
strategies meet the same people.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from jupyterhub_gpu_reclaim.common.models import SessionKey

if TYPE_CHECKING:
    from simulation.loop import LoopClock

GB = 10**9
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
#: Who comes back so soon after a suspend would rather not have been suspended.
SOON = 15 * MINUTE


@dataclass(frozen=True)
class Habits:
    """What people do. Durations in seconds: means (exponential) or medians."""

    comes: float = 0.35  #: share of people who come on a working day
    comes_weekend: float = 0.07
    arrival: tuple[float, float] = (9.75, 2.2)  #: hour of the day: mean, deviation
    stay: tuple[float, float] = (4 * HOUR, 0.6)  #: of a visit: median, sigma
    active: float = 25 * MINUTE  #: of one stretch of work
    short_pause: float = 12 * MINUTE
    long_pause: tuple[float, float] = (90 * MINUTE, 0.7)  #: median, sigma
    long_share: float = 0.25  #: of pauses
    trains: float = 0.10  #: share of visits that leave a job running at their end
    training: float = 3 * HOUR
    stops: float = 0.15  #: share of visits that end with "Stop My Server"
    patience: float = 45 * MINUTE
    vram: tuple[float, float] = (12 * GB, 0.8)  #: median, sigma; at most 78 GB
    #: What one cell computes, and the thought before the next: median, sigma. None: a
    #: stretch of work is one cell.
    cell: tuple[float, float] | None = None
    thought: tuple[float, float] = (45.0, 1.1)


class World(Protocol):
    """What people can do: each strategy is one."""

    clock: LoopClock

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        """Have the session run, however long that takes, or lose patience."""

    async def work(self, key: SessionKey, seconds: float) -> float:
        """It computes for so long, or for longer where its card is shared.

        Returns:
            Seconds of it that were done: less if it ended, or was saved, in between.
        """

    async def stop(self, key: SessionKey) -> None:
        """Stop it for good."""


@dataclass(frozen=True)
class Meeting:
    """What somebody met who came."""

    came: bool  #: False: lost patience
    waited: float  #: seconds
    found: str  #: running, napping, suspended, new, or lost (it was killed)
    after: float = math.inf  #: seconds since it was suspended, or napped
    gave_room: bool = False  #: it napped for another one


@dataclass
class Seen:
    """All that people met."""

    meetings: list[Meeting] = field(default_factory=list)
    visits: int = 0
    given_up: int = 0  #: visits that ended because patience did
    served: int = 0  #: visits with any work done
    worked: float = 0.0  #: seconds of stretches of work, without waits
    computed: float = 0.0  #: seconds that a whole card would have needed
    shared: float = 0.0  #: seconds more, since others computed on the same card

    def waits(self, *found: str) -> list[float]:
        return sorted(m.waited for m in self.meetings if m.came and m.found in found)


async def person(
    world: World, number: int, habits: Habits, seed: int, days: int, seen: Seen
) -> None:
    """One person's days."""
    rng = random.Random(f"{seed} {number}")
    key = SessionKey(f"user{number:05}")
    median, sigma = habits.vram
    vram = int(min(78 * GB, median * rng.lognormvariate(0, sigma)))
    start = world.clock.now()
    for day in range(days):
        share = habits.comes_weekend if day % 7 >= 5 else habits.comes
        hour = min(23.5, max(0.0, rng.gauss(*habits.arrival)))
        stay = habits.stay[0] * rng.lognormvariate(0, habits.stay[1])
        if rng.random() >= share:
            continue
        arrival = start + day * DAY + hour * HOUR
        if world.clock.now() > arrival:
            continue  # still here since yesterday
        await asyncio.sleep(arrival - world.clock.now())
        each = _Person(world, key, vram, habits, rng, seen)
        came = await each.visit(stay) and await each.leave()
        seen.visits += 1
        seen.given_up += not came
        seen.served += each.cells > 0


@dataclass
class _Person:
    """One visit of one person."""

    world: World
    key: SessionKey
    vram: int
    habits: Habits
    rng: random.Random
    seen: Seen
    cells: int = 0  #: that were run

    async def visit(self, stay: float) -> bool:
        """Work and pause; False: patience has ended."""
        habits, rng = self.habits, self.rng
        until = self.world.clock.now() + stay
        while self.world.clock.now() < until:
            if not await self._stretch(habits.active, habits.cell):
                return False
            if rng.random() < habits.long_share:
                median, sigma = habits.long_pause
                pause = median * rng.lognormvariate(0, sigma)
            else:
                pause = rng.expovariate(1 / habits.short_pause)
            await asyncio.sleep(pause)
        return True

    async def leave(self) -> bool:
        """Leave a job running, or stop the session, or just go."""
        if self.rng.random() < self.habits.trains:
            return await self._stretch(self.habits.training)
        if self.rng.random() < self.habits.stops:
            await self.world.stop(self.key)
        return True

    async def _stretch(
        self, mean: float, cell: tuple[float, float] | None = None
    ) -> bool:
        """One stretch of work; False: there was no GPU for it, or not any more."""
        left: float | None = None
        while left is None or left > 0:
            if not await self._come():
                return False
            if left is None:
                left = self.rng.expovariate(1 / mean)
            seconds = left
            if cell is not None:
                seconds = min(left, cell[0] * self.rng.lognormvariate(0, cell[1]))
            left -= await self._run(seconds)
            if cell is not None and left > 0:
                median, sigma = self.habits.thought
                thought = min(left, median * self.rng.lognormvariate(0, sigma))
                await asyncio.sleep(thought)
                self.seen.worked += thought
                left -= thought
        return True

    async def _come(self) -> bool:
        mean = self.habits.patience
        patience = 5 * MINUTE + self.rng.expovariate(1 / mean)
        met = await self.world.come(self.key, self.vram, patience)
        self.seen.meetings.append(met)
        return met.came

    async def _run(self, seconds: float) -> float:
        begun = self.world.clock.now()
        done = await self.world.work(self.key, seconds)
        took = self.world.clock.now() - begun
        self.cells += 1
        self.seen.worked += took
        self.seen.computed += done
        self.seen.shared += took - done
        return done
