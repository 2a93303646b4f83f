"""Keeps captures from stopping sessions that the store has no room for.

How much a capture stores is known at its end. So the store takes what comes until
nothing but its reserve is left, and a capture for which that is too little is rolled
back. That costs its user the time in which the session stood still, so a capture is
refused at once where it is known to end so, or could end so because of others:

* there is no room at all;
* captures are under way, and all of them may need more than there is. The first is
  let try, whatever its memory: two that fill the room between them would both be lost;
* it ran out of room before (``would_not_return``).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation

#: No session takes less: CRIU's images of one process, and the manifest.
LEAST_BYTES: Final = 1 << 20


class _Claim(NamedTuple):
    most: int
    taken: Callable[[], int]

    def left(self) -> int:
        return max(0, self.most - self.taken())


class StoreRoom:
    """The room of the store; any thread may call."""

    # ``free``: bytes that captures may still take; None where that cannot be known.

    def __init__(self, free: Callable[[], int | None]) -> None:
        self.free = free
        self._lock = threading.Lock()
        self._claims: dict[Operation, _Claim] = {}

    def findings(self, most: int) -> Iterator[Finding]:
        """Find what is in the way of a capture that stores at most that many bytes."""
        with self._lock:
            short = self._short(most)
        if short:
            yield finding(Reason.STORE_FULL, **short)

    def claim(
        self, operation: Operation, most: int, taken: Callable[[], int] = int
    ) -> None:
        """Let others know of a capture, until it ends or :meth:`release`.

        It may store ``most`` bytes, of which ``taken`` have been dealt with.

        Raises:
            Refused: ``store_full``.
        """
        with self._lock:
            self._claims.pop(operation, None)
            if short := self._short(most):
                raise Refused(Reason.STORE_FULL, **short)
            self._claims[operation] = _Claim(most, taken)

    def release(self, operation: Operation) -> None:
        """The capture stores no more. Idempotent."""
        with self._lock:
            self._claims.pop(operation, None)

    def _short(self, most: int) -> dict[str, Any]:
        """The facts for the refusal; empty when it may be tried."""
        free = self.free()
        if free is None:
            return {}
        if free < LEAST_BYTES:
            return {"needed": f"at least {size(LEAST_BYTES)}", "free": size(free)}
        self._claims = {op: one for op, one in self._claims.items() if not op.done}
        others = sum(one.left() for one in self._claims.values())
        if others and others + most > free:
            needed = f"up to {size(others + most)} (with what is being saved now)"
            return {"needed": needed, "free": size(free)}
        return {}
