"""Keeps captures from stopping sessions that the store has no room for.

How much a capture stores is known at its end. So the store takes what comes until
nothing but its reserve is left, and a capture for which that is too little is rolled
back. That costs its user the time in which the session stood still, so a capture is
refused at once where it is known to end so, or could end so because of others:

* there is no room at all;
* captures are under way, and all of them may need more than there is. The first is
  let try, whatever its memory: two that fill the room between them would both be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.node.operations.promises import Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: No session takes less: CRIU's images of one process, and the manifest.
LEAST_BYTES: Final = 1 << 20


class StoreNeed(NamedTuple):
    most: int  #: bytes that a capture may store
    taken: Callable[[], int] = int  #: how many of them have been dealt with

    def left(self) -> int:
        return max(0, self.most - self.taken())


class StoreRoom(Promises[StoreNeed]):
    """``free``: bytes that captures may still take; None: that cannot be known."""

    reason = Reason.STORE_FULL

    def __init__(self, free: Callable[[], int | None]) -> None:
        super().__init__()
        self.free = free

    def _short(self, need: StoreNeed, others: Sequence[StoreNeed]) -> dict[str, Any]:
        free = self.free()
        if free is None:
            return {}
        if free < LEAST_BYTES:
            return {"needed": f"at least {size(LEAST_BYTES)}", "free": size(free)}
        beside = sum(one.left() for one in others)
        if beside and beside + need.most > free:
            needed = f"up to {size(beside + need.most)} (with what is being saved now)"
            return {"needed": needed, "free": size(free)}
        return {}
