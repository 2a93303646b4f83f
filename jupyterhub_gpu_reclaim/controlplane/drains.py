"""Drains of nodes, by people and by the cluster: the orders, and what is on the nodes.

How the sessions of a drained node are judged and warned is in ``decide/draining.py``.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES
from jupyterhub_gpu_reclaim.common.drain import Drain, DrainedSession, DrainReport
from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import LIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.drain import DrainOrder, NodeNotice
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow


_log = logging.getLogger(__name__)

#: Longest time for a drain, in seconds.
LONGEST = 30 * 86400.0
_SAVING = {Phase.SUSPENDING, Phase.RELEASING}


class Drains:
    """The orders to drain nodes; read from the journal once, then written through."""

    def __init__(
        self, journal: Journal, clock: Clock, changed: Callable[[str, bool], None]
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._changed = changed  #: called with a node, and whether it is drained now
        #: the notices of the cluster, as far as known
        self._standing: dict[str, NodeNotice] = {}
        self._orders = journal.notes(NoteKind.DRAIN, Drain)

    def of(self, node: str) -> Drain | None:
        drain = self._orders.get(node)
        return None if drain is None or drain.over else drain

    def of_session(self, row: SessionRow) -> Drain | None:
        return None if row.phase.rests else self.of(row.node)

    def drain(self, node: str, order: DrainOrder, by: str) -> DrainReport:
        """Suspend the sessions of a node, and those that come there later.

        Raises:
            BadRequest: not a sensible time, or nowhere to come back to.
        """
        seconds, now = order.seconds, self._clock.now()
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
        self._begin(drain)
        return self._report(drain)

    def undrain(self, node: str, by: str) -> None:
        """Take an order back, by a person's word; its notice begins no new one.

        What runs there stays, and what is suspended may return.

        Raises:
            NotFound: ``not_drained``.
        """
        drain = self.of(node)
        if drain is None:
            raise NotFound(Reason.NOT_DRAINED, node=node or "This machine")
        notice = self._standing.get(node)
        why = drain.why or (notice.why if notice is not None else "")
        if why:
            self._write(msgspec.structs.replace(drain, why=why, over=True))
        else:
            self._forget(node)
        _log.info("%s: no longer drained, by %s", drain.name, by)
        self._changed(node, False)

    def follow(self, notices: Iterable[NodeNotice]) -> None:
        """Drain the nodes that the cluster announces to end, for as long as it does."""
        now = self._clock.now()
        self._standing = standing = {notice.node: notice for notice in notices}
        for node, drain in list(self._orders.items()):
            if drain.why and node not in standing:
                self._forget(node)
                self._changed(node, False)
        for notice in standing.values():
            until = None if notice.seconds is None else now + notice.seconds
            before = self._orders.get(notice.node)
            if before is None:
                drain = Drain(
                    node=notice.node,
                    by=OURSELVES,
                    since=now,
                    until=until,
                    why=notice.why,
                )
                self._begin(drain)
            elif not before.over and until and until < (before.until or math.inf):
                # what was cordoned, say, has an end now
                self._begin(msgspec.structs.replace(before, until=until))

    def drains(self) -> list[DrainReport]:
        orders = (self._orders[node] for node in sorted(self._orders))
        return [self._report(drain) for drain in orders if not drain.over]

    def counts(self) -> dict[tuple[str, str], int]:
        return Counter(
            (report.drain.node, each.state)
            for report in self.drains()
            for each in report.sessions
        )

    def _report(self, drain: Drain) -> DrainReport:
        rows = self._journal.sessions()
        reported = [_report_on(row, drain) for row in rows if row.node == drain.node]
        return DrainReport(drain=drain, sessions=[each for each in reported if each])

    def _begin(self, drain: Drain) -> None:
        self._write(drain)
        _log.info("%s: drained, by %s%s", drain.name, drain.by, drain.because)
        self._changed(drain.node, True)

    def _write(self, drain: Drain) -> None:
        self._journal.note(NoteKind.DRAIN, drain.node, drain)
        self._orders[drain.node] = drain

    def _forget(self, node: str) -> None:
        self._journal.forget_notes(NoteKind.DRAIN, node)
        self._orders.pop(node, None)


def _report_on(row: SessionRow, drain: Drain) -> DrainedSession | None:
    if row.phase in _SAVING:
        return DrainedSession(key=row.key, state="saving")
    if row.phase in LIVE or row.phase is Phase.RESUMING:
        failed = row.failures > 0 and row.failure is not None
        return DrainedSession(
            key=row.key,
            state="refused" if failed else "waiting",
            failure=row.failure if failed else None,
        )
    if row.phase is Phase.SUSPENDED and row.since >= drain.since:
        return DrainedSession(key=row.key, state="saved")
    return None
