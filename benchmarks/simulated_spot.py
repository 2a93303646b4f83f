"""Nodes that are taken away, with and without a notice, and what ends with them.

Used by ``simulation.py``. ``Spot`` says which node goes when, for all strategies alike;
``SpotPlain`` and ``SpotOurs`` are the strategies on such nodes. What a loss has cost is
seen when the session's user has it again: the work that it has in its memory then,
against the work that it had when its node went.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from benchmarks.simulated_gpus import Card, Gpus, Place
from benchmarks.simulated_memory import seconds_out
from benchmarks.simulated_node import SimulatedAgent
from benchmarks.simulated_people import DAY, HOUR, MINUTE
from benchmarks.simulated_strategies import Ours, Plain
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import Event, Phase, Step, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.simulated_people import Meeting
    from benchmarks.simulated_strategies import Machine
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey, Tree

GB = 10**9
#: Seconds of notice; each of three days in a row has another one.
NOTICES = (0.0, 30.0, 120.0)
#: Hours of the day between which a node is taken.
TAKEN = (8.0, 20.0)
#: Seconds until there is another node in its place.
REPLACED = 10 * MINUTE
#: Seconds after which the Hub notices that a server has ended.
POLL = 30.0
#: Whose word a notice is.
CLOUD = "cloud"
#: Bytes of each session beside its GPU memory.
HOST = 2 * GB
#: Seconds of a suspend beside the moving of memory. With ``LOCAL`` it makes the 1.6 s
#: that were measured for 1 GiB without a GPU.
BEGIN = 1.3
#: Bytes per second of one session's dump, and of all that a node writes to its store.
LOCAL, STORE = 4.0 * GB, 1.0 * GB
#: Share of a session that is written again although nothing has worked in it.
UNCHANGED = 0.01


@dataclass(frozen=True)
class Loss:
    """A node that is taken."""

    at: float  #: seconds since the beginning, of its end
    node: int
    notice: float  #: seconds


@dataclass
class Ended:
    """A session whose node was taken while its memory was there."""

    notice: float  #: seconds
    worked: float  #: seconds of work in its memory
    back: float = 0.0  #: seconds of work in what came back, or can

    @property
    def lost(self) -> float:
        """Seconds of work."""
        return max(0.0, self.worked - self.back)


@dataclass
class Spot:
    """Which nodes are taken, and what ends with them.

    Args:
        nodes: that have the GPUs, as many each.
        seed: of the run.
        days: of the run; each takes one node.
        drain: whether sessions are suspended at a notice.
    """

    nodes: int
    seed: int
    days: int
    drain: bool = False
    ended: list[Ended] = field(default_factory=list)
    _open: dict[SessionKey, Ended] = field(default_factory=dict)

    def losses(self) -> list[Loss]:
        """In their order."""
        chance = random.Random(f"spot {self.seed}")
        return [
            Loss(
                at=day * DAY + chance.uniform(*TAKEN) * HOUR,
                node=chance.randrange(self.nodes),
                notice=NOTICES[(day + self.seed) % len(NOTICES)],
            )
            for day in range(self.days)
        ]

    def cards(self, gpus: Gpus, node: int) -> Sequence[Card]:
        """The GPUs of a node."""
        return gpus.cards[node :: self.nodes]

    def end(self, place: Place, notice: float, now: float) -> None:
        """A session's programs end with its node."""
        ended = Ended(notice, place.worked_until(now))
        self.ended.append(ended)
        self._open[place.key] = ended

    def back(self, key: SessionKey, worked: float) -> None:
        """Its user has the session again, or may have, with so much work in it."""
        ended = self._open.pop(key, None)
        if ended is not None:
            ended.back = worked

    def missing(self) -> list[SessionKey]:
        """Sessions that have ended, and whose users have not come since."""
        return list(self._open)

    def told(self) -> dict[str, Any]:
        """What was lost: all, and by the notice; work in minutes."""
        each = {
            f"{notice:.0f}": [one for one in self.ended if one.notice == notice]
            for notice in NOTICES
        }
        return {
            "spot_lost_minutes": [round(one.lost / MINUTE, 1) for one in self.ended],
            "spot": {"all": _sums(self.ended)}
            | {notice: _sums(some) for notice, some in each.items()},
        }


def _sums(ended: list[Ended]) -> dict[str, float]:
    minutes = [one.lost / MINUTE for one in ended if one.lost]
    return {
        "ended": len(ended),
        "lost_work": len(minutes),
        "nothing_back": sum(one.worked > 0 and not one.back for one in ended),
        "lost_minutes": round(sum(minutes), 1),
        "lost_minutes_median": round(statistics.median(minutes or [0.0]), 1),
    }


async def take_nodes(world: SpotPlain | SpotOurs) -> None:
    """Take them, one after the other, and have another one in each one's place."""
    spot = world.spot
    for loss in spot.losses():
        cards = spot.cards(world.gpus, loss.node)
        await asyncio.sleep(loss.at - loss.notice - world.clock.monotonic())
        world.gpus.close(cards)
        world.drain(cards, loss.notice)
        await asyncio.sleep(loss.notice)
        await world.lose(cards, loss.notice)
        await asyncio.sleep(REPLACED)
        world.gpus.open(cards)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class SpotPlain(Plain):
    """A Hub without us on such nodes.

    Args:
        machine: what there is.
        spot: which nodes are taken.
    """

    def __init__(self, machine: Machine, spot: Spot) -> None:
        super().__init__(machine)
        self.spot = spot

    async def start(self) -> None:
        self._taker = asyncio.create_task(take_nodes(self))

    async def end(self) -> None:
        await _ended(self._taker)

    def told(self) -> dict[str, Any]:
        """What was lost."""
        return self.spot.told()

    def drain(self, cards: Sequence[Card], notice: float) -> None:
        """Nobody hears a notice."""

    async def lose(self, cards: Sequence[Card], notice: float) -> None:
        """Their node goes, and what ran there."""
        for place in [each for each in self.places() if each.card in cards]:
            self.spot.end(place, notice, self.clock.now())
            place.stand_still()
            await super().stop(place.key)

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        met = await super().come(key, vram, patience)
        if met.came:
            self.spot.back(key, 0.0)
        return met

    async def stop(self, key: SessionKey) -> None:
        self.spot.back(key, math.inf)  # its user wants nothing of it
        await super().stop(key)


class SpotAgent(SimulatedAgent):
    """The agents of such nodes: what is saved there shares the way to the store."""

    def __init__(self, clock: Clock, gpus: Gpus, host: float = math.inf) -> None:
        super().__init__(clock, gpus, host)
        self.written = 0.0  #: bytes of all checkpoints
        self.spot: Spot | None = None
        self.noticed: set[str] = set()  #: nodes that are about to go
        self.drained = 0  #: sessions that were suspended there meanwhile
        self._stores: dict[str, Card] = {}  # shared in equal parts, as cards are

    async def capture(
        self,
        incarnation: str,
        checkpoint: str,
        generation: int,
        *,
        seen: float | None = None,
    ) -> AsyncIterator[Event]:
        events = super().capture(incarnation, checkpoint, generation, seen=seen)
        async for event in events:
            if event.checkpoint is not None:
                place = self.places[incarnation]
                self.drained += self.node_of(place.card) in self.noticed
            yield _heard(event)

    async def save(
        self, incarnation: str, checkpoint: str, generation: int, *, name: str = ""
    ) -> AsyncIterator[Event]:
        async for event in super().save(incarnation, checkpoint, generation, name=name):
            yield _heard(event)

    async def capturing(self, place: Place) -> AsyncIterator[Event]:
        yield Event(step=Step(step="dump", title="Saving the memory"))
        if place.state is TreeState.CAPTURING:
            self.cut_off += place.busy_since is not None
            place.stand_still()
        begun = self.clock.now()
        new = self._new_bytes(place)
        if place.nap is None:
            await self.clock.sleep(seconds_out(place.gpu_memory))
        await self.clock.sleep(BEGIN)
        await asyncio.gather(
            self.clock.sleep((place.gpu_memory + HOST) / LOCAL),
            self._store(place).compute(place.incarnation, new / STORE),
        )
        self.written += new
        seconds = self.clock.now() - begun
        yield Event(step=Step(step="dump", title="", state="done", seconds=seconds))

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        mine = self.places.values() if key is None else self._of.get(key, ())
        return [replace(place.tree(), node=self.node_of(place.card)) for place in mine]

    def node_of(self, card: Card) -> str:
        """Name of the node that has that card."""
        assert self.spot is not None
        return f"node-{self.gpus.cards.index(card) % self.spot.nodes}"

    def lose(self, place: Place) -> None:
        """Its node has gone, and what was done there with it."""
        place.stand_still()
        running = place.running
        if running is not None and running.task is not None:
            running.task.cancel()
            gone = Unreachable(Reason.AGENT_UNREACHABLE, detail="its node is gone")
            running.add(Event(failure=codec.failure_of(gone)))
        self.end(place.incarnation)

    def info(self, place: Place) -> CheckpointInfo:
        size = place.gpu_memory + HOST
        stored = int(self._new_bytes(place))
        return replace(super().info(place), logical_bytes=size, stored_bytes=stored)

    def image(self, place: Place) -> Place:
        image = copy(place)
        image.worked, image.busy_since = place.worked_until(self.clock.now()), None
        return image

    def _new_bytes(self, place: Place) -> float:
        """All of it, unless nothing has worked in it since it was saved last."""
        saved = self.saved.get(place.parent)
        worked = place.worked_until(self.clock.now())
        same = saved is not None and saved[1].worked == worked
        return (place.gpu_memory + HOST) * (UNCHANGED if same else 1.0)

    def _store(self, place: Place) -> Card:
        return self._stores.setdefault(self.node_of(place.card), Card("store"))


def _heard(event: Event) -> Event:
    """As the service hears it: of an agent that is gone, nothing."""
    failure = event.failure
    if failure is not None and failure.code == Reason.AGENT_UNREACHABLE.value:
        raise Unreachable(Reason.AGENT_UNREACHABLE, detail=failure.message)
    return event


class SpotOurs(Ours):
    """The real service on such nodes.

    Args:
        spot: which nodes are taken.
        *more: as of ``Ours``.
    """

    agents = SpotAgent
    agent: SpotAgent

    def __init__(self, spot: Spot, *more: Any) -> None:
        super().__init__(*more)
        self.spot = self.agent.spot = spot
        self._polls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await super().start()
        self._taker = asyncio.create_task(take_nodes(self))

    async def end(self) -> None:
        await _ended(self._taker)
        for key in self.spot.missing():
            self.spot.back(key, self._can_come_back(key))
        await super().end()

    def told(self) -> dict[str, Any]:
        """What was lost, and what was done against it."""
        saves = self._counters.operations["save", "ok"]
        written = round(self.agent.written / GB)
        return {
            **self.spot.told(),
            "spot_drained": self.agent.drained,
            "save_points": saves,
            "written_gb": written,
        }

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        met = await super().come(key, vram, patience)
        place = self._place(key)
        if met.came and place is not None:
            self.spot.back(key, place.worked)
        return met

    async def work(self, key: SessionKey, seconds: float) -> float:
        place = self._place(key)
        done = await super().work(key, seconds)
        # Nobody calls off the suspend that has ended their work.
        if place is not None and place.running is not None:
            assert place.running.task is not None
            await asyncio.wait({place.running.task})
        return done

    async def stop(self, key: SessionKey) -> None:
        self.spot.back(key, math.inf)  # its user wants nothing of it
        await super().stop(key)

    def drain(self, cards: Sequence[Card], notice: float) -> None:
        """The cloud gives notice, and the service is told so."""
        if self.spot.drain and notice:
            node, order = self.agent.node_of(cards[0]), DrainOrder(seconds=notice)
            self.controller.nodes.drain(node, order, CLOUD)
            self.agent.noticed.add(node)

    async def lose(self, cards: Sequence[Card], notice: float) -> None:
        """Their node goes, and what runs there; another one has its name then."""
        for node in {self.agent.node_of(cards[0])} & self.agent.noticed:
            self.agent.noticed.remove(node)
            self.controller.nodes.undrain(node, CLOUD)
        for place in [each for each in self.places() if each.card in cards]:
            if self.hub.current.get(place.key) != place.incarnation:
                self.hub.call_off(place.key)  # it is only being started there
            elif place.state is TreeState.CAPTURED:
                self.agent.end(place.incarnation)
            else:
                self.spot.end(place, notice, self.clock.now())
                self.agent.lose(place)
                poll = asyncio.create_task(self._poll(place))
                self._polls.add(poll)
                poll.add_done_callback(self._polls.discard)

    async def _poll(self, place: Place) -> None:
        """The Hub finds that a server has ended, and stops what is left of it."""
        await self.clock.sleep(POLL)
        if self.hub.current.get(place.key) == place.incarnation:
            await self.hub.stop(place.key)

    def _can_come_back(self, key: SessionKey) -> float:
        """Seconds of work in what its user would be offered."""
        view = self._view(key)
        resting = view is not None and view.phase is Phase.SUSPENDED
        saved = self.agent.saved.get(view.checkpoint) if resting and view else None
        return saved[1].worked if saved is not None else 0.0
