"""Keeps the orders to drain nodes, by whose word, and what is on the nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.drain import Drain, DrainedSession, DrainReport
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.drain import NodeNotice
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow


_SAVING = {Phase.SUSPENDING, Phase.RELEASING}


class Drains:
    """The orders to drain nodes; read from the journal once, then written through."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: the notices of the cluster, as far as known
        self._standing: dict[str, NodeNotice] = {}
        self._orders = journal.notes(NoteKind.DRAIN, Drain)

    def all(self) -> list[Drain]:
        drains = (self._orders[node] for node in sorted(self._orders))
        return [drain for drain in drains if not drain.over]

    def of(self, node: str) -> Drain | None:
        drain = self._orders.get(node)
        return None if drain is None or drain.over else drain

    def of_session(self, row: SessionRow) -> Drain | None:
        return None if row.phase.rests else self.of(row.node)

    def begin(self, drain: Drain) -> None:
        self._journal.note(NoteKind.DRAIN, drain.node, drain)
        self._orders[drain.node] = drain

    def end(self, node: str) -> None:
        """Take an order back, by a person's word; its notice begins no new one."""
        drain = self._orders.get(node)
        if drain is None or drain.over:
            return
        notice = self._standing.get(node)
        why = drain.why or (notice.why if notice is not None else "")
        if why:
            self.begin(msgspec.structs.replace(drain, why=why, over=True))
        else:
            self._forget(node)

    def follow(self, notices: Iterable[NodeNotice], by: str, now: float) -> list[Drain]:
        """Drain the nodes that the cluster gives notice of, for as long as it does.

        Return those whose drain is new, or has an end now.
        """
        self._standing = standing = {notice.node: notice for notice in notices}
        for node, drain in list(self._orders.items()):
            if drain.why and node not in standing:
                self._forget(node)
        begun = []
        for notice in standing.values():
            until = None if notice.seconds is None else now + notice.seconds
            before = self._orders.get(notice.node)
            if before is None:
                drain = Drain(
                    node=notice.node, by=by, since=now, until=until, why=notice.why
                )
            elif before.over or not _is_sooner(until, before.until):
                continue
            else:  # what was cordoned, say, has an end now
                drain = msgspec.structs.replace(before, until=until)
            self.begin(drain)
            begun.append(drain)
        return begun

    def _forget(self, node: str) -> None:
        self._journal.forget_notes(NoteKind.DRAIN, node)
        self._orders.pop(node, None)

    def counts(self) -> dict[tuple[str, str], int]:
        reports = [self.report(drain) for drain in self.all()]
        return Counter(
            (report.drain.node, each.state)
            for report in reports
            for each in report.sessions
        )

    def report(self, drain: Drain) -> DrainReport:
        rows = sorted(self._journal.sessions(), key=lambda row: row.key)
        reported = [_report_on(row, drain) for row in rows if row.node == drain.node]
        return DrainReport(drain=drain, sessions=[each for each in reported if each])


def _is_sooner(until: float | None, before: float | None) -> bool:
    return until is not None and (before is None or until < before)


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
