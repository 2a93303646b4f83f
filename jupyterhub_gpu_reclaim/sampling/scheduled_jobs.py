"""Scheduled notebooks of a session's server (jupyter-scheduler): running and due.

A suspended server starts no job: the scheduler of a server that is back runs at once
what was due meanwhile. A server without one is asked once. If it does not answer, or
has a schedule that is not understood, its jobs are unknown.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from croniter import CroniterBadDateError, croniter

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.sampling.jupyter_api import (
    Count,  # noqa: TC001 - msgspec reads it
    Word,  # noqa: TC001 - likewise
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress

#: Years after which nothing is looked for: a schedule may name 30 February.
_YEARS = 1


class Definition(Value, frozen=True, kw_only=True):
    """An entry of ``GET scheduler/job_definitions``."""

    schedule: Word | None = None
    timezone: Word | None = None
    active: bool = True


class Definitions(Value, frozen=True, kw_only=True):
    job_definitions: Annotated[list[Definition], msgspec.Meta(max_length=1000)]


class Job(Value, frozen=True, kw_only=True):
    """An entry of ``GET scheduler/jobs``; times are milliseconds since the epoch."""

    job_id: Word
    name: Word = ""
    create_time: Count = 0


class Jobs(Value, frozen=True, kw_only=True):
    jobs: Annotated[list[Job], msgspec.Meta(max_length=100)]


class Scheduled(NamedTuple):
    running: list[Job]
    due: float | None  #: the next job, in seconds since the epoch; 0: none


class Schedulers:
    def __init__(self) -> None:
        self._without: set[ServerAddress] = set()

    def keep(self, addresses: set[ServerAddress]) -> None:
        self._without &= addresses

    async def ask(
        self,
        address: ServerAddress,
        get: Callable[..., Awaitable[Any]],
        now: float,
    ) -> Scheduled:
        if address in self._without:
            return Scheduled([], 0.0)
        try:
            found = await get("scheduler/job_definitions", Definitions)
            jobs = await get("scheduler/jobs", Jobs, "status=IN_PROGRESS")
        except NotFound:
            self._without.add(address)
            return Scheduled([], 0.0)
        return Scheduled(jobs.jobs, next_due(found.job_definitions, now))


def next_due(definitions: Iterable[Definition], now: float) -> float | None:
    """When the next job is due; 0: none within a year; None: unknown."""
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
    """When it is due by the scheduler's own rules; 0: not in a year.

    Raises:
        ValueError: it is invalid.
        KeyError: there is no such time zone.
    """
    since = datetime.fromtimestamp(now, ZoneInfo(zone))
    try:
        runs = croniter(schedule, since, max_years_between_matches=_YEARS)
        return float(runs.get_next(float))
    except CroniterBadDateError:
        return 0.0
