"""The files in a checkpoint: names, descriptions, CRIU's images. It writes nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, RestoreFailed
from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.requirements import HostRequirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.saved_images import Piece, Range
    from jupyterhub_gpu_reclaim.store.checkpoint import CheckpointReader

#: CRIU's image files stand below this.
IMAGES: Final = "criu/"
#: The login of the session: ``common.models.Identity``.
IDENTITY = "identity.json"
#: Requirements for the place where it comes back: ``requirements.HostRequirements``.
WORLD = "world.json"
FILES_IMAGE = f"{IMAGES}files.img"
#: Archives of private file systems, numbered as in ``HostRequirements.archives``.
ARCHIVE = "archive/{number}.tar"


class CheckpointContents:
    """Contents of a checkpoint, read once.

    Raises:
        NotFound: there is no such checkpoint.
        RestoreFailed: it is damaged.
        BadRequest: ``other_version``.
    """

    def __init__(self, checkpoint: CheckpointReader) -> None:
        self.checkpoint = checkpoint
        try:
            self.world = codec.decode_kept(
                checkpoint.read(WORLD), HostRequirements, "The checkpoint"
            )
            self.identity = codec.decode(checkpoint.read(IDENTITY), Identity)
        except BadRequest as error:
            if error.reason is Reason.OTHER_VERSION:
                raise
            why = "its description cannot be read"
            raise RestoreFailed(
                Reason.CHECKPOINT_DAMAGED, why=why, detail=str(error)
            ) from None


class CheckpointImages:
    """CRIU's images in a checkpoint (``ImageSource``), for one operation."""

    def __init__(self, checkpoint: CheckpointReader) -> None:
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self.bytes = 0  #: handed out or written so far

    def size(self, name: str) -> int | None:
        stored = IMAGES + name
        return self._checkpoint.size(stored) if stored in self._checkpoint else None

    def stream(self, name: str, skip: Sequence[Range] = ()) -> Iterator[memoryview]:
        for buffer in self._checkpoint.stream(IMAGES + name, skip=skip):
            yield memoryview(buffer)
            self._count(len(buffer))

    def copy(
        self, pieces: Mapping[str, Sequence[Piece]], cancelled: Callable[[], bool]
    ) -> None:
        self._checkpoint.copy_to(
            {IMAGES + name: of_it for name, of_it in pieces.items()},
            cancelled=cancelled,
            progress=self._count,
        )

    def _count(self, number: int) -> None:
        with self._lock:
            self.bytes += number
