"""Calls of the C library by ctypes: their errors, and its allocator (mallopt(3))."""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: The C library; what its calls return goes through :func:`checked`.
libc = ctypes.CDLL(None, use_errno=True)
#: The working directory, where a call wants a folder's descriptor; <linux/fcntl.h>.
AT_FDCWD: Final = -100
# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def checked(result: int, *name: str) -> int:
    """The result of a call of ``libc``; a negative one is an error, which it names."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *name)
    return result


def limit_arenas(number: int) -> None:
    """Let all threads share so many heaps; call it before there are any threads.

    By default there are eight for each core, and each keeps what its threads have
    freed: on 16 cores an agent of 290 threads held a gigabyte.
    """
    libc.mallopt(_M_ARENA_MAX, number)


def keep_freed(size: int) -> None:
    """Keep up to so many bytes that were freed: buffers do not fault in again."""
    for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(option, size)
