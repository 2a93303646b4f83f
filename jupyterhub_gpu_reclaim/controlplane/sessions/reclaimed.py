"""Reclaimed GPU time by month: one row for each suspension that has ended.

A row is written in the transaction that ends the suspension, as the sum of all is
(``model/accounting.py``); one that goes on is counted up to now. So a crash neither
loses nor doubles any, and a suspension over the end of a month counts in both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common import report
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.report import Report, Share
from jupyterhub_gpu_reclaim.controlplane.journal import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds for which rows are kept: two years and a month, to compare the same months.
KEPT = 761 * 86400.0


class Suspension(NamedTuple):
    """One suspension, as the table has it."""

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
    """Statements that note a suspension which ends.

    Args:
        row: the session before that.
        now: seconds since the epoch.
        seats: how many sessions share one GPU.
        phase: where it goes; None: the session is forgotten.
    """
    over = row.phase is Phase.SUSPENDED and phase is not Phase.SUSPENDED
    if not (over and row.gpus):
        return []
    table = schema.reclaimed
    return [
        table.delete().where(table.c.ended < now - KEPT),
        table.insert().values(**_of(row, now, seats)._asdict()),
    ]


def of_month(
    sessions: Sessions, month: str, groups: Mapping[str, Iterable[str]]
) -> Report:
    """The report of a month such as ``2026-11``.

    Args:
        sessions: where journal and clock are.
        month: which.
        groups: of each user whom the Hub knows.

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
        _of(row, now, sessions.seats_per_gpu)
        for row in sessions.journal.sessions()
        if row.phase is Phase.SUSPENDED and row.gpus and row.since < end
    ]
    shares = _Shares(found, begin, end)
    return Report(
        month=month,
        begin=begin,
        end=end,
        gpu_hours=sum(map(shares.hours, found)),
        suspensions=len(found),
        users=shares.by(lambda one: [one.user]),
        groups=shares.by(lambda one: groups.get(one.user) or [""]),
        nodes=shares.by(lambda one: [one.node]),
        gpus=shares.by(lambda one: [one.gpu_name]),
    )


class _Shares:
    """Sums over suspensions, as far as they reach into one month."""

    def __init__(self, found: list[Suspension], begin: float, end: float) -> None:
        self._found = found
        self._begin = begin
        self._end = end

    def hours(self, one: Suspension) -> float:
        """GPU-hours of one of them."""
        seconds = min(one.ended, self._end) - max(one.begun, self._begin)
        return one.gpus * max(0.0, seconds) / 3600

    def by(self, names: Callable[[Suspension], Iterable[str]]) -> list[Share]:
        """The sum for each name, the largest first."""
        sums: dict[str, list[float]] = defaultdict(list)
        for one in self._found:
            for name in names(one):
                sums[name].append(self.hours(one))
        shares = [
            Share(name=name, gpu_hours=sum(each), suspensions=len(each))
            for name, each in sums.items()
        ]
        return sorted(shares, key=lambda share: (-share.gpu_hours, share.name))


def _of(row: SessionRow, now: float, seats: int) -> Suspension:
    """The suspension of a session, as if it ended now."""
    return Suspension(
        user=row.key.user,
        server=row.key.server,
        node=row.node,
        gpu_name=row.gpu_name,
        gpus=row.gpus / seats,
        begun=row.since,
        ended=now,
    )
