"""Makes room for sessions that wake and find their card full: others are put to nap.

Recomputed from what the agents say whenever one of them says something new, and on
every tick. A selected session is judged once more, with a fresh sample, before its nap
is ordered; who is selected is in memory only, so a lost order, a restart or a failed
nap ends in the next selection. An agent needs none of this to wake a session for which
there is room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.session import Intent
from jupyterhub_gpu_reclaim.policy.room import RoomWant, choose_for_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import SessionKey, Shortage
    from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import GpuQueue
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

#: Seconds after a nap in which its memory may not be reported as free yet.
SETTLE = 2.0
#: Seconds for which a selected session is left out, if it could not be looked at.
PASSED_OVER = 10.0


@dataclass(eq=False)
class RoomMaker:
    sessions: Sessions
    line: GpuQueue
    judge: Judge

    def refresh(self) -> None:
        self.line.refresh()
        waiting = self.line.wakes()
        wants = self._wants(waiting)
        now, sessions = self.sessions.clock.now(), self.sessions
        snapshots = self._snapshots({card for want in wants for card in want.lacking})
        chosen = choose_for_room(snapshots, wants, now, self.judge.for_room)
        for key, runtime in sessions.runtimes.items():
            if runtime.moving_out is None:
                runtime.makes_room_for = chosen.get(key)
        for key in chosen:
            self.sessions.look(key)

    def pass_over(self, key: SessionKey) -> None:
        """Select another one for a while, if that one is selected and stays awake."""
        runtime = self.sessions.runtimes.get(key)
        if runtime is not None and runtime.makes_room_for is not None:
            runtime.passed_over = self.sessions.clock.monotonic() + PASSED_OVER
            self.refresh()

    def _snapshots(self, cards: set[str]) -> Iterator[SessionSnapshot]:
        now = self.sessions.clock.monotonic()
        for row in self.sessions.journal.sessions() if cards else ():
            runtime = self.sessions.runtime(row.key)
            held = runtime.cards
            free = runtime.phase(row) is Phase.RUNNING and row.intent is Intent.NONE
            free &= runtime.passed_over is None or runtime.passed_over <= now
            if free and any(gpu.uuid in cards for gpu in held):
                yield self.judge.room_snapshot(row)

    def _wants(self, waiting: list[tuple[SessionRow, Shortage]]) -> list[RoomWant]:
        """Return what is lacking, given what is free and what is coming free."""
        left: Counter[str] = Counter()
        for _, shortage in waiting:
            for card in shortage.cards:
                left[card.uuid] = card.free
        left.update(
            self._bytes_coming_free({row.key for row, _ in waiting}) if waiting else {}
        )
        wants = []
        for row, shortage in waiting:
            lacking = {
                card.uuid: card.needed - left[card.uuid]
                for card in shortage.cards
                if card.needed > left[card.uuid]
            }
            for card in shortage.cards:
                left[card.uuid] = max(0, left[card.uuid] - card.needed)
            if lacking:
                wants.append(RoomWant(key=row.key, lacking=lacking))
        return wants

    def _bytes_coming_free(self, waiting: set[SessionKey]) -> Counter[str]:
        """Bytes by card that naps are freeing, or have freed a moment ago.

        What the waiting sessions' own naps freed was free before they began to wait.
        """
        sessions, now = self.sessions, self.sessions.clock.now()
        coming: Counter[str] = Counter()
        for key, runtime in sessions.runtimes.items():
            if key in waiting:
                continue
            row = sessions.row(key)
            nap = runtime.nap
            if runtime.moving_out is not None:
                gpus = runtime.moving_out
            elif nap is not None and 0 <= now - row.since < SETTLE:
                gpus = nap.gpus
            else:
                continue
            for gpu in gpus:
                coming[gpu.uuid] += gpu.memory or 0
        return coming
