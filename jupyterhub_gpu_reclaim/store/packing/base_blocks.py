"""The last generation's chunks by their ids, and its blocks, opened before any is used.

That a pack has the right name and length says nothing about its contents. So a block is
read and opened, once per capture, before it is referenced; if it is damaged, it is
forgotten, and its chunks are stored again while they are at hand. A capture that
references everything thus reads as much as one that references nothing (law 1).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.packing.blocks import Blocks, BlockSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

#: A pack of whose bytes less is used is left to die.
LIVE_SHARE = 0.25


class DedupIndex:
    def __init__(self, table: NDArray[np.uint64]) -> None:
        #: Shape (3, n): first halves of the ids in rising order, second halves, refs in
        #: the index that they come from.
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


def dedup_index(index: ChunkIndex, packs: Sequence[int]) -> DedupIndex:
    """Index of the chunks of a committed generation, and its packs' lengths."""
    live = index.live()
    wanted = _in_live_packs(index, live, packs)
    table = np.empty((3, np.count_nonzero(wanted)), np.uint64)
    # There may be millions: nothing is held that is not needed any more.
    table[2] = live[wanted]
    del live
    firsts = index.ids[wanted, 0]
    # Of copies the first is found: what was read in order is read in order again.
    order = np.argsort(firsts, kind="stable")
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


class Verdict(IntEnum):
    UNSEEN = 0
    WHOLE = 1
    DAMAGED = 2  #: or it cannot be read


#: Verdicts where nothing may be referenced.
NO_VERDICTS = np.zeros(0, np.uint8)


class BaseBlocks(NamedTuple):
    """Blocks that may be referenced; the same for all pack writers of a checkpoint."""

    body: Body
    table: NDArray[Any]  #: of ``index.BLOCKS``, checked
    known: DedupIndex

    def verdicts(self) -> NDArray[np.uint8]:
        return np.zeros(len(self.table), np.uint8)


class BaseChunks:
    """Finds known chunks; for one thread."""

    # Other threads and processes may write into ``verdicts``, too.

    def __init__(
        self,
        backend: Backend,
        base: BaseBlocks,
        verdicts: NDArray[np.uint8],
    ) -> None:
        self._base = base
        self._verdicts = verdicts
        self._blocks = Blocks(BlockSource(backend, base.body, base.table))
        self._ends = np.cumsum(base.table["chunks"], dtype=np.int64)

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each id the ref of its chunk in a block that is whole, or 0."""
        # Unavailable: the store does not answer, which says nothing of the blocks.
        refs = self._base.known.find(ids)
        some = np.flatnonzero(refs)
        blocks = np.searchsorted(self._ends, refs[some])
        unseen = np.unique(blocks[self._verdicts[blocks] == Verdict.UNSEEN])
        for block in unseen.tolist():
            if self._verdicts[block] == Verdict.UNSEEN:
                self._look(block)
        refs[some[self._verdicts[blocks] != Verdict.WHOLE]] = 0
        return refs

    def _look(self, block: int) -> None:
        """Check it, and those behind it that were read with it."""
        verdicts = self._verdicts
        while True:
            # Damage that another pack writer has found stays found.
            verdicts[block] = max(verdicts[block], self._verdict(block))
            block += 1
            if block == len(verdicts) or verdicts[block] != Verdict.UNSEEN:
                return
            if not self._blocks.has_read(block):
                return

    def _verdict(self, block: int) -> Verdict:
        try:
            self._blocks.stored(block)
        except Unavailable:
            raise
        except (crypto.Forged, StoreError):
            # Gone, or on a disk that fails there: storing it again is as good.
            return Verdict.DAMAGED
        return Verdict.WHOLE
