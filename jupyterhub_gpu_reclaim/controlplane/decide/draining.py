"""Orders the sessions on a drained node: idle and small first, at work last.

A few sessions are saved at a time (``turns.py``), so that each of them is safe soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide.saving import last_saved
from jupyterhub_gpu_reclaim.policy.decide import allow

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Decision
    from jupyterhub_gpu_reclaim.controlplane.decide.turns import Rank, Turns
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds since its last use in which a session counts as in use.
IN_USE = 600.0
#: Part of the time left for which a session in use is warned.
WARNED_PART = 0.25
#: Seconds of which nothing is left for a warning: 16 GiB of a card take ten to save.
SHORT = 60.0


class Draining:
    def __init__(self, sessions: Sessions, turns: Turns) -> None:
        self._sessions = sessions
        self._turns = turns

    def decision(self, row: SessionRow) -> Decision | None:
        drain = self._sessions.drains.of_session(row)
        if drain is None:
            return None
        now = self._sessions.clock.now()
        return allow(Reason.NODE_DRAINS, now, node=drain.name, why=drain.because)

    def warn_for(self, row: SessionRow, usually: float) -> float:
        """With a deadline, only a session in use is warned, if there is time enough."""
        drain = self._sessions.drains.of_session(row)
        if drain is None or drain.until is None:
            return usually
        if not self.is_in_use(row):
            return 0.0
        left = drain.until - self._sessions.clock.now()
        return min(usually, left * WARNED_PART) if left > SHORT else 0.0

    def has_turn(self, row: SessionRow) -> bool:
        """Whether it is saved now. The first request waits, so that others ask, too."""
        return self._turns.has(row, self._rank(row), first=False)

    def comes_back(self, row: SessionRow) -> bool:
        """Whether it starts again at once, elsewhere: once, not for ever."""
        drain = self._sessions.drains.of_session(row)
        if drain is None or not drain.comes_back:
            return False
        returned = row.resumed_at is not None and row.resumed_at >= drain.since
        return not returned and self.is_in_use(row)

    def is_in_use(self, row: SessionRow) -> bool:
        usage = self._sessions.runtime(row.key).usage
        return usage is None or usage.used_since(self._sessions.clock.now() - IN_USE)

    def _rank(self, row: SessionRow) -> Rank:
        """Sort key: in use last; of the others saved ones first, then small ones."""
        usage = self._sessions.runtime(row.key).usage
        saved = last_saved(self._sessions, row)
        safe = saved is not None and usage is not None and not usage.used_since(saved)
        held = usage.held if usage else 0
        return self.is_in_use(row), safe, held
