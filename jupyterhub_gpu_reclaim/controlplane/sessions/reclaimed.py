"""Reclaimed GPU time by month: one row for each suspension that has ended.

A row is written in the transaction that ends the suspension, as the sum of all is
(``model/accounting.py``); one that goes on is counted up to now. So a crash neither
loses nor doubles any, and a suspension over the end of a month counts in both. The
memory that naps have freed stands beside it (``nap_memory``).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common import report
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.report import Report, Share
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.sessions import nap_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


class Suspension(NamedTuple):
    """A suspension, as the table has it."""

    user: str
    server: str
    node: str
    gpu_name: str
    gpus: float
    begun: float
    ended: float


def ended(
    row: SessionRow, now: float, seats: int, phase: Phase | None = None
) -> list[Any]:
    """Make statements that note a suspension which ends.

    Args:
        row: the session before that.
        now: seconds since the epoch.
        seats: how many sessions share one GPU.
        phase: the next phase; None: the session is forgotten.
    """
    over = row.phase is Phase.SUSPENDED and phase is not Phase.SUSPENDED
    if not (over and row.gpus):
        return []
    table = schema.reclaimed
    return [
        table.delete().where(table.c.ended < now - report.KEPT),
        table.insert().values(**_suspension_of(row, now, seats)._asdict()),
    ]


def of_month(
    sessions: Sessions, month: str, groups: Mapping[str, Iterable[str]]
) -> Report:
    """Make the report of a month such as ``2026-11``.

    Args:
        sessions: where journal and clock are.
        month: the month.
        groups: groups of each user whom the Hub knows.

    Raises:
        BadRequest: it is no month.
        StoreError: the journal does not answer.
    """
    begin, end = report.bounds(month)
    now = sessions.clock.now()
    end = max(begin, min(end, now))
    table = schema.reclaimed
    query = table.select().where(table.c.ended > begin, table.c.begun < end)
    found = [
        Suspension(*(line[name] for name in Suspension._fields))
        for line in sessions.journal.read(query)
    ]
    found += [
        _suspension_of(row, now, sessions.seats_per_gpu)
        for row in sessions.journal.sessions()
        if row.phase is Phase.SUSPENDED and row.gpus and row.since < end
    ]
    since = nap_memory.counted_since(sessions.journal)
    naps, late = None, None
    if since is not None and since < end:
        naps = nap_memory.between(sessions.journal, begin, end)
        late = since if since > begin else None
    shares = _Shares(found, naps, begin, end)
    return Report(
        month=month,
        begin=begin,
        end=end,
        gpu_hours=shares.gpu_hours(found),
        suspensions=len(found),
        nap_gb_hours=None if naps is None else shares.gb_hours(naps),
        naps_since=late,
        users=shares.by(lambda piece: [piece.user]),
        groups=shares.by(lambda piece: groups.get(piece.user) or [""]),
        nodes=shares.by(lambda piece: [piece.node]),
        gpus=shares.by(lambda piece: [piece.gpu_name]),
    )


#: A suspension or a nap's piece: both have a user, a node, a model, a begin, an end.
_Counted = Suspension | nap_memory.NapPiece


class _Shares:
    """Sums over suspensions and naps, as far as they fall into one month.

    Args:
        found: the suspensions.
        naps: None: they were not counted.
        begin: begin of the month.
        end: end of the month, or now.
    """

    def __init__(
        self,
        found: list[Suspension],
        naps: list[nap_memory.NapPiece] | None,
        begin: float,
        end: float,
    ) -> None:
        self._found = found
        self._naps = naps
        self._begin = begin
        self._end = end

    def gpu_hours(self, found: Iterable[Suspension]) -> float:
        """GPUs times hours."""
        return sum(one.gpus * self._hours(one) for one in found)

    def gb_hours(self, naps: Iterable[nap_memory.NapPiece]) -> float:
        """Gigabytes times hours."""
        return sum(one.bytes / 1e9 * self._hours(one) for one in naps)

    def by(self, names: Callable[[_Counted], Iterable[str]]) -> list[Share]:
        """Return the sums for each name, the largest first."""
        found: dict[str, list[Suspension]] = defaultdict(list)
        naps: dict[str, list[nap_memory.NapPiece]] = defaultdict(list)
        for one in self._found:
            for name in names(one):
                found[name].append(one)
        for piece in self._naps or ():
            for name in names(piece):
                naps[name].append(piece)
        shares = [
            Share(
                name=name,
                gpu_hours=self.gpu_hours(found[name]),
                suspensions=len(found[name]),
                nap_gb_hours=None if self._naps is None else self.gb_hours(naps[name]),
            )
            for name in found.keys() | naps.keys()
        ]
        return sorted(
            shares,
            key=lambda one: (-one.gpu_hours, -(one.nap_gb_hours or 0), one.name),
        )

    def _hours(self, one: _Counted) -> float:
        seconds = min(one.ended, self._end) - max(one.begun, self._begin)
        return max(0.0, seconds) / 3600


def _suspension_of(row: SessionRow, now: float, seats: int) -> Suspension:
    """Return the suspension of a session, as if it ended now."""
    return Suspension(
        user=row.key.user,
        server=row.key.server,
        node=row.node,
        gpu_name=row.gpu_name,
        gpus=row.gpus / seats,
        begun=row.since,
        ended=now,
    )
