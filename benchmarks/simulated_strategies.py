"""What is done with idle sessions: nothing, killing them, or saving them.

Used by ``simulation.py``. ``Ours`` is the real controller with its journal, work queue
and policy, on a simulated node and Hub; ``Plain`` are the rules of others: nothing at
all, or that of jupyterhub-idle-culler, which ends what was idle for a while, and with
it what it held.
"""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.simulated_gpus import Gpus, Place
from benchmarks.simulated_memory import POD
from benchmarks.simulated_node import SimulatedAgent, SimulatedHub
from benchmarks.simulated_people import SOON, Meeting
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, SessionKey, TreeState
from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import (
    MADE_ROOM_LINES,
    MAKES_ROOM,
)
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapDecider, NapPolicy
from jupyterhub_gpu_reclaim.policy.pressure import PreemptionPolicy, PressurePolicy
from jupyterhub_gpu_reclaim.sampling.window import Window
from simulation.loop import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import SessionView
    from jupyterhub_gpu_reclaim.controlplane.model.accounting import Counters

#: Seconds between two samples and two ticks: thirty times the defaults, so that a week
#: can be simulated at all. The service notices everything up to that much later.
BEAT = 300.0
#: Seconds after which a person runs a cell again that found no memory on its card.
AGAIN = 60.0
#: Phases in which a person finds their page, though perhaps not their GPU memory.
USABLE = {Phase.RUNNING, Phase.WARNED, Phase.NAPPING}
#: A nap begins in so many seconds after the line in the audit that it is for another.
ROOM_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is for everybody."""

    gpus: int
    seats: int = 1  #: sessions that share one GPU
    memory: float = math.inf  #: bytes of each GPU; inf: nobody ever lacks any
    host: float = math.inf  #: bytes of host memory that naps and saves may have

    def cards(self) -> Gpus:
        return Gpus(self.gpus, self.seats, self.memory)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How the real service is set. All in seconds."""

    idle_after: float = 900.0
    nap_after: float = 0.0  #: 0: nobody naps
    room_after: float = 60.0  #: 0: nobody naps for others
    under_pressure: float = 0.0  #: ``pressure_idle_after``; 0: off
    save_every: float = 0.0  #: ``Settings.save_every``; 0: no save points by rule
    beat: float = BEAT  #: between two samples, and two ticks
    overlooked: float = 0.0  #: share of stretches of work that look idle
    mistaken: float = 0.0  #: share of idle stretches that look like work


async def allocated(place: Place, clock: LoopClock, until: float) -> bool:
    """Whether its first cell found memory, tried again and again until then."""
    while True:
        place.active = clock.now()
        if place.allocate():
            return True
        left = until - clock.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(AGAIN, left))


class Plain:
    """A Hub without us.

    Args:
        machine: what there is.
        kill_after: seconds of idleness after which a session is killed; inf: never.
    """

    def __init__(self, machine: Machine, kill_after: float = math.inf) -> None:
        self.clock = LoopClock()
        self.gpus = machine.cards()
        self.lost = self.suspends = self.cut_off = 0
        self.naps = self.naps_failed = self.wakes_unserved = 0
        self._kill_after = kill_after
        self._places: dict[SessionKey, Place] = {}
        self._killed: set[SessionKey] = set()

    async def start(self) -> None:
        """Begin."""

    async def end(self) -> None:
        """End."""

    async def beat(self) -> None:
        """Kill what is idle."""
        now = self.clock.now()
        for key, place in list(self._places.items()):
            if place.busy_since is None and now - place.active > self._kill_after:
                await self.stop(key)
                self._killed.add(key)
                self.lost += 1

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        place = self._places.get(key)
        found = "lost" if key in self._killed else "new" if place is None else "running"
        asked = self.clock.now()
        until = self.clock.monotonic() + patience
        if place is None:
            try:
                async with asyncio.timeout(patience):
                    card = await self.gpus.take(key, asked)
            except TimeoutError:
                return Meeting(came=False, waited=patience, found=found)
            await asyncio.sleep(POD)
            self._killed.discard(key)
            now, name = self.clock.now(), str(key)
            place = Place(key, name, TreeState.RUNNING, vram, now, card=card)
            self._places[key] = place
        came = await allocated(place, self.clock, until)
        return Meeting(came=came, waited=place.active - asked, found=found)

    async def work(self, key: SessionKey, seconds: float) -> float:
        return await self._places[key].work(seconds, self.clock.now)

    async def stop(self, key: SessionKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            place.card.release(place.incarnation)
            self.gpus.give(place.card)

    def places(self) -> Iterable[Place]:
        return self._places.values()

    def held(self) -> int:
        """Sessions whose state is kept without a GPU."""
        return 0


class Ours:
    """The real service.

    Args:
        machine: what there is.
        journal: SQLAlchemy URL of its journal.
        rules: how it is set.
    """

    agents = SimulatedAgent

    def __init__(self, machine: Machine, journal: str, rules: Rules) -> None:
        self.clock = LoopClock()
        self._rules, self._chance = rules, random.Random("misjudged")
        self.gpus = machine.cards()
        self.agent = self.agents(self.clock, self.gpus, machine.host)
        self.hub = SimulatedHub(self.agent)
        idle = IdlePolicy(
            idle_after=rules.idle_after, max_sample_age=max(60.0, 2 * rules.beat)
        )
        pressure = PressurePolicy(idle, pressure_idle_after=rules.under_pressure)
        guards = Guards()
        decide = Decider(guards, [idle, pressure])
        naps = NapPolicy(
            idle,
            seats=machine.seats,
            nap_after=rules.nap_after,
            room_after=rules.room_after,
        )
        span = max(rules.idle_after, rules.nap_after)
        self._journal = Journal(journal)
        self.controller = self.hub.controller = Controller(
            journal=self._journal,
            agent=self.agent,
            hub=self.hub,
            decide=decide,
            choose=PreemptionPolicy(decide) if rules.under_pressure else None,
            naps=NapDecider(guards, naps) if rules.nap_after else None,
            window=lambda: Window(span=span, interval=rules.beat),
            clock=self.clock,
            settings=Settings(
                sample_interval=rules.beat,
                tick_interval=rules.beat,
                captures=16,
                pace=min(5.0, rules.beat / 10),
                audit=30 * 86400.0,
                save_every=rules.save_every,
                seats_per_gpu=machine.seats,
            ),
        )

    async def start(self) -> None:
        """Begin."""
        await self.controller.start()

    async def end(self) -> None:
        """End."""
        await self.controller.stop()
        self._journal.close()

    @property
    def lost(self) -> int:
        """Trees ended with nothing saved of them."""
        return len(self.agent.lost)

    @property
    def suspends(self) -> int:
        """So far."""
        return self._counters.operations["suspend", "ok"]

    @property
    def naps(self) -> int:
        """So far."""
        return self._counters.operations["nap", "ok"]

    @property
    def naps_failed(self) -> int:
        """So far."""
        return self._counters.operations["nap", "failed"]

    @property
    def wakes_unserved(self) -> int:
        """For which nobody could nap."""
        return self._counters.wakes_unserved

    @property
    def cut_off(self) -> int:
        """Sessions that were saved in the middle of work."""
        return self.agent.cut_off

    @property
    def _counters(self) -> Counters:
        return self.controller.metrics_snapshot().counters

    async def beat(self) -> None:
        """It has beats of its own."""

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        self.hub.vram[key] = vram
        asked = self.clock.now()
        until = self.clock.monotonic() + patience
        view = self._view(key)
        met = self._found(key, view)
        while not self._runs(key, view):
            left = until - self.clock.monotonic()
            if left <= 0:
                self.hub.call_off(key)
                return replace(met, came=False, waited=patience)
            await self._ask(key, view, left)
            view = self._view(key)
        place = self.agent.places[self.hub.current[key]]
        came = await allocated(place, self.clock, until)
        return replace(met, came=came, waited=place.active - asked)

    def _found(self, key: SessionKey, view: SessionView | None) -> Meeting:
        """What somebody meets who comes now."""
        met = Meeting(came=True, waited=0.0, found="suspended")
        now, place = self.clock.now(), self._place(key)
        if self._runs(key, view):
            return replace(met, found="running")
        if view is None or view.phase is Phase.STOPPED:
            return replace(met, found="new")
        if place is not None and view.phase in USABLE:
            begun = place.nap.begun if place.nap is not None else now
            lines = self._journal.audit(key, MADE_ROOM_LINES)
            at = next((line.at for line in lines if line.what == MAKES_ROOM), -math.inf)
            room = begun - at < ROOM_SECONDS
            return replace(met, found="napping", after=now - begun, gave_room=room)
        suspended = view.phase is Phase.SUSPENDED
        return replace(met, after=now - view.since if suspended else 0.0)

    async def _ask(
        self, key: SessionKey, view: SessionView | None, left: float
    ) -> None:
        """Do what brings it on, and wait for a while or its end."""
        start, place = self.hub.starting(key), self._place(key)
        if place is not None and place.state is TreeState.NAPPING:
            self.agent.use(place)
        moving = place.running if place is not None else None
        if moving is not None and moving.kind in {"nap", "wake"}:
            assert moving.task is not None
            await asyncio.wait({moving.task}, timeout=left)
            return
        if start is not None:
            await asyncio.wait({start}, timeout=left)
            await asyncio.sleep(1.0)  # the service notes that it answers
        elif view is None or view.phase is Phase.STOPPED:
            with suppress(Refused):  # it stops just now: once more, like a person
                await self.hub.start(key)
            await asyncio.sleep(1.0)
        else:
            wished = view.facts.intent == "resume"
            resting = {Phase.SUSPENDED, Phase.SUSPENDING, Phase.RELEASING}
            if not wished and view.phase in resting:
                await self.controller.users.resume(key, key.user)
            await asyncio.sleep(1.0)

    async def work(self, key: SessionKey, seconds: float) -> float:
        place = self._place(key)
        assert place is not None
        place.misjudged = self._chance.random() < self._rules.overlooked
        done = await place.work(seconds, self.clock.now)
        place.misjudged = self._chance.random() < self._rules.mistaken
        return done

    async def stop(self, key: SessionKey) -> None:
        await self.hub.stop(key)

    def places(self) -> Iterable[Place]:
        return self.agent.places.values()

    def held(self) -> int:
        """Sessions whose state is kept without a GPU."""
        return self.controller.metrics_snapshot().phases.get(Phase.SUSPENDED, 0)

    def _place(self, key: SessionKey) -> Place | None:
        return self.agent.places.get(self.hub.current.get(key, ""))

    def _view(self, key: SessionKey) -> SessionView | None:
        try:
            return self.controller.users.session(key)
        except NotFound:
            return None

    def _runs(self, key: SessionKey, view: SessionView | None) -> bool:
        if view is None or self.hub.states.get(key) is not HubState.RUNNING:
            return False
        place = self._place(key)
        return (
            view.phase in USABLE
            and place is not None
            and place.state is TreeState.RUNNING
            and place.running is None
        )


def wrong(meetings: Iterable[Meeting]) -> int:
    """How many came back so soon that they had better not been suspended."""
    saved = (meeting for meeting in meetings if meeting.found == "suspended")
    return sum(meeting.after < SOON for meeting in saved)
