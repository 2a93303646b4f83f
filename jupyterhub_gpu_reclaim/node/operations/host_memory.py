"""Promises host memory to operations before they use any of it (law 11).

A capture moves a GPU's memory into the machine's, a restore loads all of a session's
memory there. Taking more than there is makes the kernel kill a process, not necessarily
one that took it. So an operation reserves first, and is refused with what is missing.
A promise lives as long as its operation, however that ends; what is promised and not
yet used counts as gone for all others.
Free is what the machine has (``MemAvailable``) and what is left below every memory
limit above a session, a slice's for example, except for limits that are lifted for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.linux import cgroups, procfs

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation

T = TypeVar("T")

MEMINFO = Path("/proc/meminfo")
#: Left free beside all promises: the agent's own buffers, and programs that grow.
RESERVE_BYTES: Final = 256 << 20
_MACHINE: Final = "on the machine"
_LIMITED: Final = "below its memory limit, or one that it shares"


@dataclass(frozen=True, slots=True)
class Need:
    """The host memory that an operation is going to use."""

    bytes: int  #: at most, beside what is in use when it begins
    init_pid: int  #: of the session, whose control groups limit it
    lifted: LimitRecord | None = None  #: limits of theirs that are taken off meanwhile
    taken: Callable[[], int] = int  #: how much of it is in use by now

    def headroom(self) -> dict[str, int]:
        return cgroups.headroom(self.init_pid, self.lifted)

    def left(self) -> int:
        """Bytes that may still be used. What is unknown counts as not used."""
        try:
            taken = self.taken()
        except (ReclaimError, OSError):
            taken = 0
        return max(0, self.bytes - max(0, taken))


class HostMemory:
    """Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promises: dict[Operation, Need] = {}

    def promise(self, operation: Operation, need: Need) -> None:
        """Keep that much for the operation, until it ends or :meth:`release`.

        Raises:
            Refused: it is not there; nothing is kept.
        """
        with self._lock:
            self._promises.pop(operation, None)
            self._refuse(need)
            self._promises[operation] = need

    def grant(self, need: Need, take: Callable[[], T]) -> T:
        """Have something taken that was not promised; nobody is promised it meanwhile.

        Raises:
            Refused: it is not there; nothing is taken.
        """
        with self._lock:
            self._refuse(need)
            return take()

    def release(self, operation: Operation) -> None:
        """Drop a promise: the operation uses it, or needs no more of it. Idempotent."""
        with self._lock:
            self._promises.pop(operation, None)

    def _refuse(self, need: Need) -> None:
        """Check that it is there; Refused: it is not."""
        self._promises = {op: one for op, one in self._promises.items() if not op.done}
        if not need.bytes:
            return
        others = [each for each in self._promises.values() if each.bytes]
        promised = [(each.left(), each.headroom()) for each in others]
        free = {"": _available() - RESERVE_BYTES, **need.headroom()}
        for place, count in free.items():
            left = count - sum(
                bytes_left
                for bytes_left, places in promised
                if not place or place in places
            )
            if left < need.bytes:
                raise Refused(
                    Reason.NOT_ENOUGH_MEMORY,
                    where=_LIMITED if place else _MACHINE,
                    needed=size(need.bytes),
                    free=size(max(0, left)),
                    missing=size(need.bytes - max(0, left)),
                )


def _available() -> int:
    """Bytes that programs can take without others losing any."""
    told = procfs.fields(MEMINFO.read_text(encoding="ascii"))
    return int(told["MemAvailable"].split()[0]) * 1024
