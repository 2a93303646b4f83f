"""Copies descriptors that another process holds: pidfd_getfd(2), Linux 5.6.

The copy of a socket is the same socket: an option set on it holds for the other
process, too. The caller needs the right to trace that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYS_PIDFD_GETFD: Final = 438  #: the same on all architectures


def copied(pidfd: int, descriptor: int) -> int:
    """A copy of the process's descriptor, which the caller closes.

    Raises:
        OSError: the process has ended, has no such descriptor, or may not be traced.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    copy = int(libc.syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0))
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "pidfd_getfd")
    return copy


@contextlib.contextmanager
def borrow(pidfd: int, descriptor: int) -> Iterator[socket.socket]:
    """A copy of the process's socket, closed at the end; raises as ``copied``."""
    with socket.socket(fileno=copied(pidfd, descriptor)) as end:
        yield end
