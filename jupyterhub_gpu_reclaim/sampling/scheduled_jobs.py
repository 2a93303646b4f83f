"""Scheduled notebooks of a session's server (jupyter-scheduler): what runs, is due.

A suspended server starts no job: the scheduler of a server that is back runs at once
what was due meanwhile. Its REST API tells the definitions with their schedules (cron)
and the jobs under way. A server without it is asked once. What does not answer, or has
a schedule that is not understood, is not known.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.sampling.jupyter_api import (
    Count,  # noqa: TC001 - msgspec reads it
    Word,  # noqa: TC001 - likewise
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress

#: Days after which nothing is looked for: a schedule may name 29 February.
_DAYS = 366
_NAMES = {
    "month": [
        *("jan", "feb", "mar", "apr", "may", "jun"),
        *("jul", "aug", "sep", "oct", "nov", "dec"),
    ],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PART = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d{1,3}))?")


class Definition(Value, frozen=True, kw_only=True):
    """An entry of ``GET scheduler/job_definitions``."""

    schedule: Word | None = None
    timezone: Word | None = None
    active: bool = True


class Definitions(Value, frozen=True, kw_only=True):
    """That answer; 1,000 at most, by its own default."""

    job_definitions: Annotated[list[Definition], msgspec.Meta(max_length=1000)]


class Job(Value, frozen=True, kw_only=True):
    """An entry of ``GET scheduler/jobs``; times are milliseconds since the epoch."""

    job_id: Word
    name: Word = ""
    create_time: Count = 0


class Jobs(Value, frozen=True, kw_only=True):
    """That answer."""

    jobs: Annotated[list[Job], msgspec.Meta(max_length=1000)]


class Scheduled(NamedTuple):
    """What a server's scheduler says."""

    running: list[Job]
    due: float | None  #: the next job, in seconds since the epoch; 0: none


class Schedulers:
    """Asks servers for their jobs, and remembers those that have no scheduler."""

    def __init__(self) -> None:
        self._without: set[ServerAddress] = set()

    def keep(self, addresses: set[ServerAddress]) -> None:
        """Forget servers that are not there any more."""
        self._without &= addresses

    async def ask(
        self,
        address: ServerAddress,
        get: Callable[..., Awaitable[Definitions | Jobs]],
        now: float,
    ) -> Scheduled:
        """Ask one server.

        Args:
            address: of it.
            get: asks for a path, as a type, with a query.
            now: seconds since the epoch.

        Raises:
            ReclaimError: it does not answer.
        """
        if address in self._without:
            return Scheduled([], 0.0)
        try:
            found = await get("scheduler/job_definitions", Definitions)
            jobs = await get("scheduler/jobs", Jobs, "status=IN_PROGRESS")
        except NotFound:
            self._without.add(address)
            return Scheduled([], 0.0)
        assert isinstance(found, Definitions)
        assert isinstance(jobs, Jobs)
        return Scheduled(jobs.jobs, next_due(found.job_definitions, now))


def next_due(definitions: Iterable[Definition], now: float) -> float | None:
    """When the next job is due; 0: none is within a year; None: it is not known."""
    try:
        times = [
            next_run(one.schedule, one.timezone or "UTC", now)
            for one in definitions
            if one.active and one.schedule
        ]
    except (ValueError, KeyError, OSError, OverflowError):
        return None
    return min((at for at in times if at), default=0.0)


def next_run(schedule: str, zone: str, now: float) -> float:
    """When a schedule in cron's five fields is next due; 0: not within a year.

    Raises:
        ValueError: it has other fields.
        KeyError: there is no such time zone.
    """
    fields = _ALIASES.get(schedule.strip().lower(), schedule).split()
    if len(fields) != 5:
        raise ValueError(schedule)
    minutes, hours = _field(fields[0], 0, 59), _field(fields[1], 0, 23)
    days, months = _field(fields[2], 1, 31), _field(fields[3], 1, 12, "month")
    weekdays = {day % 7 for day in _field(fields[4], 0, 7, "weekday")}
    either = len(days) < 31 and len(weekdays) < 7  # as croniter, which it uses
    where = UTC if zone == "UTC" else ZoneInfo(zone)

    def fits(day: date) -> bool:
        named, of_week = day.day in days, day.isoweekday() % 7 in weekdays
        both = named or of_week if either else named and of_week
        return day.month in months and both

    today = datetime.fromtimestamp(now, where).date()
    for day in (today + timedelta(days=number) for number in range(_DAYS)):
        for hour in sorted(hours) if fits(day) else ():
            for minute in sorted(minutes):
                moment = datetime.combine(day, time(hour, minute), where).timestamp()
                if moment > now:
                    return moment
    return 0.0


def _field(text: str, low: int, high: int, names: str = "") -> set[int]:
    """The numbers that a field of cron means."""
    found: set[int] = set()
    for part in text.lower().split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(part)
        every, first, last, step = match.groups()
        begin = low if every else _number(first, names)
        end = high if every or (step and not last) else _number(last or first, names)
        if not (low <= begin <= end <= high and step != "0"):
            raise ValueError(part)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _number(text: str, names: str) -> int:
    known = _NAMES.get(names, [])
    if text in known:
        return known.index(text) + (names == "month")
    return int(text)
