"""Reserves host memory for operations before they use any of it.

A capture moves a GPU's memory into the machine's, a restore loads all of a session's
memory there. Taking more than there is makes the kernel kill a process, not necessarily
one that took it. So an operation reserves first, and is refused with what is missing.
Free is what the machine has (``MemAvailable``) and what is left below every memory
limit above a session, a slice's for example, except for limits that are lifted for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.linux import cgroups
from jupyterhub_gpu_reclaim.node.operations.promises import Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord

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


class HostMemory(Promises[Need]):
    reason = Reason.NOT_ENOUGH_MEMORY

    def _short(self, need: Need, others: Sequence[Need]) -> dict[str, Any]:
        if not need.bytes:
            return {}
        promised = [(each.left(), each.headroom()) for each in others if each.bytes]
        machine = _available()
        free = {} if machine is None else {"": machine - RESERVE_BYTES}
        free |= need.headroom()
        for place, count in free.items():
            left = count - sum(
                bytes_left
                for bytes_left, places in promised
                if not place or place in places
            )
            if left < need.bytes:
                return {
                    "where": _LIMITED if place else _MACHINE,
                    "needed": size(need.bytes),
                    "free": size(max(0, left)),
                    "missing": size(need.bytes - max(0, left)),
                }
        return {}


def _available() -> int | None:
    """Bytes that programs can take without others losing any; None if unknown."""
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
