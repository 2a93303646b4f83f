"""Selects the checkpoints to delete, by age and quota.

Pure; ``controlplane/expiry.py`` carries it out at every tick. It only
drops checkpoints that are not in use. Bytes that two of a session share count once, and
are freed with the second (``common/kept_bytes.py``).
"""

from __future__ import annotations

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
    left = sorted(kept, key=lambda each: (each.suspended, each.id))
    may_go = {Use.SPARE, Use.CURRENT} if retention.takes_current else {Use.SPARE}
    dropped: list[Dropped] = []

    def take(each: Kept, why: str) -> None:
        left.remove(each)
        dropped.append(Dropped(each.id, why))

    def fit(some: list[Kept], quota: int, whose: str) -> None:
        held = KeptBytes(each.keeps for each in some)
        excess = held.total - quota
        some = [each for each in some if each.use in may_go]
        for each in sorted(some, key=lambda each: each.use is Use.CURRENT):
            if quota and excess > 0:
                take(each, f"{whose} quota of {text.size(quota)} is used up")
                excess -= held.drop(each.keeps)

    for each in list(left):
        old = retention.seconds and each.suspended < now - retention.seconds
        if old and each.use in may_go:
            limit = text.duration(retention.seconds)
            take(each, f"checkpoints are kept for {limit}")
    for user in sorted({each.key.user for each in left}):
        mine = [each for each in left if each.key.user == user]
        fit(mine, retention.user_bytes, "its user's")
    fit(list(left), retention.total_bytes, "the store's")
    return dropped
