"""Reads a stream of buffers like a file, without joining it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BufferReader:
    def __init__(self, buffers: Iterator[bytes | bytearray | memoryview]) -> None:
        self._buffers = buffers
        self._rest = memoryview(b"")

    def has_more(self) -> bool:
        while not self._rest:
            following = next(self._buffers, None)
            if following is None:
                return False
            self._rest = memoryview(following).cast("B")
        return True

    def blocks(self, size: int) -> Iterator[memoryview]:
        """Yield ``size`` bytes, or what is left; each block is void with the next."""
        while size and self.has_more():
            block, self._rest = self._rest[:size], self._rest[size:]
            size -= len(block)
            yield block

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes, or what is left."""
        return b"".join(self.blocks(size))
