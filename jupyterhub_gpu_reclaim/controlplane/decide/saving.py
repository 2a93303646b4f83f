"""Tells when a running session is saved by rule: a while after its last save point.

A session is saved again only if it was used since, and in a lull: it stands still for
it, which whoever types notices. Who never pauses is not waited for beyond a third of
that while. One that holds a GPU would stand
still until its memory is out and in again, so it is saved once in each nap instead,
where it stands still anyway. Where it is not known when it was used last, it may have
been. A save that has failed is tried again as soon as a failed suspend.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.accounting import Risk
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Usage
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds without use after which nobody is in the middle of a line.
LULL: Final = 30.0
#: Part of the while between two save points for which a lull is waited for.
_PUT_OFF: Final = 1 / 3


class Saving:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def is_due(self, row: SessionRow) -> bool:
        every = self._sessions.saved_every(row.key)
        if not every or row.phase not in LIVE or row.phase is Phase.WARNED:
            return False
        now, runtime = self._sessions.clock.now(), self._sessions.runtime(row.key)
        last = last_saved(self._sessions, row)
        tried = runtime.save_tried
        if tried is not None and now - tried < min(every, self._pause(row)):
            return False
        nap = runtime.nap_of(row.incarnation)
        if nap is not None:
            return last is None or last < nap.begun
        if runtime.usage is None or runtime.cards(row.incarnation):
            return False
        if last is None:
            last = row.resumed_at or row.started_at or row.since
        used = runtime.usage.used_since(last)
        return used and is_time(now, last, every, runtime.usage)

    def note_tried(self, row: SessionRow) -> None:
        """Note that a save begins, however it ends: no rule repeats it at once."""
        runtime = self._sessions.runtime(row.key)
        runtime.saves_failed = self._failures(row)
        runtime.save_tried = self._sessions.clock.now()

    def _failures(self, row: SessionRow) -> int:
        runtime, last = self._sessions.runtime(row.key), last_saved(self._sessions, row)
        tried = runtime.save_tried
        if tried is None or (last is not None and last >= tried):
            return 0
        return runtime.saves_failed + 1

    def _pause(self, row: SessionRow) -> float:
        failures = self._failures(row)
        return self._sessions.settings.pause_after(failures) if failures else math.inf


def is_time(now: float, last: float, every: float, usage: Usage) -> bool:
    """Whether a session in use is saved now; a silent cell is no obstacle. Pure."""
    over = now - last - every
    active = usage.last_active
    is_lull = active is not None and now - active >= LULL
    return over >= (0.0 if is_lull else every * _PUT_OFF)


def risks(sessions: Sessions) -> list[Risk]:
    now = sessions.clock.now()
    found = []
    for row in sessions.journal.sessions():
        if row.phase not in LIVE:
            continue
        runtime = sessions.runtime(row.key)
        saved = last_saved(sessions, row) or row.resumed_at or row.started_at
        since = saved or row.since
        used = runtime.usage is None or runtime.usage.used_since(since)
        gpu = bool(runtime.cards_or_nap(row.incarnation))
        found.append(Risk(gpu, max(0.0, now - since) if used else 0.0))
    return found


def last_saved(sessions: Sessions, row: SessionRow) -> float | None:
    """Return when the running session was saved last; None: never."""
    saved = sessions.journal.checkpoint(row.checkpoint)
    if saved is None or not saved.is_of(row.incarnation):
        return None
    return saved.info.created
