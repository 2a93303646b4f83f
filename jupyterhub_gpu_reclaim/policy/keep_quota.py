"""How much of the keep quota a user has used in a sliding day, and when there is more.

Pure. A session that is kept counts from the moment of the request to its end, including
the time ahead; two sessions kept at a time count twice, since they hold two GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds of the sliding day.
DAY = 86400.0


class Span(NamedTuple):
    """A session was, or is, kept from then to then (seconds since the epoch)."""

    start: float
    until: float


def used(spans: Iterable[Span], now: float) -> float:
    """Seconds of keep in the day that ends now, and those ahead."""
    return sum(max(0.0, s.until - max(s.start, now - DAY)) for s in spans)


def possible_at(
    spans: Iterable[Span], seconds: float, limit: float, now: float
) -> float | None:
    """When so many more seconds will be possible; None: never.

    Args:
        spans: what was kept.
        seconds: that are asked for.
        limit: seconds that a day allows.
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
