"""Repeats calls of a backend that is unavailable for a moment, up to a time limit.

Only :class:`~..backend.Unavailable` is retried: any other error will not go away, or it
is not known what the failed call has written.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.proxy import Around

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Backend

_T = TypeVar("_T")
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0


class Patience:
    """How long and how often a call is repeated.

    Args:
        seconds: no repetition begins later than this after the first call.
        monotonic: seconds that never jump.
        pause: waits for that many seconds.
    """

    def __init__(
        self,
        seconds: float = 120.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._pause = pause

    def call(self, work: Callable[[], _T]) -> _T:
        """Do it until it works.

        Pauses double, and are cut at random so that many nodes do not come at once.

        Raises:
            Unavailable: the time is up.
        """
        end = self._monotonic() + self._seconds
        longest = _FIRST_SECONDS
        while True:
            try:
                return work()
            except Unavailable:
                wait = longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
                if self._monotonic() + wait >= end:
                    raise
                self._pause(wait)
            longest = min(2 * longest, _LONGEST_SECONDS)


class Retrying(Around):
    """A backend whose calls are repeated, those of its writers included."""

    def __init__(self, backend: Backend, patience: Patience) -> None:
        super().__init__(backend, patience.call)
