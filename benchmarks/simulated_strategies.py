"""What is done with idle sessions: nothing, killing them, or saving them.

Used by ``simulation.py``. ``Ours`` is the real controller with its journal, work queue
and policy, on a simulated node and Hub; ``Plain`` are the rules of others: nothing at
all, or that of jupyterhub-idle-culler, which ends what was idle for a while, and with
it what it held.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmarks.simulated_gpus import Gpus, Place
from benchmarks.simulated_node import POD, SimulatedAgent, SimulatedHub
from benchmarks.simulated_people import SOON, Meeting
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, SessionKey, TreeState
from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.pressure import PreemptionPolicy, PressurePolicy
from jupyterhub_gpu_reclaim.sampling.window import Window
from simulation.loop import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import SessionView

#: Seconds between two samples and two ticks: thirty times the defaults, so that a week
#: can be simulated at all. The service notices everything up to that much later.
BEAT = 300.0


class Plain:
    """A Hub without us.

    Args:
        gpus: how many there are.
        kill_after: seconds of idleness after which a session is killed; inf: never.
    """

    def __init__(self, gpus: int, kill_after: float = math.inf) -> None:
        self.clock = LoopClock()
        self.gpus = Gpus(gpus)
        self.lost = 0
        self.suspends = 0
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
        if place is not None:
            place.active = self.clock.now()
            return Meeting(came=True, waited=0.0, found="running")
        found = "lost" if key in self._killed else "new"
        asked = self.clock.now()
        try:
            async with asyncio.timeout(patience):
                await self.gpus.take(key, asked)
        except TimeoutError:
            return Meeting(came=False, waited=patience, found=found)
        await asyncio.sleep(POD)
        now = self.clock.now()
        self._killed.discard(key)
        self._places[key] = Place(key, "", TreeState.RUNNING, vram, now, active=now)
        return Meeting(came=True, waited=now - asked, found=found)

    def work(self, key: SessionKey, *, busy: bool) -> None:
        place = self._places.get(key)
        if place is not None:
            place.work(busy, self.clock.now())

    async def stop(self, key: SessionKey) -> None:
        if self._places.pop(key, None) is not None:
            self.gpus.give()

    def places(self) -> Iterable[Place]:
        return self._places.values()

    def held(self) -> int:
        """Sessions whose state is kept without a GPU."""
        return 0


class Ours:
    """The real service.

    Args:
        gpus: how many there are.
        journal: SQLAlchemy URL of its journal.
        under_pressure: ``pressure_idle_after`` in seconds; 0: off.
    """

    def __init__(self, gpus: int, journal: str, under_pressure: float = 0.0) -> None:
        self.clock = LoopClock()
        self.gpus = Gpus(gpus)
        self.agent = SimulatedAgent(self.clock, self.gpus)
        self.hub = SimulatedHub(self.agent)
        idle = IdlePolicy(idle_after=900.0, max_sample_age=2 * BEAT)
        pressure = PressurePolicy(idle, pressure_idle_after=under_pressure)
        decide = Decider(Guards(), [idle, pressure])
        self._journal = Journal(journal)
        self.controller = self.hub.controller = Controller(
            journal=self._journal,
            agent=self.agent,
            hub=self.hub,
            decide=decide,
            choose=PreemptionPolicy(decide) if under_pressure else None,
            window=lambda: Window(span=idle.idle_after, interval=BEAT),
            clock=self.clock,
            settings=Settings(
                sample_interval=BEAT,
                tick_interval=BEAT,
                captures=16,
                pace=5.0,
                audit=30 * 86400.0,
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
        return self.controller.metrics_snapshot().counters.operations["suspend", "ok"]

    async def beat(self) -> None:
        """It has beats of its own."""

    async def come(self, key: SessionKey, vram: int, patience: float) -> Meeting:
        self.hub.vram[key] = vram
        asked = self.clock.now()
        view = self._view(key)
        if self._runs(key, view):
            self.work(key, busy=True)
            return Meeting(came=True, waited=0.0, found="running")
        saved = view is not None and view.phase is not Phase.STOPPED
        found = "suspended" if saved else "new"
        after = math.inf
        if view is not None and view.phase is Phase.SUSPENDED:
            after = asked - view.since
        elif saved:
            after = 0.0
        while not self._runs(key, view):
            left = patience - (self.clock.now() - asked)
            if left <= 0:
                self.hub.call_off(key)
                return Meeting(came=False, waited=patience, found=found, after=after)
            await self._ask(key, view, left)
            view = self._view(key)
        waited = self.clock.now() - asked
        return Meeting(came=True, waited=waited, found=found, after=after)

    async def _ask(
        self, key: SessionKey, view: SessionView | None, left: float
    ) -> None:
        """Do what brings it on, and wait for a while or its end."""
        start = self.hub.starting(key)
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

    def work(self, key: SessionKey, *, busy: bool) -> None:
        place = self.agent.places.get(self.hub.current.get(key, ""))
        if place is not None:
            place.work(busy, self.clock.now())

    async def stop(self, key: SessionKey) -> None:
        await self.hub.stop(key)

    def places(self) -> Iterable[Place]:
        return self.agent.places.values()

    def held(self) -> int:
        """Sessions whose state is kept without a GPU."""
        return self.controller.metrics_snapshot().phases.get(Phase.SUSPENDED, 0)

    def _view(self, key: SessionKey) -> SessionView | None:
        try:
            return self.controller.users.session(key)
        except NotFound:
            return None

    def _runs(self, key: SessionKey, view: SessionView | None) -> bool:
        if view is None or self.hub.states.get(key) is not HubState.RUNNING:
            return False
        place = self.agent.places.get(self.hub.current[key])
        return (
            view.phase in {Phase.RUNNING, Phase.WARNED}
            and place is not None
            and place.state is TreeState.RUNNING
        )


def wrong(meetings: Iterable[Meeting]) -> int:
    """How many came back so soon that they had better not been suspended."""
    return sum(meeting.after < SOON for meeting in meetings)
