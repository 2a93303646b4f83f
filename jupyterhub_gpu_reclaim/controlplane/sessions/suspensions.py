"""Facts for a suspended session's user: why, how large, how long until it is back.

The time is a guess from resumes of about the same size that this program has seen, its
own first of all. Without such a resume, no time is given.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES, of_user
from jupyterhub_gpu_reclaim.common.models import Suspension

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.rows import (
        AuditRow,
        CheckpointRow,
        SessionRow,
    )
    from jupyterhub_gpu_reclaim.policy.retention import Retention

#: Words of the audit for the beginning of a suspend, and for a session that ended and
#: goes back to what is saved of it.
CAUSES = frozenset({"suspend", "lost"})
#: Newest lines of a session that are searched for those words.
CAUSE_LINES = 100
#: Most resumes that are remembered.
MOST_RESUMES = 64
#: Largest ratio of two sizes that take about the same time per byte.
ALIKE = 4.0


class ResumeTime(NamedTuple):
    key: SessionKey
    bytes: int
    seconds: float


class ResumeTimes:
    """The newest resumes, to guess how long the next one takes."""

    def __init__(self) -> None:
        self._seen: deque[ResumeTime] = deque(maxlen=MOST_RESUMES)

    def add(self, key: SessionKey, size: int, seconds: float) -> None:
        if size and seconds > 0:
            self._seen.append(ResumeTime(key, size, seconds))

    def expected(self, key: SessionKey, size: int) -> float:
        """Seconds that a resume of that size is likely to take; 0: not known."""
        alike = [
            one
            for one in reversed(self._seen)
            if size and 1 / ALIKE <= one.bytes / size <= ALIKE
        ]
        own = [one for one in alike if one.key == key]
        found = next(iter(own or alike), None)
        return 0.0 if found is None else found.seconds * size / found.bytes


def cause(lines: Iterable[AuditRow]) -> str:
    line = next((line for line in lines if line.what in CAUSES), None)
    if line is None:
        return ""
    if line.code or line.who == OURSELVES:
        return line.message
    mine = line.who == of_user(line.key.user)
    by = "You suspended it." if mine else f"Suspended by {line.who}."
    return f"{by} {line.message}".strip()


def suspension_of(
    row: SessionRow,
    kept: Iterable[CheckpointRow],
    why: str,
    times: ResumeTimes,
    retention: Retention,
) -> Suspension:
    mine = next((each for each in kept if each.id == row.checkpoint), None)
    info = mine.info if mine is not None else None
    size, at = (info.logical_bytes, info.created) if info else (0, row.since)
    term, generation = info.stamp if info else (0, 0)
    taken, seconds = retention.takes_current, retention.seconds
    return Suspension(
        at=at,
        why=why,
        bytes=size,
        until=at + seconds if taken and seconds else None,
        for_quota=taken and bool(retention.user_bytes or retention.total_bytes),
        resume_seconds=times.expected(row.key, size),
        term=term,
        generation=generation,
    )
