"""The last generation's blocks, each of them opened before a chunk of it is referenced.

That a pack has the right name and length says nothing of what is in it. So whoever is
about to reference a chunk reads and opens its block, once per capture; a block that is
not what was written is known no longer, and its chunks are stored anew while they are
at hand. A capture that references everything reads what one that references nothing
would have read back (law 1).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.packing.packs import BlockOpener, BlockRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.manifest import Body
    from jupyterhub_gpu_reclaim.store.packing.dedup_index import DedupIndex


class Verdict(IntEnum):
    """State of a block, as far as this capture knows it."""

    UNSEEN = 0
    WHOLE = 1
    DAMAGED = 2  #: or it cannot be read


#: Bytes asked for at once in a store where each request takes a while. Pack writers
#: take turns at a file, so that none of them would go on where it was.
FAR_BYTES = 4 * 1024 * 1024
#: Verdicts where nothing may be referenced.
NO_VERDICTS = np.zeros(0, np.uint8)


class BaseBlocks(NamedTuple):
    """Blocks that may be referenced; the same for all pack writers of a checkpoint."""

    body: Body
    table: NDArray[Any]  #: of ``index.BLOCKS``, checked
    known: DedupIndex

    def verdicts(self) -> NDArray[np.uint8]:
        """Room for a :class:`Verdict` on each block."""
        return np.zeros(len(self.table), np.uint8)


class BaseChunks:
    """Finds known chunks; for one thread.

    Args:
        backend: where the blocks stand.
        base: what may be referenced.
        verdicts: one for each block; other threads and processes may write there, too.
    """

    def __init__(
        self,
        backend: Backend,
        base: BaseBlocks,
        verdicts: NDArray[np.uint8],
    ) -> None:
        self._base = base
        self._verdicts = verdicts
        self._blocks = Blocks(backend, base.body)
        self._ends = np.cumsum(base.table["chunks"], dtype=np.int64)

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each id the ref of its chunk, whose block is whole; 0: there is none.

        Args:
            ids: shape (k, 2).

        Raises:
            Unavailable: the store does not answer, which says nothing of the blocks.
        """
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
        """Open it, and those behind it that were read with it."""
        table = self._base.table
        row = BlockRow(*table[block].tolist())
        while True:
            # Damage that another pack writer has found stays found.
            self._verdicts[block] = max(self._verdicts[block], self._verdict(row))
            block += 1
            if block == len(table) or self._verdicts[block] != Verdict.UNSEEN:
                return
            row = BlockRow(*table[block].tolist())
            if not self._blocks.has_read(row):
                return

    def _verdict(self, row: BlockRow) -> Verdict:
        try:
            self._blocks.stored(row)
        except Unavailable:
            raise
        except (crypto.Forged, StoreError):
            # Gone, or on a disk that fails there: stored anew is as good.
            return Verdict.DAMAGED
        return Verdict.WHOLE


class Blocks:
    """Opens blocks of a checkpoint, whichever origin's they are; for one thread."""

    def __init__(self, backend: Backend, body: Body) -> None:
        self._body = body
        spec = backend.spec()
        far = spec is not None and spec["kind"] != "folder"
        self._opener = BlockOpener(backend, least=FAR_BYTES if far else 0)
        self._sealers: dict[int, crypto.Sealer] = {}

    def stored(self, row: BlockRow) -> memoryview:
        """See :meth:`BlockOpener.open`.

        Args:
            row: whose ``pack`` is the place in the manifest's list.
        """
        ref = self._body.packs[row.pack]
        if row.pack not in self._sealers:
            key = self._body.origins[ref.origin].pack_key(ref.number)
            self._sealers[row.pack] = crypto.Sealer(key)
        name = self._body.pack_name(ref)
        return self._opener.open(name, self._sealers[row.pack], row)

    def has_read(self, row: BlockRow) -> bool:
        """Whether it is here already: with the one that was opened before."""
        return self._opener.has_read(
            self._body.pack_name(self._body.packs[row.pack]), row
        )
