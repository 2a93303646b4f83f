"""The dedup index: ids of the chunks of a session's last generation.

Built when a checkpoint is begun, and never changed; workers map the same memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex

#: A pack of whose bytes less is used is left to die.
LIVE_SHARE = 0.25


class DedupIndex:
    """A sorted table of ids.

    Its shape is (3, n): first halves of the ids in rising order, second halves, refs in
    the index that they come from.
    """

    def __init__(self, table: NDArray[np.uint64]) -> None:
        self.table = table
        self._first, self._second, self._refs = table

    def __len__(self) -> int:
        return len(self._first)

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each id (shape (k, 2)) the ref of its chunk, or 0."""
        if not len(self):
            return np.zeros(len(ids), np.int64)
        at = np.searchsorted(self._first, ids[:, 0])
        at[at == len(self)] = 0
        # Where first halves collide only the first is found: the chunk is stored again.
        same = (self._first[at] == ids[:, 0]) & (self._second[at] == ids[:, 1])
        return np.where(same, self._refs[at].astype(np.int64), 0)


def of_index(index: ChunkIndex, packs: Sequence[int]) -> DedupIndex:
    """Index of the chunks of a committed generation, and its packs' lengths."""
    live = index.live()
    wanted = _in_live_packs(index, live, packs)
    table = np.empty((3, np.count_nonzero(wanted)), np.uint64)
    # There may be millions: nothing is held that is not needed any more.
    table[2] = live[wanted]
    del live
    firsts = index.ids[wanted, 0]
    order = np.argsort(firsts)
    np.take(firsts, order, out=table[0])
    del firsts
    table[1] = index.ids[wanted, 1][order]
    table[2] = table[2][order]
    return DedupIndex(table)


def _in_live_packs(
    index: ChunkIndex, refs: NDArray[np.int64], packs: Sequence[int]
) -> NDArray[np.bool_]:
    """Mask of the refs in packs that are used enough."""
    if not len(refs):
        return np.zeros(0, np.bool_)
    rows = index.blocks
    blocks = index.blocks_of(refs)
    used = np.bincount(blocks, minlength=len(rows)) / rows["chunks"] * rows["stored"]
    per_pack = np.bincount(rows["pack"], weights=used, minlength=len(packs))
    alive = per_pack >= LIVE_SHARE * np.array(packs)
    found: NDArray[np.bool_] = alive[rows["pack"][blocks]]
    return found
