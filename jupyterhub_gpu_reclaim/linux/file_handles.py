"""The kernel's own names for files, which last as long as these (open_by_handle_at).

A handle leads to one file whatever it is called, and to none once that file is gone:
another one that got its number has another handle. Not every file system has them
(overlays and FUSE mostly do not). To open one takes CAP_DAC_READ_SEARCH.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final, NamedTuple, Self

from jupyterhub_gpu_reclaim.linux.libc import checked

MAX_BYTES: Final = 128  # MAX_HANDLE_SZ of <fcntl.h>
_AT_EMPTY_PATH: Final = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint),
        ("kind", ctypes.c_int),
        ("data", ctypes.c_ubyte * MAX_BYTES),
    )


class FileHandle(NamedTuple):
    """A file handle: its type, and its bytes, which only the kernel understands."""

    kind: int
    data: bytes

    def packed(self) -> bytes:
        """Pack the handle as bytes, for :meth:`unpacked`."""
        return self.kind.to_bytes(4, "little", signed=True) + self.data

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Unpack what :meth:`packed` gave."""
        return cls(int.from_bytes(data[:4], "little", signed=True), data[4:])


def handle_of(descriptor: int) -> FileHandle | None:
    """Handle of an open file; None where its file system has none."""
    handle, mount = _Handle(size=MAX_BYTES), ctypes.c_int()
    answer = _libc.name_to_handle_at(
        descriptor, b"", ctypes.byref(handle), ctypes.byref(mount), _AT_EMPTY_PATH
    )
    if answer < 0:
        return None
    return FileHandle(handle.kind, bytes(handle.data[: handle.size]))


def open_handle(mount: int, handle: FileHandle) -> int:
    """The file, opened by name only (O_PATH).

    Args:
        mount: a descriptor of anything on that file system, not of O_PATH.
        handle: which file.

    Raises:
        OSError: as ``open`` does; ESTALE when there is no such file any more.
    """
    given = _Handle(len(handle.data), handle.kind)
    ctypes.memmove(given.data, handle.data, min(len(handle.data), MAX_BYTES))
    flags = os.O_PATH | os.O_CLOEXEC
    return checked(_libc.open_by_handle_at(mount, ctypes.byref(given), flags))
