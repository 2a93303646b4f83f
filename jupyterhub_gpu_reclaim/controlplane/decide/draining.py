"""Drains of nodes, by people and by the cluster: idle and small sessions first.

A few sessions are saved at a time (``turns.py``), so that each of them is safe soon.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.drain import Drain
from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.save_points import last_saved
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.policy.decide import allow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.drain import DrainOrder, DrainReport, NodeNotice
    from jupyterhub_gpu_reclaim.common.models import Decision
    from jupyterhub_gpu_reclaim.controlplane.decide.turns import Rank
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: Longest time for a drain, in seconds.
LONGEST = 30 * 86400.0


@dataclass(eq=False)
class NodeApi:
    sessions: Sessions

    def drain(self, node: str, order: DrainOrder, by: str) -> DrainReport:
        """Suspend the sessions of a node, and those that come there later.

        Raises:
            BadRequest: not a sensible time, or nowhere to come back to.
        """
        seconds, now = order.seconds, self.sessions.clock.now()
        if seconds is not None and not 0 < seconds <= LONGEST:
            what = "The time for a drain is more than 0 seconds, and at most 30 days."
            raise BadRequest(Reason.INVALID, what=what)
        if order.comes_back and not node:
            what = "There is no other machine where sessions could go on."
            raise BadRequest(Reason.INVALID, what=what)
        until = None if seconds is None else now + seconds
        drain = Drain(
            node=node, by=by, since=now, until=until, comes_back=order.comes_back
        )
        self.sessions.drains.begin(drain)
        self._note_begun(drain)
        return self.sessions.drains.report(drain)

    def undrain(self, node: str, by: str) -> None:
        """What runs there stays, and what is suspended may return.

        Raises:
            NotFound: ``not_drained``.
        """
        drain = self.sessions.drains.of(node)
        if drain is None:
            raise NotFound(Reason.NOT_DRAINED, node=node or "This machine")
        self.sessions.drains.end(node)
        _log.info("%s: no longer drained, by %s", drain.name, by)
        self._look_at_sessions_on(node)

    def follow(self, notices: Iterable[NodeNotice]) -> None:
        """Drain the nodes that the cluster announces to end, for as long as it does."""
        drains, now = self.sessions.drains, self.sessions.clock.now()
        before = {drain.node for drain in drains.all()}
        for drain in drains.follow(notices, SERVICE, now):
            self._note_begun(drain)
        for node in before - {drain.node for drain in drains.all()}:
            self._look_at_sessions_on(node)

    def drain_of(self, node: str) -> Drain | None:
        return self.sessions.drains.of(node)

    def drains(self) -> list[DrainReport]:
        return [self.sessions.drains.report(d) for d in self.sessions.drains.all()]

    def _note_begun(self, drain: Drain) -> None:
        _log.info("%s: drained, by %s%s", drain.name, drain.by, drain.because)
        for row in self.sessions.journal.sessions():
            if row.backoff_until and self.sessions.drains.of_session(row) == drain:
                # What failed or was called off before is tried now, and told anew.
                self.sessions.update(row.key, failures=0, backoff_until=None)
        self._look_at_sessions_on(drain.node)

    def _look_at_sessions_on(self, node: str) -> None:
        for row in self.sessions.journal.sessions():
            if row.node == node and not row.phase.rests:
                self.sessions.touch(row.key)
                self.sessions.look(row.key)


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
