"""Judges and warns the sessions of a drained node: idle and small ones first.

A few sessions are saved at a time (``turns.py``), so that each of them is safe soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.save_points import last_saved
from jupyterhub_gpu_reclaim.policy.decide import allow

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Decision
    from jupyterhub_gpu_reclaim.controlplane.decide.turns import Rank
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


#: Seconds since its last use in which a session counts as in use.
IN_USE = 600.0
#: Part of the time left for which a session in use is warned.
WARNED_PART = 0.25
#: Seconds of which nothing is left for a warning: 16 GiB of a card take ten to save.
SHORT = 60.0


def decision(sessions: Sessions, row: SessionRow) -> Decision | None:
    drain = sessions.drains.of_session(row)
    if drain is None:
        return None
    now = sessions.clock.now()
    return allow(Reason.NODE_DRAINS, now, node=drain.name, why=drain.because)


def warn_for(sessions: Sessions, row: SessionRow, usually: float) -> float:
    """With a deadline, only a session in use is warned, if there is time enough."""
    drain = sessions.drains.of_session(row)
    if drain is None or drain.until is None:
        return usually
    if not is_in_use(sessions, row):
        return 0.0
    left = drain.until - sessions.clock.now()
    return min(usually, left * WARNED_PART) if left > SHORT else 0.0


def comes_back(sessions: Sessions, row: SessionRow) -> bool:
    """Whether it starts again at once, elsewhere: once, not for ever."""
    drain = sessions.drains.of_session(row)
    if drain is None or not drain.comes_back:
        return False
    returned = row.resumed_at is not None and row.resumed_at >= drain.since
    return not returned and is_in_use(sessions, row)


def is_in_use(sessions: Sessions, row: SessionRow) -> bool:
    usage = sessions.runtime(row.key).usage
    return usage is None or usage.used_since(sessions.clock.now() - IN_USE)


def rank(sessions: Sessions, row: SessionRow) -> Rank:
    """Sort key: in use last; of the others saved ones first, then small ones."""
    usage = sessions.runtime(row.key).usage
    saved = last_saved(sessions, row)
    safe = saved is not None and usage is not None and not usage.used_since(saved)
    held = usage.held if usage else 0
    return is_in_use(sessions, row), safe, held
