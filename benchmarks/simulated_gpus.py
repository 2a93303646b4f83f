"""GPUs whose seats are given out one by one, and what a session does on one of them.

Used by ``simulated_node.py`` and by the baselines of ``simulation.py``. Sessions on one
card share its memory and its time: where several compute at once, each gets an equal
part of the card, as by the driver's time slices.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.memory_agent import MemorySession
from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    KernelSample,
    Sample,
    SessionKey,
)
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GB = 10**9


@dataclass
class CardHours:
    """What one card was used for, in seconds."""

    seated: float = 0.0  #: somebody had a seat
    worked: float = 0.0  #: somebody computed
    held: float = 0.0  #: share of its memory that was in use
    held_idle: float = 0.0  #: the same, of sessions that did not compute


class Card:
    """One GPU.

    Args:
        uuid: its name.
        seats: how many sessions it is given to at once.
        memory: bytes; inf: nobody ever lacks any.
    """

    def __init__(
        self, uuid: str = "gpu", seats: int = 1, memory: float = math.inf
    ) -> None:
        self.uuid = uuid
        self.memory = memory
        self.seats = seats  #: free ones
        self.hours = CardHours()
        self._all_seats = seats
        self._held: dict[str, int] = {}
        self._computing: set[str] = set()
        self._noted = 0.0
        self._changed = asyncio.Event()

    @property
    def free(self) -> float:
        """Bytes."""
        return self.memory - sum(self._held.values())

    def use(self) -> CardUse:
        """What a measurement tells of it."""
        limited = self.memory < math.inf
        return CardUse(
            uuid=self.uuid,
            name="H100",
            free=int(self.free) if limited else None,
            processes=None if self._held else [],
        )

    def sit(self, count: int) -> None:
        """Take a seat (1), or give one back (-1)."""
        self.note()
        self.seats -= count

    def hold(self, incarnation: str, count: int) -> bool:
        """Give a session memory; False: there is not so much."""
        self.note()
        if self.free < count:
            return False
        self._held[incarnation] = count
        return True

    def release(self, incarnation: str) -> None:
        """Take its memory back; idempotent."""
        self.note()
        self._held.pop(incarnation, None)

    async def compute(self, incarnation: str, seconds: float) -> None:
        """Return when the card has worked so long for a session."""
        loop = asyncio.get_running_loop()
        self._compute(incarnation, begins=True)
        try:
            while seconds > 0:
                begun, share = loop.time(), len(self._computing)
                try:
                    async with asyncio.timeout(seconds * share):
                        await self._changed.wait()
                except TimeoutError:
                    return
                seconds -= (loop.time() - begun) / share
        finally:
            self._compute(incarnation, begins=False)

    def _compute(self, incarnation: str, *, begins: bool) -> None:
        self.note()
        (self._computing.add if begins else self._computing.discard)(incarnation)
        self._changed.set()
        self._changed = asyncio.Event()

    def note(self) -> None:
        """Count the time since the last change."""
        now = asyncio.get_running_loop().time()
        passed, self._noted = now - self._noted, now
        idle = [
            count
            for incarnation, count in self._held.items()
            if incarnation not in self._computing
        ]
        self.hours.seated += passed * (self.seats < self._all_seats)
        self.hours.worked += passed * bool(self._computing)
        self.hours.held += passed * sum(self._held.values()) / self.memory
        self.hours.held_idle += passed * sum(idle) / self.memory


class Gpus:
    """A number of GPUs, first come, first served, as the scheduler nearly does it.

    Of the cards with a free seat the emptiest one is given. A scheduler knows seats,
    not memory.

    Args:
        count: how many there are.
        seats: how many sessions share each.
        memory: bytes of each; inf: nobody ever lacks any.
    """

    def __init__(self, count: int, seats: int = 1, memory: float = math.inf) -> None:
        self.cards = [Card(f"gpu{number}", seats, memory) for number in range(count)]
        self.free = count * seats
        self.closed: set[Card] = set()
        self.queue: deque[tuple[SessionKey, float, asyncio.Future[Card]]] = deque()

    async def take(self, key: SessionKey, now: float) -> Card:
        if self.free and not self.queue:
            self.free -= 1
            there = [card for card in self.cards if card not in self.closed]
            card = max(there, key=lambda each: each.seats)
            card.sit(1)
            return card
        turn: asyncio.Future[Card] = asyncio.get_running_loop().create_future()
        entry = (key, now, turn)
        self.queue.append(entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(turn.result())
            else:
                self.queue.remove(entry)
            raise

    def close(self, cards: Iterable[Card]) -> None:
        """Give out none of their seats until they are opened again."""
        self.closed |= set(cards)
        self.free -= sum(card.seats for card in cards)

    def open(self, cards: Iterable[Card]) -> None:
        """Their free seats are to be had again."""
        self.closed -= set(cards)
        for card in cards:
            for _ in range(card.seats):
                card.sit(1)
                self.give(card)

    def give(self, card: Card) -> None:
        if card in self.closed:
            card.sit(-1)
            return
        while self.queue:
            turn = self.queue.popleft()[2]
            if not turn.done():
                turn.set_result(card)
                return
        self.free += 1
        card.sit(-1)


@dataclass(eq=False)
class Place(MemorySession):
    """One incarnation; its GPU memory is taken by its first work."""

    vram: int
    started: float
    worked: float = 0.0  # seconds of work so far
    busy_since: float | None = None
    active: float = 0.0  # when it was last used or at work
    misjudged: bool = False  # work that looks like none, or the reverse
    card: Card = field(default_factory=Card)
    _at_work: asyncio.Timeout | None = None

    def allocate(self) -> bool:
        """Have the GPU memory that its work needs; False: the card has not so much."""
        if not self.gpu_memory and self.card.hold(self.incarnation, self.vram):
            self.gpu_memory = self.vram
        return bool(self.gpu_memory)

    async def work(self, seconds: float, now: Callable[[], float]) -> float:
        """Work for so long, or for longer where others do so on its card.

        Returns:
            Seconds of it that were done: less if the session was made to stand still.
        """
        begun, done = now(), seconds
        self.busy_since = begun
        try:
            async with asyncio.timeout(None) as self._at_work:
                await self.card.compute(self.incarnation, seconds)
        except TimeoutError:
            done = min(seconds, now() - begun)
        self._at_work = None
        self.worked += now() - begun
        self.busy_since, self.active = None, now()
        return done

    def stand_still(self) -> None:
        """End its work at once, if it is at work."""
        at_work, self._at_work = self._at_work, None
        if at_work is not None:
            at_work.reschedule(0.0)

    def worked_until(self, now: float) -> float:
        """Seconds of work that are in its memory."""
        return self.worked + (now - self.busy_since if self.busy_since else 0.0)

    def sample(self, now: float) -> Sample:
        busy = self.busy_since is not None and self.nap is None
        worked = self.worked_until(now) if busy else self.worked
        if self.misjudged and self.nap is None:
            busy, worked = not busy, now if not busy else 0.0
        kernel = KernelSample(
            id="k",
            name="train.ipynb",
            execution_state="busy" if busy else "idle",
            last_activity=now if busy else self.active,
        )
        return Sample(
            incarnation=self.incarnation,
            key=self.key,
            at=now,
            memory=2 * GB,
            cpu_work=worked,
            kernels=[kernel],
            terminals=[],
            connections=0,
            started=self.started,
            gpus=[] if self.nap is not None else [self.gpu(80.0 if busy else 0.0)],
        )

    def gpu(self, percent: float = 0.0) -> GpuSample:
        """What it has of its card while it is awake."""
        return GpuSample(
            uuid=self.card.uuid,
            name="H100",
            memory=self.gpu_memory,
            sm_percent=percent,
        )
