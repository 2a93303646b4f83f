"""Fills a pack writer's buffers, and copies only what does not fill one itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.store.packing.pack_writer import BUFFER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Buffer


class BufferCutter:
    """Cuts its input into buffers and passes each to ``emit``.

    It gets the buffer, filled up to whole chunks with zeros, and how many of its bytes
    are the file's; the view is valid only until it returns.
    """

    def __init__(
        self, emit: Callable[[memoryview, int], None], chunk_bytes: int
    ) -> None:
        self._emit = emit
        self._chunk = chunk_bytes
        # Most files are small: the buffer grows with what comes.
        self._rest = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._rest

    def feed(self, data: Buffer) -> None:
        """Take all of it, and emit every buffer that is full by now."""
        view = memoryview(data).cast("B")
        while len(view):
            if not self._rest and len(view) >= BUFFER_BYTES:
                self._emit(view[:BUFFER_BYTES], BUFFER_BYTES)
                view = view[BUFFER_BYTES:]
                continue
            take = BUFFER_BYTES - len(self._rest)
            self._rest += view[:take]
            view = view[take:]
            if len(self._rest) == BUFFER_BYTES:
                self.flush()

    def flush(self) -> None:
        """Emit the rest, a shorter buffer."""
        rest, self._rest = self._rest, bytearray()
        if rest:
            length = len(rest)
            rest.extend(bytes(-length % self._chunk))
            self._emit(memoryview(rest), length)
