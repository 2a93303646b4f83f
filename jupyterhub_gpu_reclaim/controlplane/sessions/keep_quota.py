"""Keep quota: how long each user may keep sessions in any 24 hours.

The time used is journalled; managers are not bound, and their keeps count for nobody. A
session that is kept counts from the moment of the request to its end, including the
time ahead; two sessions kept at a time count twice, since they hold two GPUs. Nothing
is written here: the statements go into one transaction with the session's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.journal import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal


#: Longest "keep" that can be asked for: a year, in seconds.
LONGEST_KEEP = 366 * 86400.0
#: Seconds by which a keep may pass the limit: people read a rounded number.
_SLACK = 1.0


class KeepQuota:
    """The keep time that each user has used.

    Args:
        journal: where the time used is.
        per_day: seconds for one user in any 24 hours; 0: no limit.
    """

    def __init__(self, journal: Journal, per_day: float) -> None:
        self._journal = journal
        self._per_day = per_day

    def wish(
        self, key: SessionKey, seconds: float, now: float, *, bound: bool
    ) -> list[Any]:
        """Make statements that note a keep; the session's former one ends with it.

        Args:
            key: the session.
            seconds: how long from now; 0 takes the former keep back, and the rest of it
                can be used again.
            now: seconds since the epoch.
            bound: whether the limit holds for the caller.

        Raises:
            Refused: ``keep_spent``, with what is left and when there is more.
        """
        if bound and seconds and self._per_day:
            self._check(self._spans_used(key, now), seconds, now)
        table = schema.keeps
        statements = [table.delete().where(table.c.until < now - DAY), *end(key, now)]
        if bound and seconds:
            new = {"user": key.user, "server": key.server, "start": now}
            statements.append(table.insert().values(**new, until=now + seconds))
        return statements

    def left(self, key: SessionKey, now: float) -> float:
        """Seconds for which a session can be kept from now on, by this quota."""
        if not self._per_day:
            return LONGEST_KEEP
        return max(0.0, self._per_day - used(self._spans_used(key, now), now))

    def _spans_used(self, key: SessionKey, now: float) -> list[KeepSpan]:
        """Spans of the user's keep time, as if this session's former keep ended now."""
        table = schema.keeps
        query = table.select().where(table.c.user == key.user)
        return [
            KeepSpan(
                row["start"],
                min(row["until"], now) if row["server"] == key.server else row["until"],
            )
            for row in self._journal.read(query.where(table.c.until > now - DAY))
        ]

    def _check(self, spans: list[KeepSpan], seconds: float, now: float) -> None:
        left = max(0.0, self._per_day - used(spans, now))
        if seconds <= left + _SLACK:
            return
        at = possible_at(spans, seconds, self._per_day, now)
        asked = duration(seconds)
        more = "" if at is None else f"; {asked} will be in {duration(at - now)}"
        raise Refused(
            Reason.KEEP_SPENT,
            limit=duration(self._per_day),
            left=duration(left),
            more=more,
        )


def end(key: SessionKey, now: float) -> list[Any]:
    """Make statements that end a session's keep; the rest can be used again."""
    table = schema.keeps
    mine = (table.c.user == key.user) & (table.c.server == key.server)
    return [table.update().where(mine & (table.c.until > now)).values(until=now)]


#: Seconds of the sliding day.
DAY = 86400.0


class KeepSpan(NamedTuple):
    """A span of time for which a session was, or is, kept (seconds since the epoch)."""

    start: float
    until: float


def used(spans: Iterable[KeepSpan], now: float) -> float:
    """Seconds of keep in the day that ends now, and those ahead."""
    return sum(max(0.0, s.until - max(s.start, now - DAY)) for s in spans)


def possible_at(
    spans: Iterable[KeepSpan], seconds: float, limit: float, now: float
) -> float | None:
    """Return when so many more seconds will be possible; None: never.

    Args:
        spans: the times of the keeps.
        seconds: how many are asked for.
        limit: seconds allowed per day.
        now: seconds since the epoch.
    """
    if seconds > limit:
        return None
    known, target, before = list(spans), limit - seconds, now
    if used(known, now) <= target:
        return now
    # Between two of these moments, the used amount falls linearly.
    turns = {moment + DAY for span in known for moment in span}
    for turn in sorted(moment for moment in turns if moment > now):
        here, there = used(known, before), used(known, turn)
        if there <= target:
            return before + (turn - before) * (here - target) / (here - there)
        before = turn
    return before  # rounding: after the last turn nothing is used
