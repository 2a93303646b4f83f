"""The kernel's own names for files, which last as long as these (open_by_handle_at).

A handle leads to one file under any name, and to none once that file is gone: another
one that got its number has another handle. Not every file system has them (overlays and
FUSE mostly do not). Opening one takes CAP_DAC_READ_SEARCH.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

MAX_BYTES: Final = 128  # MAX_HANDLE_SZ of <fcntl.h>
_HEAD: Final = struct.Struct("=Ii")  #: ``struct file_handle``: size and type


class FileHandle(NamedTuple):
    """A file handle: its type, and its bytes, which only the kernel understands."""

    kind: int
    data: bytes


def open_handle(mount: int, handle: FileHandle) -> int:
    """The file, opened by name only (O_PATH).

    ``mount`` is a descriptor of anything on that file system, not of O_PATH.

    Raises:
        OSError: as ``open`` does; ESTALE if there is no such file any more.
    """
    given = _HEAD.pack(len(handle.data), handle.kind) + handle.data
    flags = os.O_PATH | os.O_CLOEXEC
    return checked(libc.open_by_handle_at(mount, given, flags))
