"""A file's status as the kernel knows it, without asking the file's server.

stat(2) of a file of a FUSE or network file system waits for its server: a program of
the user's that may never answer, or that is stopped. statx(2) can skip that; its result
may be old.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD, checked

_libc = ctypes.CDLL(None, use_errno=True)
_DONT_SYNC: Final = 0x4000
_BASIC: Final = 0x7FF
#: ``struct statx`` (linux/stat.h): links, uid, gid, mode, inode, size, blocks, the
#: seconds and nanoseconds of three times, and the numbers of two devices.
_STATX: Final = struct.Struct("=16xIIIH2xQQQ8xqI4x16xqI4xqI4xIIII112x")


def cached_status(path: str) -> os.stat_result:
    """As stat(2), from the kernel's cache.

    Raises:
        OSError: as stat(2) does.
    """
    buffer = ctypes.create_string_buffer(_STATX.size)
    where = os.fsencode(path)
    checked(_libc.statx(AT_FDCWD, where, _DONT_SYNC, _BASIC, buffer), "statx")
    links, uid, gid, mode, inode, size, blocks, *rest = _STATX.unpack(buffer.raw)
    accessed, accessed_ns, changed, changed_ns, modified, modified_ns, *devices = rest
    special, device = os.makedev(*devices[:2]), os.makedev(*devices[2:])
    numbers = (mode, inode, device, links, uid, gid, size, accessed, modified, changed)
    more = {
        "st_atime_ns": accessed * 10**9 + accessed_ns,
        "st_mtime_ns": modified * 10**9 + modified_ns,
        "st_ctime_ns": changed * 10**9 + changed_ns,
        "st_blocks": blocks,
        "st_rdev": special,
    }
    return os.stat_result(numbers, more)
