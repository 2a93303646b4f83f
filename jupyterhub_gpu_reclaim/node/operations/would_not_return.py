"""Keeps sessions from being stopped again and again for what cannot end well.

A rehearsal that fails (law 12), or a store that runs out of room, costs its user the
time in which the session stood still. The next attempt would fail as well while the
programs are the same ones. So the refusal is repeated before anything is touched, with
its reason, until

* one of the programs that were there has ended (one that has begun mends nothing),
* some time has passed, since a program may have closed what was in the way,
* there is more room in the store than was not enough, or
* a person asks (:meth:`Refusals.forget`).

All of it is forgotten when the agent ends. Then one attempt more is made.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.models import Failure, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: Seconds after which the same programs are tried again: as long as the
#: service's longest pause after failures (``Settings.backoff_limit``).
_AGAIN_SECONDS: Final = 3600.0
#: Sessions whose refusal is remembered.
_KEPT: Final = 256


class _Refusal(NamedTuple):
    programs: frozenset[tuple[int, int]]  #: that stood: pid and start of each
    failure: Failure
    at: float
    needs: float  #: bytes that were not enough in the store; 0: that was not it

    def holds(self, snapshot: Snapshot, now: float, free: int | None) -> bool:
        """Whether nothing has changed since that could mend it."""
        if now - self.at >= _AGAIN_SECONDS or not self.programs <= _programs(snapshot):
            return False
        return not self.needs or (free is not None and free < self.needs)


class Refusals:
    """Sessions that were stopped in vain; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: dict[str, _Refusal] = {}

    def remember(
        self,
        incarnation: str,
        snapshot: Snapshot,
        failure: Failure,
        now: float,
        needs: float = 0.0,
    ) -> None:
        refusal = _Refusal(_programs(snapshot), failure, now, needs)
        with self._lock:
            known = self._refusals.pop(incarnation, refusal)
            # A store that was full beside a rehearsal that failed is not all of it.
            keeps = bool(needs) and not known.needs
            self._refusals[incarnation] = known if keeps else refusal
            if len(self._refusals) > _KEPT:
                del self._refusals[next(iter(self._refusals))]

    def findings(
        self, incarnation: str, snapshot: Snapshot, now: float, free: int | None
    ) -> Iterator[Finding]:
        """The refusal, as long as an attempt would end with it again."""
        with self._lock:
            known = self._refusals.get(incarnation)
        if known is not None and known.holds(snapshot, now, free):
            failure = known.failure
            yield Finding(
                code=failure.code,
                message=failure.message,
                hint=failure.hint,
                retryable=failure.retryable,
            )

    def forget(self, incarnation: str) -> None:
        """Let the next capture try, whatever stood in the way. Idempotent."""
        with self._lock:
            self._refusals.pop(incarnation, None)


def _programs(snapshot: Snapshot) -> frozenset[tuple[int, int]]:
    return frozenset((one.pid, one.start_time) for one in snapshot.processes)
