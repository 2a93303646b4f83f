"""CRIU's images as a checkpoint holds them, for the engine's restore.

Made by ``restore`` for one operation. It counts what has been read, for the progress
page; the list of open files is given as it was rewritten for this place.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.agent import saved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.engine.pages import Piece, Range, Stop
    from jupyterhub_gpu_reclaim.store.checkpoint import Checkpoint


class SavedImages:
    """A source of images (``engine.pages.Source``).

    Args:
        checkpoint: where they stand.
        files: CRIU's list of open files, rewritten.
    """

    def __init__(self, checkpoint: Checkpoint, files: bytes) -> None:
        self._checkpoint = checkpoint
        self._files = files
        self._lock = threading.Lock()
        #: Bytes handed out or written so far.
        self.bytes = 0

    def size(self, name: str) -> int | None:
        """See ``Source``."""
        stored = saved.IMAGES + name
        if stored == saved.FILES_IMAGE:
            return len(self._files)
        return self._checkpoint.size(stored) if stored in self._checkpoint else None

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """See ``Source``."""
        stored = saved.IMAGES + name
        if stored == saved.FILES_IMAGE:
            return [self._files]
        return self._counted(_less(self._checkpoint.stream(stored), skip))

    def copy(self, name: str, pieces: Sequence[Piece], stop: Stop) -> None:
        """See ``Source``."""
        at, todo = 0, list(pieces)
        with open(f"/proc/{pieces[0].pid}/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            for chunk in self._checkpoint.stream(saved.IMAGES + name):
                if stop.is_set:
                    raise InterruptedError
                view = memoryview(chunk)
                while todo and todo[0].offset < at + len(view):
                    piece = todo[0]
                    low = max(piece.offset, at)
                    high = min(piece.offset + piece.length, at + len(view))
                    memory.seek(piece.address + low - piece.offset)
                    memory.write(view[low - at : high - at])
                    self._count(high - low)
                    if high < piece.offset + piece.length:
                        break
                    todo.pop(0)
                at += len(view)

    def _count(self, number: int) -> None:
        with self._lock:
            self.bytes += number

    def _counted(self, buffers: Iterable[memoryview]) -> Iterator[memoryview]:
        for buffer in buffers:
            yield buffer
            self._count(len(buffer))


def _less(
    buffers: Iterable[bytes | bytearray | memoryview], skip: Sequence[Range]
) -> Iterator[memoryview]:
    """The bytes without those ranges."""
    at, todo = 0, list(skip)
    for buffer in buffers:
        view = memoryview(buffer)
        low, end = at, at + len(view)
        while todo and todo[0].offset < end:
            hole = todo[0]
            if hole.offset > low:
                yield view[low - at : hole.offset - at]
            low = max(low, min(hole.offset + hole.length, end))
            if hole.offset + hole.length > end:
                break
            todo.pop(0)
        if low < end:
            yield view[low - at :]
        at = end
