"""The chunks that stand in a session's last generation, to be looked up by their ids.

Made by the writer when a checkpoint is begun, called by its lanes: in the same process,
or in workers that map the same memory. It never changes once it is made.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.index import Index

#: A pack of whose bytes less is used is left to die.
LIVE_SHARE = 0.25


class Known:
    """A sorted table of ids.

    Args:
        table: shape (3, n): first halves of the ids in rising order, second halves,
            refs in the index that they come from.
    """

    def __init__(self, table: NDArray[np.uint64]) -> None:
        self._table = table
        self._first, self._second, self._refs = table

    def __len__(self) -> int:
        return len(self._first)

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each id the ref of its chunk, 0 where there is none.

        Args:
            ids: shape (k, 2).
        """
        if not len(self):
            return np.zeros(len(ids), np.int64)
        at = np.searchsorted(self._first, ids[:, 0])
        at[at == len(self)] = 0
        # Where first halves collide only the first is found: the chunk is stored anew.
        same = (self._first[at] == ids[:, 0]) & (self._second[at] == ids[:, 1])
        return np.where(same, self._refs[at].astype(np.int64), 0)

    def share(self) -> int:
        """A new descriptor of memory that holds it, for other processes."""
        descriptor = os.memfd_create("known-chunks", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            self._table.tofile(file)
        return descriptor


def of_index(index: Index, packs: Sequence[int]) -> Known:
    """What may be referenced of a committed generation.

    Args:
        index: of that generation.
        packs: lengths of its packs.
    """
    live = index.live()
    if not len(live):
        return Known(np.empty((3, 0), np.uint64))
    blocks = index.blocks_of(live)
    rows = index.blocks
    used = np.bincount(blocks, minlength=len(rows)) / rows["chunks"] * rows["stored"]
    per_pack = np.bincount(rows["pack"], weights=used, minlength=len(packs))
    alive = per_pack >= LIVE_SHARE * np.array(packs)
    wanted = alive[rows["pack"][blocks]]
    ids, refs = index.ids[wanted], live[wanted]
    order = np.argsort(ids[:, 0], kind="stable")
    return Known(
        np.stack([ids[order, 0], ids[order, 1], refs[order].astype(np.uint64)])
    )


def of_descriptor(descriptor: int) -> Known:
    """What another process has shared; the descriptor may be closed then."""
    length = os.fstat(descriptor).st_size
    if not length:
        return Known(np.empty((3, 0), np.uint64))
    mapped: Any = mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
    return Known(np.frombuffer(mapped, np.uint64).reshape(3, -1))
