"""Times of day at which no session is suspended: parsing and look-up.

Pure.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from typing import NamedTuple

_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_PERIOD = re.compile(rf"{_TIME}-{_TIME}")


class Period(NamedTuple):
    """From a time of day to another, which may lie on the next day."""

    start: time
    end: time

    def end_after(self, now: float, zone: tzinfo | None) -> float | None:
        """When the period that now is in ends; None when it is not in one.

        Args:
            now: seconds since the epoch.
            zone: whose time of day it is; None is the machine's own.
        """
        local = datetime.fromtimestamp(now, zone)
        for days in (-1, 0):
            day = local.date() + timedelta(days=days)
            over = day + timedelta(days=1) if self.end <= self.start else day
            # A timestamp, not a difference: days are not always 24 hours long.
            start = datetime.combine(day, self.start, zone).timestamp()
            end = datetime.combine(over, self.end, zone).timestamp()
            if start <= now < end:
                return end
        return None


def parse(text: str) -> Period:
    """``"22:00-06:30"`` as a period; equal times are the whole day.

    Raises:
        ValueError: with a sentence that shows the format.
    """
    match = _PERIOD.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no period of a day; write it as '08:00-18:30'")
    hours = [int(part) for part in match.groups()]
    return Period(time(hours[0], hours[1]), time(hours[2], hours[3]))
