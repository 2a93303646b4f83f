"""How long a session's memory takes to move, and the host memory that it moves into.

Naps by what one H200 showed (``benchmarks/gpu_nap.py``, driver 580, one session at a
time; several at once would be slower). Saves and returns by assumed rates near what it
showed, GPU and host memory together.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

GB, GIB = 10**9, 2**30
#: Seconds to make a pod, to begin a save and a return, and bytes per second of each.
POD, SAVE, RETURN = 5.0, 4.0, 3.0
SAVE_RATE, RETURN_RATE = 2.5 * GB, 5.0 * GB
#: GiB of GPU memory, seconds to move it out, and back.
MEASURED = ((0.0, 0.0, 0.0), (4.0, 2.0, 0.9), (16.0, 7.5, 2.6), (64.0, 32.0, 11.8))


def seconds_to_save(count: int) -> float:
    """Of a session with so many bytes of GPU memory."""
    return SAVE + count / SAVE_RATE


def seconds_to_return(count: int) -> float:
    """The same for its return."""
    return RETURN + count / RETURN_RATE


def seconds_out(count: int) -> float:
    """Until so many bytes of GPU memory are host memory."""
    return _between(count / GIB, 1)


def seconds_back(count: int) -> float:
    """The way back."""
    return _between(count / GIB, 2)


def _between(gib: float, column: int) -> float:
    """On the line through the two measurements beside it; beyond, the last line."""
    pairs = list(pairwise(MEASURED))
    at = bisect_left([more[0] for _, more in pairs[:-1]], gib)
    less, more = pairs[at]
    slope = (more[column] - less[column]) / (more[0] - less[0])
    return less[column] + slope * (gib - less[0])


class HostMemory:
    """Memory of the machine, promised before it is used."""

    def __init__(self, count: float) -> None:
        self._all = count
        self._taken: dict[str, int] = {}

    @property
    def free(self) -> float:
        """Bytes."""
        return self._all - sum(self._taken.values())

    def take(self, incarnation: str, count: int) -> bool:
        """Have at least so much; False: there is not. What it has counts."""
        if self.free + self._taken.get(incarnation, 0) < count:
            return False
        self._taken[incarnation] = count
        return True

    def release(self, incarnation: str) -> None:
        """Give all of it back; idempotent."""
        self._taken.pop(incarnation, None)
