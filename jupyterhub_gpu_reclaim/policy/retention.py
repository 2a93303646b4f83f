"""Selects the checkpoints to delete, by age and quota.

Pure; ``controlplane/expiry.py`` carries it out at every tick. It only
drops checkpoints that are not in use. Bytes that two of a session share count once, and
are freed with the second (``common/kept_bytes.py``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.kept_bytes import KeptBytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey


class Use(Enum):
    """The loss that deleting a checkpoint would mean."""

    SPARE = auto()  #: set aside by its user
    CURRENT = auto()  #: its session is suspended in it, and it is all there is
    BUSY = auto()  #: being brought back, or just brought back: never dropped


class Kept(NamedTuple):
    id: str
    key: SessionKey
    #: bytes that it keeps, by the generation that has written them
    keeps: Mapping[str, int]
    suspended: float  #: when its session was, in seconds since the epoch
    use: Use


class Dropped(NamedTuple):
    """A checkpoint to delete, and why, as the end of a sentence."""

    id: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Retention:
    seconds: float = 0.0
    user_bytes: int = 0
    total_bytes: int = 0
    #: Whether the only checkpoint of a suspended session may be dropped.
    takes_current: bool = False


def drop(kept: Iterable[Kept], retention: Retention, now: float) -> list[Dropped]:
    """Select what to delete, the least recently suspended first.

    Checkpoints set aside go before those that a session is suspended in; the latter go
    only if the administrator allows it. Otherwise the quota is exceeded.
    """
    plan = _Plan(kept, retention)
    plan.by_age(now)
    why = f"its user's quota of {text.size(retention.user_bytes)} is used up"
    for mine in plan.of_users():
        plan.by_size(mine, retention.user_bytes, why)
    why = f"the store's quota of {text.size(retention.total_bytes)} is used up"
    plan.by_size(plan.left(), retention.total_bytes, why)
    return plan.dropped


class _Plan:
    def __init__(self, kept: Iterable[Kept], retention: Retention) -> None:
        oldest_first = sorted(kept, key=lambda each: (each.suspended, each.id))
        self._left = {each.id: each for each in oldest_first}
        self._retention = retention
        self.dropped: list[Dropped] = []

    def left(self) -> list[Kept]:
        return list(self._left.values())

    def of_users(self) -> list[list[Kept]]:
        of: dict[str, list[Kept]] = defaultdict(list)
        for each in self.left():
            of[each.key.user].append(each)
        return [of[user] for user in sorted(of)]

    def by_age(self, now: float) -> None:
        seconds = self._retention.seconds
        if not seconds:
            return
        for each in [e for e in self.left() if e.suspended < now - seconds]:
            self._drop(each, f"checkpoints are kept for {text.duration(seconds)}")

    def by_size(self, kept: list[Kept], quota: int, why: str) -> None:
        if not quota:
            return
        held = KeptBytes(each.keeps for each in kept)
        excess = held.total - quota
        for use in (Use.SPARE, Use.CURRENT):
            for each in [e for e in kept if e.use is use]:
                if excess <= 0:
                    return
                if self._drop(each, why):
                    excess -= held.drop(each.keeps)

    def _drop(self, each: Kept, why: str) -> bool:
        if each.use is Use.BUSY:
            return False
        if each.use is Use.CURRENT and not self._retention.takes_current:
            return False
        del self._left[each.id]
        self.dropped.append(Dropped(each.id, why))
        return True
