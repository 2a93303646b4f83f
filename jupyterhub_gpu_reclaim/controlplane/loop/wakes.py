"""Follows the wakes of all sessions that nap, as they happen.

An agent wakes a session by itself, and a person waits meanwhile: too long for the next
tick. So each session that naps has one open question to its agent, which is answered at
once. Where the answer is lost, or the agent is older, the ticks find out all the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Event, SessionKey, Step, Tree
    from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)

#: Steps of a wake: waiting for memory, and moving it back.
ROOM, MOVE = "room", "gpu"
#: Bytes per second at which memory is moved back, until one has been seen (an H200).
_USUAL_SPEED = 5.0 * 2**30


class WakeFollower:
    def __init__(
        self,
        sessions: Sessions,
        agent: Agent,
        room: RoomMaker,
    ) -> None:
        self._sessions = sessions
        self._settings = sessions.settings
        self._agent = agent
        self._room = room
        self._tasks: dict[SessionKey, tuple[str, asyncio.Task[None]]] = {}
        self._speed = _USUAL_SPEED

    def refresh(self) -> None:
        napping = {
            key: runtime.napping.incarnation
            for key, runtime in self._sessions.runtimes.items()
            if runtime.napping is not None and self._sessions.row(key).phase in LIVE
        }
        for key, (incarnation, task) in list(self._tasks.items()):
            if napping.get(key) != incarnation or task.done():
                task.cancel()
                del self._tasks[key]
        for key in napping.keys() - self._tasks.keys():
            task = asyncio.create_task(self._follow(key, napping[key]))
            self._tasks[key] = napping[key], task

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: SessionKey, incarnation: str) -> None:
        """Follow a session until it naps no more; if this fails, the ticks go on."""
        while True:
            wait = self._settings.pace
            try:
                async for event in self._agent.follow(incarnation, orders.NextWake()):
                    await self._take_event(key, incarnation, event)
            except NotFound:
                return
            except ReclaimError as error:
                _log.debug("%s: its wake is not followed: %s", key, error)
                wait = self._settings.tick_interval
            except Exception:  # noqa: BLE001 the last line of defence: the ticks go on
                _log.exception("%s: its wake cannot be followed", key)
                return
            finally:
                self._sessions.expect_awake(key, None)
            await self._sessions.clock.sleep(wait)

    async def _take_event(
        self, key: SessionKey, incarnation: str, event: Event
    ) -> None:
        if self._sessions.row(key).incarnation != incarnation:
            return
        if event.step is not None and event.step.step == MOVE:
            self._note_moving(key, incarnation, event.step)
        elif event.step is not None and event.step.step == ROOM:
            runtime, now = self._sessions.runtime(key), self._sessions.clock.monotonic()
            known = runtime.shortage_of(incarnation) is not None
            if not known or now - runtime.napping_seen >= self._settings.pace:
                self._note_waiting(
                    key, incarnation, await self._agent.tree(incarnation), now
                )
        elif event.tree is not None:
            self._note_waiting(key, incarnation, event.tree)
            self._sessions.look(key)

    def _note_moving(self, key: SessionKey, incarnation: str, step: Step) -> None:
        nap = self._sessions.runtime(key).nap_of(incarnation)
        total = step.total_bytes or (nap.bytes if nap is not None else 0)
        if step.state == "done" and step.seconds > 0 and total:
            self._speed = total / step.seconds
        if step.state == "begun":
            seconds = total / self._speed
            self._sessions.expect_awake(key, self._sessions.clock.now() + seconds)

    def _note_waiting(
        self,
        key: SessionKey,
        incarnation: str,
        tree: Tree,
        asked: float | None = None,
    ) -> None:
        if self._sessions.row(key).incarnation != incarnation:
            return
        before = self._sessions.runtime(key).shortage_of(incarnation)
        self._sessions.note_nap(key, tree, asked)
        if (before is None) != (tree.shortage is None) or tree.shortage is not None:
            self._room.refresh()
