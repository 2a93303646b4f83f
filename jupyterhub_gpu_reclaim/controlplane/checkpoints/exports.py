"""Hands a checkpoint out as a file, piece by piece, as fast as its reader takes them.

The file is the one that ``store export`` writes and ``store import`` reads. Its
beginning names every object with its length, and the passphrase opens the manifest,
which names them once more: a file that is cut or changed is refused. Nothing here opens
anything: the objects pass through encrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import EXPORT_PIECE
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from jupyterhub_gpu_reclaim.common.models import ExportHead
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent


class Export:
    """A checkpoint as a file.

    Args:
        agent: reads the objects.
        checkpoint: its id.
        head: the beginning of the file.
    """

    def __init__(self, agent: Agent, checkpoint: str, head: ExportHead) -> None:
        self._agent = agent
        self._checkpoint = checkpoint
        self._head = head

    @property
    def length(self) -> int:
        """Length of the whole file in bytes."""
        return self._head.length

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the file from its beginning; nothing is read before it is asked for.

        Raises:
            Unreachable: no agent answers any more.
            NotFound: the checkpoint was deleted meanwhile.
            StoreError: it cannot be read.
        """
        yield self._head.data
        for name, length in self._head.objects:
            for offset in range(0, length, EXPORT_PIECE):
                wanted = min(EXPORT_PIECE, length - offset)
                piece = await self._agent.exported(
                    self._checkpoint, name, offset, wanted
                )
                if len(piece) != wanted:
                    why = f"{name} has not {length} bytes"
                    raise StoreError(Reason.CHECKPOINT_DAMAGED, why=why)
                yield piece
