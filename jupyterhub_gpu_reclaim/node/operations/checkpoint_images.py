"""CRIU's images in a checkpoint of the store, as streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import Piece, Range, StopSignal
    from jupyterhub_gpu_reclaim.store.checkpoint import CheckpointReader

#: CRIU's image files stand below this.
IMAGES: Final = "criu/"


class CheckpointImages:
    """CRIU's images in a checkpoint (``memory.plan.ImageSource``), for one operation.

    Attributes:
        bytes: handed out or written so far.
    """

    def __init__(self, checkpoint: CheckpointReader) -> None:
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self.bytes = 0

    def size(self, name: str) -> int | None:
        """See ``ImageSource``."""
        stored = IMAGES + name
        return self._checkpoint.size(stored) if stored in self._checkpoint else None

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """See ``ImageSource``."""
        return self._counted(self._checkpoint.stream(IMAGES + name, skip=skip))

    def copy(self, name: str, pieces: Sequence[Piece], stop: StopSignal) -> None:
        """See ``ImageSource``."""
        self._checkpoint.copy_to(
            IMAGES + name,
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
