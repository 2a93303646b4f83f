"""Selects sessions to preempt, on every tick.

Recomputed from the GPU queue and the GPUs that are already being released. A selected
session is ``wanted``; it is then judged, warned and confirmed like any other. The count
of GPUs freed for a session is only in memory: after a restart of the service it begins
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import snapshot_of
from jupyterhub_gpu_reclaim.controlplane.session import LIVE
from jupyterhub_gpu_reclaim.policy.pressure import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey, Waiting
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

    #: Selects the sessions that go, and for whom, in the order of the wants; pure.
    Choose = Callable[
        [Iterable[SessionSnapshot], list[Want], float], Mapping[SessionKey, SessionKey]
    ]

#: Seconds for a freed GPU to reach a waiting session. If a session still waits although
#: enough was freed for it, nothing more is freed for that long, doubled each time: it
#: lacks something else, or others are quicker.
SETTLE = 60.0
_GOING = {Phase.SUSPENDING, Phase.RELEASING}


@dataclass(eq=False)
class Preemption:
    sessions: Sessions
    choose: Choose
    together: Together

    def select(self, waiting: list[Waiting]) -> None:
        sessions, now = self.sessions, self.sessions.clock.now()
        self._count(now, {each.key for each in waiting})
        wants = self._wants(waiting, now)
        rows = [row for row in sessions.journal.sessions() if row.phase in LIVE]
        snapshots = (
            snapshot_of(sessions, row)
            for row in rows
            if self.together.against(row, now, len(waiting)) is None
        )
        chosen = self.choose(snapshots, wants, now) if wants else {}
        for key, runtime in sessions.runtimes.items():
            runtime.wanted = len(waiting) if key in chosen else 0
            if key in chosen:
                runtime.goes_for = chosen[key]
            elif runtime.goes_for and sessions.row(key).phase not in _GOING:
                runtime.goes_for = None

    def _count(self, now: float, waiting: set[SessionKey | None]) -> None:
        sessions = self.sessions
        for key, runtime in list(sessions.runtimes.items()):
            whom, row = runtime.goes_for, self.sessions.row(key)
            if whom is not None and row.phase is Phase.SUSPENDED:
                waiter = self.sessions.runtime(whom)
                waiter.freed = waiter.freed[0] + len(sessions.gpus_of(row)), now
                runtime.goes_for = None
        for key, runtime in self.sessions.runtimes.items():
            if key not in waiting:
                runtime.freed = (0, 0.0)

    def _wants(self, waiting: list[Waiting], now: float) -> list[Want]:
        """Return what is still lacking when everything under way has come free."""
        rows = self.sessions.journal.sessions()
        going = (row for row in rows if self._comes_free(row, now))
        coming = sum(len(self.sessions.gpus_of(row)) for row in going)
        coming += sum(self._idle_anyway(row) for row in rows)
        wants: list[Want] = []
        in_place = False
        for each in waiting:
            if each.key is None:
                continue
            row = self.sessions.row(each.key)
            if row.phase in LIVE:
                continue  # it wakes: others nap for it
            # Of those who share a machine's GPUs the first alone may try, and how much
            # it finds is seen when it does: one session goes at a time.
            shares = row.waiting_since is not None
            if shares and in_place:
                continue
            in_place = in_place or shares
            needed = 1 if shares else each.gpus
            lacking = needed - min(coming, needed)
            coming -= needed - lacking
            if lacking and not self._awaits_effect(each.key, needed, now):
                held = self.sessions.gpus_of(row)
                name = held[0].name if held else ""
                wants.append(Want(key=each.key, gpus=lacking, gpu=name))
        return wants

    def _awaits_effect(self, key: SessionKey, needed: int, now: float) -> bool:
        freed, at = self.sessions.runtime(key).freed
        rounds = min(freed // needed, 16)
        return rounds > 0 and now - at < SETTLE * 2.0 ** (rounds - 1)

    @staticmethod
    def _comes_free(row: SessionRow, now: float) -> bool:
        just_now = row.phase is Phase.SUSPENDED and now - row.since < SETTLE
        return row.phase in _GOING or just_now

    def _idle_anyway(self, row: SessionRow) -> int:
        runtime = self.sessions.runtime(row.key)
        if runtime.phase(row) is not Phase.WARNED or runtime.wanted:
            return 0
        return len(runtime.cards(row.incarnation))
