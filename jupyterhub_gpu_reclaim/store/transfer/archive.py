"""One checkpoint in one file: the objects as they are, encrypted, behind a table.

``export`` writes and reads it. The table is the only thing that is parsed before
anything is authenticated; it is bounded, its names are confined, and what it names
counts only if the manifest, once it is open, asks for exactly that.

::

    8 bytes   GREXPRT and the format's number, 1
    u32       length of the table, little-endian, at most 16 MiB
    table     JSON: a list of [name, length], the manifest first
    bytes     of each object, one after the other; the file ends with the last
"""

from __future__ import annotations

import os
import re
import struct
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry, ObjectMissing
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.index import damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import Backend, ObjectWriter

_MAGIC = b"GREXPRT\x01"
_LENGTH = struct.Struct("<I")
_MAX_TABLE_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024
_ID = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_OBJECT = re.compile(rf"manifests/{_ID}|packs/{_ID}/([0-9a-f]{{8}}|index)")
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


def write(
    file: BinaryIO,
    manifest: tuple[str, bytes],
    objects: Sequence[Entry],
    source: Backend,
    progress: Callable[[int], None],
) -> None:
    """Write one checkpoint into an open file.

    Args:
        file: empty.
        manifest: its name and bytes.
        objects: all that it needs.
        source: where they stand.
        progress: called with bytes written since the last call.

    Raises:
        StoreError: an object is not there or has another length.
        OSError: the file cannot be written.
    """
    name, data = manifest
    table = msgspec.json.encode([[name, len(data)], *map(list, objects)])
    file.write(_MAGIC + _LENGTH.pack(len(table)) + table + data)
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    for entry in objects:
        done = 0
        while done < entry.length:
            part = buffer[: min(len(buffer), entry.length - done)]
            count = source.read_into(entry.name, done, part)
            if not count:
                raise damaged(f"{entry.name} has not {entry.length} bytes")
            file.write(part[:count])
            progress(count)
            done += count


class Archive:
    """An archive as a backend that can only be read.

    Args:
        file: open; anything may stand in it.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, it is none.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._fd = file.fileno()
        head = os.pread(self._fd, len(_MAGIC) + _LENGTH.size, 0)
        if len(head) != len(_MAGIC) + _LENGTH.size or head[: len(_MAGIC)] != _MAGIC:
            raise damaged("this is no exported session, or of another version")
        (length,) = _LENGTH.unpack(head[len(_MAGIC) :])
        if length > _MAX_TABLE_BYTES:
            raise damaged("its table is too long")
        table = _decode(os.pread(self._fd, length, len(head)))
        at = len(head) + length
        self._at: dict[str, tuple[int, int]] = {}
        for name, size in table:
            if name in self._at:
                raise damaged("its table names an object twice")
            self._at[name] = (at, size)
            at += size
        if os.fstat(self._fd).st_size != at:
            raise damaged("it is cut off, or something was added")
        self.checkpoint = layout.id_of(table[0][0]) or ""
        if table[0][0] != layout.manifest(self.checkpoint):
            raise damaged("its table does not begin with a manifest")

    def entries(self) -> set[Entry]:
        """All objects but the manifest."""
        name = layout.manifest(self.checkpoint)
        return {Entry(n, size) for n, (_, size) in self._at.items() if n != name}

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        buffer = bytearray(max(0, min(length, self.length(name) - offset)))
        count = self.read_into(name, offset, memoryview(buffer))
        return bytes(buffer[:count])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's."""
        at, size = self._find(name)
        wanted = buffer[: max(0, size - offset)]
        done = 0
        while done < len(wanted) and (
            count := os.preadv(self._fd, [wanted[done:]], at + offset + done)
        ):
            done += count
        return done

    def length(self, name: str) -> int:
        """Bytes of that object."""
        return self._find(name)[1]

    def list(self, prefix: str) -> list[Entry]:
        """All objects below that prefix, by name."""
        return sorted(
            Entry(name, size)
            for name, (_, size) in self._at.items()
            if name.startswith(prefix)
        )

    def create(self, name: str) -> ObjectWriter:
        """Nothing is written into a file that is read."""
        raise _only_read(name)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Likewise."""
        del data, needs
        raise _only_read(name)

    def replace(self, name: str, data: bytes) -> None:
        """Likewise."""
        del data
        raise _only_read(name)

    def delete(self, name: str) -> None:
        """Likewise."""
        raise _only_read(name)

    def free_bytes(self) -> int | None:
        """There is none to be used."""
        return 0

    def spec(self) -> None:
        """It is open here only."""
        return

    def _find(self, name: str) -> tuple[int, int]:
        if name not in self._at:
            raise ObjectMissing(name)
        return self._at[name]


def _only_read(name: str) -> StoreError:
    return StoreError(Reason.STORE_FAILED, why=f"{name} stands in a file that is read")


def _decode(data: bytes) -> list[tuple[str, _Size]]:
    try:
        table = msgspec.json.decode(data, type=list[tuple[str, _Size]])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise damaged("its table cannot be read") from None
    if not table or not all(_OBJECT.fullmatch(name) for name, _ in table):
        raise damaged("its table names what is no part of a saved session")
    return table
