"""How much of the store checkpoints keep: shared bytes count once.

A generation needs of an earlier one's bytes at most what those between them need. So of
all that are kept, the one that needs most of them keeps what the others need, too.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo


def keeps(info: CheckpointInfo) -> Mapping[str, int]:
    """Bytes that a checkpoint keeps, by the generation that has written them."""
    return info.keeps or {info.id: info.stored_bytes}


class KeptBytes:
    def __init__(self, all_kept: Iterable[Mapping[str, int]]) -> None:
        #: by generation: how much of its bytes each of them needs, in rising order
        self._needs: dict[str, list[int]] = defaultdict(list)
        for one in all_kept:
            for written_by, size in one.items():
                insort(self._needs[written_by], size)

    @property
    def total(self) -> int:
        return sum(sizes[-1] for sizes in self._needs.values() if sizes)

    def drop(self, one: Mapping[str, int]) -> int:
        """Remove one of the checkpoints; how much that frees."""
        freed = 0
        for written_by, size in one.items():
            sizes = self._needs[written_by]
            before = sizes[-1]
            sizes.remove(size)
            freed += before - (sizes[-1] if sizes else 0)
        return freed


def kept_bytes(infos: Iterable[CheckpointInfo]) -> int:
    return KeptBytes(map(keeps, infos)).total
