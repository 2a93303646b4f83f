"""Reads only the parts of a file that hold data, and reports where its holes are.

A shared memory file may be a thousand times longer than what was ever written to it;
neither the stream nor the restored file should be.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.archive.tarformat import BLOCK_BYTES

if TYPE_CHECKING:
    from typing import BinaryIO

#: A file in more pieces is read whole: their list stands in one header.
_MAX_EXTENTS: Final = 4096


class Content:
    """The data of a file, part after part; what vanished meanwhile reads as zeros."""

    def __init__(self, file: BinaryIO, parts: list[tuple[int, int]]) -> None:
        self._file = file
        self._parts = parts[::-1]
        self._seek()

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """The next bytes, over the borders of the parts."""
        out = bytearray()
        while len(out) < size and self._parts:
            start, length = self._parts.pop()
            wanted = min(length, size - len(out))
            data = self._file.read(wanted)
            out += data.ljust(wanted, b"\0")
            if wanted < length:
                self._parts.append((start + wanted, length - wanted))
            self._seek()
        return bytes(out)

    def _seek(self) -> None:
        if self._parts:
            self._file.seek(self._parts[-1][0])


def open_again(entry: int) -> BinaryIO:
    """An O_PATH descriptor of a regular file, opened for reading."""
    return Path(f"/proc/self/fd/{entry}").open("rb", buffering=0)


def extents(file: BinaryIO, size: int) -> list[tuple[int, int]] | None:
    """Where a file has data, as (offset, length); None when it has no holes."""
    if os.fstat(file.fileno()).st_blocks * 512 >= size:
        return None
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return found  # nothing but a hole up to the end
            return None
        at = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), size)
        found.append((start, at - start))
        if len(found) > _MAX_EXTENTS:
            return None
    return found
