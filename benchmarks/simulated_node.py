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

from benchmarks.simulated_gpus import GB, Gpus, Place
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    HubState,
    Identity,
    Placement,
    Sample,
    SessionKey,
    Step,
    Tree,
    TreeState,
    Waiting,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.simulated_time import LoopClock
    from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller

#: Seconds to make a pod, to begin a save and a return, and bytes per second of each.
#: Rates: FACTS of this project, an H200's 16 GB measured; GPU and memory together.
POD, SAVE, RETURN = 5.0, 4.0, 3.0
SAVE_RATE, RETURN_RATE = 2.5 * GB, 5.0 * GB


class SimulatedAgent:
    """All nodes' agents as one."""

    def __init__(self, clock: LoopClock, gpus: Gpus) -> None:
        self.clock = clock
        self.gpus = gpus
        self.places: dict[str, Place] = {}
        self.of: dict[SessionKey, list[Place]] = {}
        self.saved: dict[str, tuple[CheckpointInfo, Place]] = {}
        self.saved_of: dict[SessionKey, dict[str, CheckpointInfo]] = {}
        self.lost = 0  # trees that were ended with nothing saved of them

    def put(self, place: Place) -> None:
        self.places[place.incarnation] = place
        self.of.setdefault(place.key, []).append(place)

    def end(self, place: Place, *, gives: bool = True) -> None:
        self.places.pop(place.incarnation, None)
        self.of[place.key].remove(place)
        if gives:
            self.gpus.give()

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        mine = self.places.values() if key is None else self.of.get(key, ())
        return [place.tree() for place in mine]

    async def tree(self, incarnation: str) -> Tree:
        return self._place(incarnation).tree()

    def waiting(self) -> list[Waiting]:
        return [Waiting(key=key, since=since) for key, since, _ in self.gpus.queue]

    async def samples(self) -> list[Sample]:
        now = self.clock.now()
        runs = TreeState.RUNNING
        return [p.sample(now) for p in self.places.values() if p.state is runs]

    async def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        place = self._place(incarnation)
        place.state, place.checkpoint = TreeState.CAPTURING, checkpoint
        place.cancelled = False
        seconds = SAVE + place.vram / SAVE_RATE
        yield Event(step=Step(step="dump", title="Saving the memory"))
        await asyncio.sleep(seconds)
        if place.cancelled:
            place.state, place.checkpoint = TreeState.RUNNING, ""
            yield _failed(Reason.CANCELLED)
            return
        info = CheckpointInfo(
            id=checkpoint,
            key=place.key,
            incarnation=incarnation,
            generation=generation,
            created=self.clock.now(),
            logical_bytes=place.vram,
            stored_bytes=place.vram // 2,
        )
        self.saved[checkpoint] = info, place
        self.saved_of.setdefault(place.key, {})[checkpoint] = info
        place.state = TreeState.CAPTURED
        done = Step(step="dump", title="", state="done", seconds=seconds)
        yield Event(step=done)
        yield Event(checkpoint=info)

    async def restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        place, before = self._place(incarnation), self.saved[checkpoint][1]
        place.state, place.checkpoint = TreeState.RESTORING, checkpoint
        yield Event(step=Step(step="memory", title="Bringing the memory back"))
        await asyncio.sleep(RETURN + before.vram / RETURN_RATE)
        place.state, place.vram, place.worked = (
            TreeState.RUNNING,
            before.vram,
            before.worked,
        )
        place.started = place.active = self.clock.now()
        yield Event(tree=place.tree())

    async def thaw(self, incarnation: str) -> Tree:
        place = self._place(incarnation)
        await self.discard(place.checkpoint)
        place.state, place.checkpoint = TreeState.RUNNING, ""
        return place.tree()

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        place = self._place(incarnation)
        if checkpoint not in self.saved:
            raise Refused(Reason.NOT_CAPTURED)
        self.end(place)
        place.state = TreeState.GONE
        return place.tree()

    async def kill(self, incarnation: str) -> Tree:
        place = self._place(incarnation)
        worked = place.state is not TreeState.HOLDING
        self.lost += worked and place.checkpoint not in self.saved
        self.end(place)
        place.state = TreeState.GONE
        return place.tree()

    async def cancel(self, incarnation: str) -> None:
        self._place(incarnation).cancelled = True

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        if key is None:
            return [info for info, _ in self.saved.values()]
        return list(self.saved_of.get(key, {}).values())

    async def identity(self, checkpoint: str) -> Identity:
        if checkpoint not in self.saved:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return Identity(api_token="secret", port=8888)

    async def discard(self, checkpoint: str) -> None:
        held = self.saved.pop(checkpoint, None)
        if held is not None:
            del self.saved_of[held[0].key][checkpoint]

    def _place(self, incarnation: str) -> Place:
        if incarnation not in self.places:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return self.places[incarnation]


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
            await asyncio.sleep(POD)
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
                place = self.agent.places.get(name)
                if place is not None:
                    self.agent.end(place)
                await self.controller.stopped(placement)
        self.states.pop(key, None)


def _failed(reason: Reason) -> Event:
    return Event(failure=codec.failure_of(Refused(reason)))
