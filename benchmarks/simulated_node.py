"""A cluster with GPUs, its agent and its Hub, in memory and in simulated time.

``SimulatedAgent`` and ``SimulatedHub`` fulfil ``controlplane.model.interfaces`` without
a wire; what they answer depends on what has happened, never on what a test wants to
hear. The agent says what every session did since its start, as a node's measurements
would.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.memory_agent import MemoryAgent
from benchmarks.simulated_gpus import Gpus, Place
from benchmarks.simulated_memory import (
    POD,
    HostMemory,
    seconds_back,
    seconds_out,
    seconds_to_return,
    seconds_to_save,
)
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    Failure,
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
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.node.operations.card_room import CardRoom, Waker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller

#: Seconds between two looks of a wake whether there is room, and looks between two
#: words of it. An agent looks four times as often, and tells each time; nobody who
#: waits for minutes would notice, and it costs much here.
LOOK, TELL = 2.0, 5
#: Bytes that a wake leaves free in its first minute, as agents do by default.
RESERVE = 1 << 29


class SimulatedAgent(MemoryAgent[Place]):
    """All nodes' agents as one.

    Args:
        clock: of the simulation.
        gpus: of all nodes.
        host: bytes of host memory that naps and saves may have.
    """

    def __init__(self, clock: Clock, gpus: Gpus, host: float = math.inf) -> None:
        super().__init__()
        self.clock = clock
        self.gpus = gpus
        self._host = HostMemory(host)
        self._room = CardRoom(RESERVE)
        self._of: dict[SessionKey, list[Place]] = {}
        self._saved_of: dict[SessionKey, dict[str, CheckpointInfo]] = {}
        self.cut_off = 0  #: sessions that were saved in the middle of work

    def put(self, place: Place) -> None:
        self.places[place.incarnation] = place
        self._of.setdefault(place.key, []).append(place)

    def end(self, incarnation: str) -> None:
        place = self.places.get(incarnation)
        if place is not None:
            super().end(incarnation)
            self._of[place.key].remove(place)
            self._room.leave(incarnation)
            self._host.release(incarnation)
            place.card.release(incarnation)
            self.gpus.give(place.card)

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

    def ending(self, incarnation: str) -> Failure | None:
        del incarnation
        return None

    def waiting(self) -> list[Waiting]:
        return [Waiting(key=key, since=since) for key, since, _ in self.gpus.queue]

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        del key
        now = self.clock.now()
        runs = {TreeState.RUNNING, TreeState.NAPPING}
        return [p.sample(now) for p in self.places.values() if p.state in runs]

    # --- doing
    def follow(self, incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        events: AsyncIterator[Event] = self.given(incarnation, order)
        return events

    async def order(self, subject: str, order: AgentOrder) -> Any:
        return await self.given(subject, order)

    async def capture(
        self,
        incarnation: str,
        checkpoint: str,
        generation: int,
        *,
        seen: float | None = None,
    ) -> AsyncIterator[Event]:
        del seen  # no order of a benchmark is late
        async for event in self.begin_capture(incarnation, checkpoint, generation):
            yield event

    async def save(
        self, incarnation: str, checkpoint: str, generation: int, *, name: str = ""
    ) -> AsyncIterator[Event]:
        async for event in self.begin_save(incarnation, checkpoint, generation, name):
            yield event

    async def restore(
        self, incarnation: str, checkpoint: str, *, put_files_back: bool = False
    ) -> AsyncIterator[Event]:
        del put_files_back
        async for event in self.begin_restore(incarnation, checkpoint):
            yield event

    async def nap(
        self,
        incarnation: str,
        *,
        seen: float | None = None,
    ) -> AsyncIterator[Event]:
        del seen
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

    def use(self, session: Place) -> None:
        """Somebody sends something to a session; its wake takes its time."""
        if session.state is TreeState.NAPPING and session.running is None:
            self.begin_wake(session.incarnation)

    async def capturing(self, place: Place) -> AsyncIterator[Event]:
        seconds = seconds_to_save(place.vram)
        if not self._host.take(place.incarnation, place.gpu_memory):
            yield self._no_host_memory(place)
            return
        yield Event(step=Step(step="dump", title="Saving the memory"))
        self.cut_off += place.busy_since is not None
        await self.clock.sleep(seconds)
        if place.nap is None:
            self._host.release(place.incarnation)
        done = Step(step="dump", title="", state="done", seconds=seconds)
        yield Event(step=done)

    async def restoring(self, place: Place) -> AsyncIterator[Event]:
        before = self.saved[place.checkpoint][1]
        card, needed = place.card, before.gpu_memory
        if not card.hold(place.incarnation, needed):
            free = size(card.free)
            why = Refused(
                Reason.GPU_MEMORY, card=card.uuid, needed=size(needed), free=free
            )
            yield Event(failure=codec.failure_of(why))
            return
        yield Event(step=Step(step="memory", title="Bringing the memory back"))
        await self.clock.sleep(seconds_to_return(before.vram))

    async def napping(self, place: Place) -> AsyncIterator[Event]:
        if not self._host.take(place.incarnation, place.gpu_memory):
            yield self._no_host_memory(place)
            return
        yield Event(step=Step(step="gpu", title="Moving the memory of its GPU out"))
        await self.clock.sleep(seconds_out(place.gpu_memory))
        place.card.release(place.incarnation)

    async def waking(self, place: Place) -> AsyncIterator[Event]:
        """By the agent's own rules of turns; whoever waits tries for ever."""
        card, needed = place.card, place.gpu_memory
        waker = Waker(place.incarnation, place.key)
        for count in itertools.count():
            if place.incarnation not in self.places:
                return
            now = self.clock.monotonic()
            place.shortage = self._room.promise(
                place, {card.uuid: needed}, [card.use()], now, waker
            )
            if place.shortage is None:
                break
            if count % TELL == 0:
                yield Event(step=Step(step="room", title="Waiting for a GPU"))
            await self.clock.sleep(LOOK)
        self._room.release(place)
        there = card.hold(place.incarnation, needed)
        assert there, "promised, and not there"
        seconds = seconds_back(needed)
        yield Event(step=Step(step="gpu", title="Bringing it back"))
        await self.clock.sleep(seconds)
        if place.incarnation in self.places:
            self._host.release(place.incarnation)
        yield Event(step=Step(step="gpu", title="", state="done", seconds=seconds))

    def _no_host_memory(self, place: Place) -> Event:
        needed, free = place.gpu_memory, self._host.free
        why = Refused(
            Reason.NOT_ENOUGH_MEMORY,
            where="on the machine",
            needed=size(needed),
            free=size(free),
            missing=size(needed - free),
        )
        return Event(failure=codec.failure_of(why))

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
        place.gpu_memory = image.gpu_memory
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
            card = await self.agent.gpus.take(key, self.agent.clock.now())
            now = self.agent.clock.now()
            hold = TreeState.HOLDING
            place = Place(
                key, name, hold, self.vram[key], now, active=now, card=card, pod=name
            )
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
