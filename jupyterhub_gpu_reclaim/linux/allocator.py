"""The C library's allocator (mallopt(3)), for programs with many threads or buffers."""

from __future__ import annotations

import ctypes

# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def limit_arenas(number: int) -> None:
    """Let all threads share so many heaps; call it before there are any threads.

    By default there are eight for each core, and each keeps what its threads have
    freed: on 16 cores an agent of 290 threads held a gigabyte.
    """
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, number)


def keep_freed(size: int) -> None:
    """Keep up to so many bytes that were freed: buffers do not fault in again."""
    libc = ctypes.CDLL(None)
    for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(option, size)
