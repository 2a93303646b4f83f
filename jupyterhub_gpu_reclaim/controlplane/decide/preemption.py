"""Selects sessions to preempt, on every tick.

Recomputed from the GPU queue and the GPUs that are already being released. A selected
session gets the fact ``wanted``; it is then judged, warned and confirmed like any
other.
What was freed for whom is only in memory: after a restart of the service the count
begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.policy.pressure import Want

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView, Waiting
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Choose
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds for a freed GPU to reach a waiting session. If a session still waits although
#: enough was freed for it, nothing more is freed for that long, doubled each time: it
#: lacks something else, or others are quicker.
SETTLE = 60.0
_GOING = {Phase.SUSPENDING, Phase.RELEASING}


class Pressing:
    """Applies the preemption policy on every tick.

    Args:
        sessions: the rows, and the note of who is selected.
        choose: the policy.
    """

    def __init__(self, sessions: Sessions, choose: Choose) -> None:
        self._sessions = sessions
        self._choose = choose
        self._going: dict[SessionKey, SessionKey] = {}
        self._freed: dict[SessionKey, tuple[int, float]] = {}

    def look(self, waiting: list[Waiting]) -> None:
        """Select sessions for the queue, and deselect those no longer needed."""
        now = self._sessions.clock.now()
        self._count(now)
        here = {each.key for each in waiting}
        self._freed = {key: it for key, it in self._freed.items() if key in here}
        wants = self._wants(waiting, now)
        chosen = dict(self._choose(self._views(), wants, now)) if wants else {}
        left = {key: whom for key, whom in self._going.items() if self._goes(key)}
        self._going = {**left, **chosen}
        self._sessions.wanted = dict.fromkeys(chosen, len(waiting))

    def _views(self) -> list[SessionView]:
        sessions = self._sessions
        return [
            sessions.view_of(row, [])
            for row in sessions.journal.sessions()
            if row.phase in LIVE
        ]

    def _count(self, now: float) -> None:
        """Count what was freed for whom."""
        for key, whom in list(self._going.items()):
            row = self._sessions.row(key)
            if row.phase is Phase.SUSPENDED:
                freed, _ = self._freed.get(whom, (0, 0.0))
                self._freed[whom] = freed + row.gpus, now
                del self._going[key]

    def _goes(self, key: SessionKey) -> bool:
        return self._sessions.row(key).phase in _GOING

    def _wants(self, waiting: list[Waiting], now: float) -> list[Want]:
        """What is still lacking when everything under way has come free."""
        rows = self._sessions.journal.sessions()
        coming = sum(row.gpus for row in rows if self._comes_free(row, now))
        coming += sum(self._idle_anyway(row) for row in rows)
        wants: list[Want] = []
        in_place = False
        for each in waiting:
            if each.key is None:
                continue
            row = self._sessions.row(each.key)
            # Of those who share a machine's GPUs the first alone may try, and how much
            # it finds is seen when it does: one session goes at a time.
            shares = row.waiting_since is not None
            if shares and in_place:
                continue
            in_place = in_place or shares
            needed = 1 if shares else each.gpus
            lacking = needed - min(coming, needed)
            coming -= needed - lacking
            if lacking and not self._has_had(each.key, needed, now):
                name = row.gpu_name if row.checkpoint else ""
                wants.append(Want(key=each.key, gpus=lacking, gpu=name))
        return wants

    def _has_had(self, key: SessionKey, needed: int, now: float) -> bool:
        """Whether enough was freed for it, and the effect has to be awaited."""
        freed, at = self._freed.get(key, (0, 0.0))
        rounds = min(freed // needed, 16)
        return rounds > 0 and now - at < SETTLE * 2.0 ** (rounds - 1)

    @staticmethod
    def _comes_free(row: SessionRow, now: float) -> bool:
        just_now = row.phase is Phase.SUSPENDED and now - row.since < SETTLE
        return row.phase in _GOING or just_now

    def _idle_anyway(self, row: SessionRow) -> int:
        """GPUs of a session that goes because of its own idleness."""
        if row.phase is not Phase.WARNED or row.key in self._sessions.wanted:
            return 0
        return len(self._sessions.history.cards(row.key, row.incarnation))
