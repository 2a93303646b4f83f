"""Offers CRIU's images, as a checkpoint holds them, to the restore of a tree.

It lives for one operation. It counts what has been read, for the progress page; an
image that was rewritten for this place is given instead of the saved one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.node.operations import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.memory.pages import Piece, Range, Stop
    from jupyterhub_gpu_reclaim.store.checkpoint import CheckpointReader


class SavedImages:
    """A source of images (``checkpoint.memory.pages.Source``).

    Args:
        checkpoint: where they stand.
        rewritten: images by their names, as they are to be given.
    """

    def __init__(
        self, checkpoint: CheckpointReader, rewritten: Mapping[str, bytes]
    ) -> None:
        self._checkpoint = checkpoint
        self._rewritten = rewritten
        self._lock = threading.Lock()
        #: Bytes handed out or written so far.
        self.bytes = 0

    def size(self, name: str) -> int | None:
        """See ``Source``."""
        if name in self._rewritten:
            return len(self._rewritten[name])
        stored = checkpoint_files.IMAGES + name
        return self._checkpoint.size(stored) if stored in self._checkpoint else None

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """See ``Source``."""
        if name in self._rewritten:
            return [self._rewritten[name]]
        return self._counted(
            self._checkpoint.stream(checkpoint_files.IMAGES + name, skip=skip)
        )

    def copy(self, name: str, pieces: Sequence[Piece], stop: Stop) -> None:
        """See ``Source``."""
        self._checkpoint.copy_to(
            checkpoint_files.IMAGES + name,
            pieces,
            cancelled=lambda: stop.is_set,
            progress=self._count,
        )

    def _count(self, number: int) -> None:
        with self._lock:
            self.bytes += number

    def _counted(
        self, buffers: Iterable[bytes | bytearray | memoryview]
    ) -> Iterator[memoryview]:
        for buffer in buffers:
            yield memoryview(buffer)
            self._count(len(buffer))
