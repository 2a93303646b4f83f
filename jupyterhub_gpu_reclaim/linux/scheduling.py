"""What the kernel's schedulers know of another's thread, and Python has no call for.

``ioprio_get(2)``, ``sched_getattr(2)`` and ``kcmp(2)``. A thread that has gone is an
OSError.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from jupyterhub_gpu_reclaim.linux import architecture
from jupyterhub_gpu_reclaim.linux.libc import checked

_libc = ctypes.CDLL(None, use_errno=True)

_IOPRIO_WHO_PROCESS: Final = 1  # <linux/ioprio.h>
#: struct sched_attr, its first version (<linux/sched/types.h>): size, policy, flags,
#: nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_RUNTIME: Final = 5
SCHED_DEADLINE: Final = 6
KCMP_VM, KCMP_FILES, KCMP_FS = 1, 2, 3  # <linux/kcmp.h>


def io_priority(tid: int) -> int:
    """Class and level in one number; 0 where none was set."""
    number = architecture.call("ioprio_get")
    return int(checked(_libc.syscall(number, _IOPRIO_WHO_PROCESS, tid), "ioprio_get"))


def set_io_priority(tid: int, value: int) -> None:
    """Set what :func:`io_priority` tells."""
    number = architecture.call("ioprio_set")
    done = _libc.syscall(number, _IOPRIO_WHO_PROCESS, tid, value)
    checked(done, "ioprio_set")


def slice_of(tid: int) -> int:
    """The nanoseconds that it runs for at a time, if it can; 0 for real-time threads.

    It may choose them itself from Linux 6.12 on.
    """
    return int(_attributes(tid)[_RUNTIME])


def set_slice(tid: int, value: int) -> None:
    """Set what :func:`slice_of` tells; all else stays."""
    attributes = _attributes(tid)
    attributes[_RUNTIME] = value
    number = architecture.call("sched_setattr")
    packed = _ATTRIBUTES.pack(*attributes)
    checked(_libc.syscall(number, tid, ctypes.c_char_p(packed), 0), "sched_setattr")


def _attributes(tid: int) -> list[int]:
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = architecture.call("sched_getattr")
    done = _libc.syscall(number, tid, buffer, len(buffer), 0)
    checked(done, "sched_getattr")
    return list(_ATTRIBUTES.unpack(buffer.raw))


def shares(one: int, other: int, kind: int) -> bool:
    """Whether two tasks have that in common: memory, table of files, or folders."""
    number = architecture.call("kcmp")
    return int(checked(_libc.syscall(number, one, other, kind, 0, 0), "kcmp")) == 0
