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


class World(Protocol):
    """What people can do: each strategy is one."""

    clock: LoopClock

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        """Have the session run, however long that takes, or lose patience."""

    def work(self, key: SessionKey, *, busy: bool) -> None:
        """It works, or its user has just stopped working."""

    async def stop(self, key: SessionKey) -> None:
        """Stop it for good."""


@dataclass(frozen=True)
class Meeting:
    """What somebody met who came."""

    came: bool  #: False: lost patience
    waited: float  #: seconds
    found: str  #: running, suspended, new, or lost (it was killed)
    after: float = math.inf  #: seconds since it was suspended


@dataclass
class Seen:
    """All that people met."""

    meetings: list[Meeting] = field(default_factory=list)

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
        if await _visit(world, key, vram, habits, rng, stay, seen):
            await _leave(world, key, vram, habits, rng, seen)


async def _visit(
    world: World,
    key: SessionKey,
    vram: int,
    habits: Habits,
    rng: random.Random,
    stay: float,
    seen: Seen,
) -> bool:
    until = world.clock.now() + stay
    while world.clock.now() < until:
        if not await _work(world, key, vram, habits, rng, habits.active, seen):
            return False
        if rng.random() < habits.long_share:
            pause = habits.long_pause[0] * rng.lognormvariate(0, habits.long_pause[1])
        else:
            pause = rng.expovariate(1 / habits.short_pause)
        await asyncio.sleep(pause)
    return True


async def _work(
    world: World,
    key: SessionKey,
    vram: int,
    habits: Habits,
    rng: random.Random,
    mean: float,
    seen: Seen,
) -> bool:
    """One stretch of work; False: there was no GPU for it."""
    patience = 5 * MINUTE + rng.expovariate(1 / habits.patience)
    met = await world.come(key, vram, patience)
    seen.meetings.append(met)
    if not met.came:
        return False
    world.work(key, busy=True)
    await asyncio.sleep(rng.expovariate(1 / mean))
    world.work(key, busy=False)
    return True


async def _leave(
    world: World,
    key: SessionKey,
    vram: int,
    habits: Habits,
    rng: random.Random,
    seen: Seen,
) -> None:
    if rng.random() < habits.trains:
        await _work(world, key, vram, habits, rng, habits.training, seen)
    elif rng.random() < habits.stops:
        await world.stop(key)
