"""Reads a store, or a part of it, and reports damage.

Manifests and indexes of all checkpoints are opened each time; of the packs only those
that belong to the part are read. A block that several generations need is read once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.checkpoint import Damage
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.layout import ALL, Subset

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.repository import Repository

#: Faults of a checkpoint; all others are faults of the store.
_DAMAGE = {
    Reason.CHECKPOINT_DAMAGED,
    Reason.CHECKPOINT_MISSING,
    Reason.KEY_MISSING,
    Reason.OTHER_VERSION,
}


@dataclass
class Verification:
    repository: Repository
    part: Subset = ALL
    bytes: int = 0  #: that were read and authenticated
    #: Blocks that were read and are whole, by pack and number; of a part only, since
    #: they are as many as the store is large.
    _whole: set[tuple[str, int]] = field(default_factory=set)

    def check(
        self, checkpoint: str, progress: Callable[[int, int], None] | None = None
    ) -> list[Damage]:
        """Read the packs of one checkpoint that belong to the part; return the damage.

        ``progress`` gets blocks done and blocks in all. StoreError: the store does not
        work, which says nothing of the checkpoint.
        """
        # None of one that was deleted meanwhile: its manifest goes first.
        found = self._look(checkpoint, progress)
        if found and not self.repository.exists(checkpoint):
            return []
        return found

    def _look(
        self, checkpoint: str, progress: Callable[[int, int], None] | None
    ) -> list[Damage]:
        whole = self._whole if self.part.of > 1 else None
        try:
            reader = self.repository.open(checkpoint)
            problems = reader.verify(progress, part=self.part, whole=whole)
            problems += self.repository.mark_damage(checkpoint)
        except (StoreError, NotFound) as error:
            if isinstance(error, Unavailable) or error.reason not in _DAMAGE:
                raise
            name = layout.manifest(checkpoint)
            code = error.reason.value
            return [Damage(checkpoint, "", name, error.message, code)]
        self.bytes += reader.verified_bytes
        return problems
