"""Scheduling calls about other threads that Python does not have.

``ioprio_get(2)``, ``sched_getattr(2)`` and ``kcmp(2)``. A thread that has gone is an
OSError.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import architecture
from jupyterhub_gpu_reclaim.linux.libc import checked

if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

IOPRIO_WHO_PROCESS: Final = 1  # <linux/ioprio.h>
#: struct sched_attr, its first version (<linux/sched/types.h>): size, policy, flags,
#: nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_RUNTIME: Final = 5
SCHED_DEADLINE: Final = 6
KCMP_VM, KCMP_FILES, KCMP_FS = 1, 2, 3  # <linux/kcmp.h>


def io_priority(tid: int) -> int:
    """Class and level in one number; 0 if none was set."""
    number = architecture.call("ioprio_get")
    return int(checked(_libc.syscall(number, IOPRIO_WHO_PROCESS, tid), "ioprio_get"))


def set_io_priority(tid: int, value: int) -> None:
    number = architecture.call("ioprio_set")
    done = _libc.syscall(number, IOPRIO_WHO_PROCESS, tid, value)
    checked(done, "ioprio_set")


def slice_of(tid: int) -> int:
    """The nanoseconds that it runs for at a time, if it can; 0 for real-time threads.

    It may choose them itself from Linux 6.12 on.
    """
    return int(_attributes(tid)[_RUNTIME])


def with_slice(tid: int, value: int) -> bytes:
    """The ``struct sched_attr`` that gives it that slice; all else stays."""
    attributes = _attributes(tid)
    attributes[_RUNTIME] = value
    return _ATTRIBUTES.pack(*attributes)


def set_slice(tid: int, value: int) -> None:
    number = architecture.call("sched_setattr")
    packed = with_slice(tid, value)
    checked(_libc.syscall(number, tid, ctypes.c_char_p(packed), 0), "sched_setattr")


def _attributes(tid: int) -> list[int]:
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = architecture.call("sched_getattr")
    done = _libc.syscall(number, tid, buffer, len(buffer), 0)
    checked(done, "sched_getattr")
    return list(_ATTRIBUTES.unpack(buffer.raw))


def shares(one: int, other: int, kind: int) -> bool:
    """Whether two tasks share that: memory, table of files, or folders."""
    return _compared(one, other, kind) == 0


def sharers(tids: Iterable[int], kind: int) -> list[tuple[int, int]]:
    """Pairs of those tasks that share that; one that has ended shares nothing.

    The kernel puts any two in an order, so not every pair has to be asked for.
    """

    def order(one: int, other: int) -> int:
        try:
            return (0, -1, 1)[_compared(one, other, kind)]
        except OSError:
            return -1

    ranked = sorted(tids, key=functools.cmp_to_key(order))
    return [pair for pair in itertools.pairwise(ranked) if order(*pair) == 0]


def _compared(one: int, other: int, kind: int) -> int:
    number = architecture.call("kcmp")
    return int(checked(_libc.syscall(number, one, other, kind, 0, 0), "kcmp"))
