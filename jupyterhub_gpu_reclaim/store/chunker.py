"""A stream of buffers of any size into chunks of one size.

Called by the writer of one file, from one thread. It copies only what does not fill a
chunk by itself, and knows nothing of what becomes of a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Buffer

#: A multiple of every page size up to 64 KiB, so that an unchanged page is always at
#: the same place of its chunk.
CHUNK_BYTES = 256 * 1024


class Chunker:
    """Cuts what it is fed into chunks and hands each to ``emit``.

    Args:
        emit: is given each chunk; the view is valid only until it returns.
        chunk_bytes: size of every chunk but the last.
    """

    def __init__(
        self, emit: Callable[[memoryview], None], chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._emit = emit
        self._size = chunk_bytes
        self._rest = bytearray(chunk_bytes)
        self._filled = 0

    def feed(self, data: Buffer) -> None:
        """Take all of it, and emit every chunk that is full by now."""
        view = memoryview(data).cast("B")
        if self._filled:
            view = self._fill(view)
        while len(view) >= self._size:
            self._emit(view[: self._size])
            view = view[self._size :]
        if view:
            self._fill(view)

    def flush(self) -> None:
        """Emit what is left, a chunk that is shorter than the others."""
        if self._filled:
            filled, self._filled = self._filled, 0
            self._emit(memoryview(self._rest)[:filled])

    def _fill(self, view: memoryview) -> memoryview:
        """Add to the unfinished chunk; the part that did not fit."""
        take = min(len(view), self._size - self._filled)
        self._rest[self._filled : self._filled + take] = view[:take]
        self._filled += take
        if self._filled == self._size:
            self.flush()
        return view[take:]
