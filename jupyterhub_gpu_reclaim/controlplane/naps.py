"""Naps: a session's GPU memory is moved out and back, while the session runs.

The agent wakes a session by itself as soon as somebody uses it, and asks nobody. So
what is journalled here is what the agent has done, and an order may always come too
late. A nap that fails leaves the session running; a wake that fails is ordered again. A
person waits for a wake: too long for the next tick. So each session that naps has one
open question to its agent; where its answer is lost, the ticks find out.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane import operations
from jupyterhub_gpu_reclaim.controlplane.runtime import NapTrouble
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    NO_ORDER,
    Intent,
    SessionEvent,
    SessionRow,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        Decision,
        Event,
        Failure,
        SessionKey,
        Step,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: Shortest useful nap in seconds; a shorter one that something ended was of no use.
SHORT_NAP = 60.0


@dataclass(eq=False)
class Napper:
    sessions: Sessions
    wakes: WakeFollower

    async def nap(self, row: SessionRow, by: str, why: Decision | None = None) -> None:
        """Move a session's GPU memory out; it then is NAPPING, or runs as before."""
        runtime = self.sessions.runtime(row.key)
        runtime.moving_out = runtime.cards
        sample = runtime.sample if why is not None else None
        seen = None if sample is None else sample.at
        try:
            end = await operations.end_of(
                self.sessions, row, orders.Nap(seen=seen), "nap"
            )
        finally:
            runtime.moving_out = None
            runtime.makes_room_for = None
        now = self.sessions.row(row.key)
        if not _still_runs(row, now):
            return
        if end.failure is not None and end.failure.code == Reason.ORDER_LATE.value:
            # It is judged anew.
            self.sessions.counters.ended("nap", "failed", end.failure.code)
        elif end.failure is not None:
            self._note_failure(now, by, end.failure)
        elif end.tree is not None:
            self.sessions.counters.ended("nap", "ok")
            trouble = runtime.nap_trouble
            # Whether this one lasts longer is seen at its end.
            runtime.nap_trouble = trouble if trouble and trouble.is_short else None
            self._journal_step(now, SessionEvent.NAPS, end.tree, by, why)

    async def make_room(self, row: SessionRow, why: Decision) -> None:
        """Nap for another session that wakes.

        The reason is written down first: it is not asked again within its
        ``cool_down``, not even after a crash.
        """
        told = why.message, why.code
        line = self.sessions.audit_line(row.key, SERVICE, "makes room", *told)
        self.sessions.update(row.key, line, made_room_at=line.at)
        await self.nap(row, SERVICE, why)

    async def wake(self, row: SessionRow, by: str) -> float:
        """Move a session's GPU memory back; return the seconds until the next try."""
        end = await operations.end_of(self.sessions, row, orders.Wake(), "wake")
        now = self.sessions.row(row.key)
        if not _still_runs(row, now):
            return 0.0
        if end.tree is not None:
            self._note_woken(now, end.tree, by)
            return 0.0
        if end.failure is not None:
            self.sessions.counters.ended("wake", "failed", end.failure.code)
            failure = self.sessions.timed(end.failure)
            trouble = NapTrouble(failure, 0, None)
            self.sessions.runtime(row.key).nap_trouble = trouble
            self.sessions.touch(row.key)
            _log.info("%s: not awake yet: %s", row.key, end.failure.message)
        return self.sessions.settings.tick_interval

    def found_napping(self, row: SessionRow, tree: Tree) -> None:
        self._journal_step(row, SessionEvent.NAPS, tree, SERVICE)

    def found_awake(self, row: SessionRow, tree: Tree) -> None:
        """Note that a tree runs that the journal has as napping: somebody used it."""
        if [step.step for step in tree.steps] in ([MOVE], [ROOM, MOVE]):
            for step in tree.steps:
                self.sessions.counters.step("wake", step)
        self._note_woken(row, tree, SERVICE)

    def _note_woken(self, row: SessionRow, tree: Tree, by: str) -> None:
        self.sessions.counters.ended("wake", "ok")
        lasted = self.sessions.clock.now() - row.since
        runtime = self.sessions.runtime(row.key)
        short = row.phase is Phase.NAPPING and lasted < SHORT_NAP
        if by == SERVICE and short:
            # What woke it, such as a page that asks, may do so again at once.
            why = failure_of(Reason.NAP_SHORT, lasted=duration(max(0.0, lasted)))
            runtime.nap_trouble = self._next_trouble(row, why)
        elif by != SERVICE or lasted >= SHORT_NAP:
            runtime.nap_trouble = None
        self._journal_step(row, SessionEvent.WAKES, tree, by)

    def _journal_step(
        self,
        row: SessionRow,
        event: SessionEvent,
        tree: Tree,
        by: str,
        why: Decision | None = None,
    ) -> None:
        self.sessions.note_nap(row.key, tree)
        obeyed = row.intent in {Intent.NAP, Intent.WAKE} and by != SERVICE
        order: dict[str, Any] = NO_ORDER if obeyed else {}
        moved = f"{size(tree.nap.bytes)} of GPU memory." if tree.nap else ""
        # A failure is that of a suspend, which is still due.
        self.sessions.apply(
            row.key, event, by=by, why=why, note=moved, failure=row.failure, **order
        )
        if event is SessionEvent.NAPS:
            self.wakes.refresh()

    def _note_failure(self, row: SessionRow, by: str, failure: Failure) -> None:
        self.sessions.runtime(row.key).nap_trouble = self._next_trouble(row, failure)
        self.sessions.counters.ended("nap", "failed", failure.code)
        line = self.sessions.audit_line(row.key, by, "nap failed", failure.message)
        order: dict[str, Any] = NO_ORDER if row.intent is Intent.NAP else {}
        self.sessions.update(row.key, line, **order)
        _log.info("%s: it runs on without a nap: %s", row.key, failure.message)

    def _next_trouble(self, row: SessionRow, failure: Failure) -> NapTrouble:
        former = self.sessions.runtime(row.key).nap_trouble
        failures = former.failures if former is not None else 0
        failures += failure.code not in CALLED_OFF
        pause = self.sessions.settings.pause_after(failures)
        if not failure.retryable:
            # It is not different in a minute.
            pause = self.sessions.settings.backoff_limit
        until = self.sessions.clock.now() + pause
        failure = self.sessions.timed(failure)
        return NapTrouble(failure, failures, until)


def _still_runs(before: SessionRow, now: SessionRow) -> bool:
    return now.incarnation == before.incarnation and now.phase in LIVE


#: Steps of a wake: waiting for memory, and moving it back.
ROOM, MOVE = "room", "gpu"
#: Bytes per second at which memory is moved back, until one has been seen (an H200).
_USUAL_SPEED = 5.0 * 2**30


@dataclass(eq=False)
class WakeFollower:
    sessions: Sessions
    room: RoomMaker
    _tasks: dict[SessionKey, tuple[str, asyncio.Task[None]]] = field(
        default_factory=dict, init=False
    )
    _speed: float = field(default=_USUAL_SPEED, init=False)

    def refresh(self) -> None:
        napping = {
            key: runtime.napping.incarnation
            for key, runtime in self.sessions.runtimes.items()
            if runtime.napping is not None and self.sessions.row(key).phase in LIVE
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
            wait = self.sessions.settings.pace
            try:
                async for event in self.sessions.agent.follow(
                    incarnation, orders.NextWake()
                ):
                    await self._take_event(key, incarnation, event)
            except NotFound:
                return
            except ReclaimError as error:
                _log.debug("%s: its wake is not followed: %s", key, error)
                wait = self.sessions.settings.tick_interval
            except Exception:  # noqa: BLE001 the last line of defence: the ticks go on
                _log.exception("%s: its wake cannot be followed", key)
                return
            finally:
                self.sessions.expect_awake(key, None)
            await self.sessions.clock.sleep(wait)

    async def _take_event(
        self, key: SessionKey, incarnation: str, event: Event
    ) -> None:
        if self.sessions.row(key).incarnation != incarnation:
            return
        if event.step is not None and event.step.step == MOVE:
            self._note_moving(key, event.step)
        elif event.step is not None and event.step.step == ROOM:
            runtime, now = self.sessions.runtime(key), self.sessions.clock.monotonic()
            known = runtime.shortage is not None
            if not known or now - runtime.napping_seen >= self.sessions.settings.pace:
                self._note_waiting(
                    key, incarnation, await self.sessions.agent.tree(incarnation), now
                )
        elif event.tree is not None:
            self._note_waiting(key, incarnation, event.tree)
            self.sessions.look(key)

    def _note_moving(self, key: SessionKey, step: Step) -> None:
        nap = self.sessions.runtime(key).nap
        total = step.total_bytes or (nap.bytes if nap is not None else 0)
        if step.state == "done" and step.seconds > 0 and total:
            self._speed = total / step.seconds
        if step.state == "begun":
            seconds = total / self._speed
            self.sessions.expect_awake(key, self.sessions.clock.now() + seconds)

    def _note_waiting(
        self,
        key: SessionKey,
        incarnation: str,
        tree: Tree,
        asked: float | None = None,
    ) -> None:
        if self.sessions.row(key).incarnation != incarnation:
            return
        before = self.sessions.runtime(key).shortage
        self.sessions.note_nap(key, tree, asked)
        if (before is None) != (tree.shortage is None) or tree.shortage is not None:
            self.room.refresh()
