"""A cluster with GPUs, its agent and its Hub, in memory and in simulated time.

``SimulatedAgent`` and ``SimulatedHub`` fulfil ``controlplane.model.interfaces`` without
a wire; what they answer depends on what has happened, never on what a test wants to
hear. The agent says what every session did since its start, as a node's measurements
would.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from benchmarks.simulated_gpus import GB, Gpus, Place
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    HubState,
    Placement,
    Sample,
    SessionKey,
    Step,
    Tree,
    TreeState,
    Waiting,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.testing.memory_agent import MemoryAgent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller

#: Seconds to make a pod, to begin a save and a return, and bytes per second of each.
#: Rates: FACTS of this project, an H200's 16 GB measured; GPU and memory together.
POD, SAVE, RETURN = 5.0, 4.0, 3.0
SAVE_RATE, RETURN_RATE = 2.5 * GB, 5.0 * GB


class SimulatedAgent(MemoryAgent[Place]):
    """All nodes' agents as one."""

    def __init__(self, clock: Clock, gpus: Gpus) -> None:
        super().__init__()
        self.clock = clock
        self.gpus = gpus
        self._of: dict[SessionKey, list[Place]] = {}
        self._saved_of: dict[SessionKey, dict[str, CheckpointInfo]] = {}

    def put(self, place: Place) -> None:
        self.places[place.incarnation] = place
        self._of.setdefault(place.key, []).append(place)

    def end(self, incarnation: str) -> None:
        place = self.places.get(incarnation)
        if place is not None:
            super().end(incarnation)
            self._of[place.key].remove(place)
            self.gpus.give()

    def keep(self, info: CheckpointInfo, image: Place) -> None:
        super().keep(info, image)
        self._saved_of.setdefault(info.key, {})[info.id] = info

    def drop(self, checkpoint: str) -> None:
        if checkpoint in self.saved:
            del self._saved_of[self.saved[checkpoint][0].key][checkpoint]
        super().drop(checkpoint)

    # --- looking
    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        mine = self.places.values() if key is None else self._of.get(key, ())
        return [place.tree() for place in mine]

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        if key is None:
            return await super().checkpoints()
        return list(self._saved_of.get(key, {}).values())

    def labels(self, key: SessionKey) -> dict[str, str]:
        del key
        return {}

    def waiting(self) -> list[Waiting]:
        return [Waiting(key=key, since=since) for key, since, _ in self.gpus.queue]

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        del key
        now = self.clock.now()
        runs = {TreeState.RUNNING, TreeState.NAPPING}
        return [p.sample(now) for p in self.places.values() if p.state in runs]

    # --- doing
    async def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        async for event in self.begin_capture(incarnation, checkpoint, generation):
            yield event

    async def restore(
        self, incarnation: str, checkpoint: str, *, lazy: bool = False
    ) -> AsyncIterator[Event]:
        async for event in self.begin_restore(incarnation, checkpoint, lazy=lazy):
            yield event

    async def nap(self, incarnation: str) -> AsyncIterator[Event]:
        async for event in self.begin_nap(incarnation):
            yield event

    async def wake(self, incarnation: str) -> AsyncIterator[Event]:
        async for event in self.begin_wake(incarnation):
            yield event

    async def next_wake(self, incarnation: str) -> AsyncIterator[Event]:
        async for event in await self.follow_wake(incarnation):
            yield event

    def now(self) -> float:
        return self.clock.now()

    async def capturing(self, place: Place) -> AsyncIterator[Event]:
        seconds = SAVE + place.vram / SAVE_RATE
        yield Event(step=Step(step="dump", title="Saving the memory"))
        await self.clock.sleep(seconds)
        done = Step(step="dump", title="", state="done", seconds=seconds)
        yield Event(step=done)

    async def restoring(self, place: Place) -> AsyncIterator[Event]:
        before = self.saved[place.checkpoint][1]
        yield Event(step=Step(step="memory", title="Bringing the memory back"))
        await self.clock.sleep(RETURN + before.vram / RETURN_RATE)

    def info(self, place: Place) -> CheckpointInfo:
        return msgspec.structs.replace(
            super().info(place),
            created=self.clock.now(),
            logical_bytes=place.vram,
            stored_bytes=place.vram // 2,
        )

    def image(self, place: Place) -> Place:
        return place

    def fill(self, place: Place, image: Place) -> None:
        place.vram, place.worked = image.vram, image.worked
        place.started = place.active = self.clock.now()


class SimulatedHub:
    """The Hub and its spawner, which asks the controller as the real one does."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self.agent = agent
        self.controller: Controller | None = None
        self.states: dict[SessionKey, HubState] = {}
        self.current: dict[SessionKey, str] = {}
        self.vram: dict[SessionKey, int] = {}
        self._starting: dict[SessionKey, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._names = itertools.count()

    async def servers(self) -> dict[SessionKey, HubState]:
        return dict(self.states)

    async def server(self, key: SessionKey) -> HubState:
        return self.states.get(key, HubState.STOPPED)

    async def start(self, key: SessionKey) -> None:
        if self.states.get(key) is HubState.STOPPING:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="stop")
        if key not in self.states:
            self.states[key] = HubState.SPAWNING
            self._starting[key] = asyncio.create_task(self._start(key))

    def starting(self, key: SessionKey) -> asyncio.Task[None] | None:
        """The start in hand, if there is one."""
        return self._starting.get(key)

    def call_off(self, key: SessionKey) -> None:
        """Its user has lost patience, or the start took too long."""
        task = self._starting.get(key)
        if task is not None:
            task.cancel()

    async def stop(self, key: SessionKey) -> None:
        if self.states.get(key) is HubState.SPAWNING:
            self.call_off(key)
        if self.states.get(key) is HubState.RUNNING:
            self.states[key] = HubState.STOPPING
            task = asyncio.create_task(self._stop(key))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _start(self, key: SessionKey) -> None:
        assert self.controller is not None
        name = f"i{next(self._names)}"
        placement = Placement(key=key, incarnation=name)
        try:
            plan = await self.controller.plan_start(placement)
            if plan.action not in {"cold", "restore"}:
                raise Refused(Reason.INTERNAL, detail=plan.action)
            held = plan.action == "restore"
            await self.agent.gpus.take(key, self.agent.clock.now())
            now = self.agent.clock.now()
            hold = TreeState.HOLDING
            place = Place(key, name, hold, self.vram[key], now, active=now)
            self.agent.put(place)
            await self.agent.clock.sleep(POD)
            if not held:
                place.state = TreeState.RUNNING
            placement = Placement(key=key, incarnation=name, checkpoint=plan.checkpoint)
            await self.controller.placed(placement)
            if held:
                await self._follow(key)
            self.current[key], self.states[key] = name, HubState.RUNNING
        except (ReclaimError, asyncio.CancelledError):
            await self.controller.cancelled(placement)
            del self.states[key]
        finally:
            self._starting.pop(key, None)

    async def _follow(self, key: SessionKey) -> None:
        assert self.controller is not None
        async for event in self.controller.progress(key, 0):
            if event.failure is not None:
                raise Refused(Reason.of(event.failure.code))

    async def _stop(self, key: SessionKey) -> None:
        assert self.controller is not None
        name = self.current[key]
        placement = Placement(key=key, incarnation=name)
        with suppress(ReclaimError):
            plan = await self.controller.plan_stop(placement)
            if plan.action == "release":
                await self.controller.release(placement)
            else:
                self.agent.end(name)
                await self.controller.stopped(placement)
        self.states.pop(key, None)
