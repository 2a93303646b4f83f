"""Finds the blocks of a range of a file. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex

#: Block of an extent of zeros.
ZEROS = -1
#: Longest extent of zeros.
ZERO_BYTES = 1 << 20


class Extent(NamedTuple):
    block: int  #: place in the index's table, or :data:`ZEROS`
    start: int  #: first byte in the block
    length: int


class Extents(NamedTuple):
    """A range of a file as extents, in order; one column each."""

    blocks: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def rows(self) -> Iterator[Extent]:
        columns = (column.tolist() for column in self)
        return map(Extent, *columns)


def rest_of(length: int, skip: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of a file outside of others, which may come in any order."""
    left, at = [], 0
    for offset, count in sorted(skip):
        left.append((at, min(offset, length) - at))
        at = max(at, offset + count)
    left.append((at, length - at))
    return [(offset, count) for offset, count in left if count > 0]


def extents(
    index: ChunkIndex, first: int, chunk_bytes: int, offset: int, length: int
) -> Extents:
    """``first``: place of the file's first chunk among the refs."""
    begin, end = offset // chunk_bytes, -(-(offset + length) // chunk_bytes)
    refs = index.refs[first + begin : first + end]
    cuts = _cuts(index, refs, ZERO_BYTES // chunk_bytes)
    heads = refs[cuts].astype(np.int64)
    blocks = np.full(len(heads), ZEROS, np.int64)
    places = np.zeros(len(heads), np.int64)
    some = heads > 0
    found = index.blocks_of(heads[some])
    blocks[some] = found
    places[some] = heads[some] - 1 - index.bases[found]
    starts = places * chunk_bytes
    lengths = np.diff(cuts, append=len(refs)) * chunk_bytes
    head = offset - begin * chunk_bytes
    starts[0] += head
    lengths[0] -= head
    lengths[-1] -= end * chunk_bytes - offset - length
    return Extents(blocks, starts, lengths)


def _cuts(
    index: ChunkIndex, refs: NDArray[np.uint32], most_zeros: int
) -> NDArray[np.int64]:
    """Indices where an extent begins: a block does, or it is not the next chunk."""
    new = np.ones(len(refs), np.bool_)
    before, after = refs[:-1], refs[1:]
    follows = (after == before + 1) & ~index.begins[after]
    new[1:] = ~np.where(after == 0, before == 0, follows)
    # A long extent of zeros is cut at round places, which is often enough.
    new[::most_zeros] |= refs[::most_zeros] == 0
    return np.flatnonzero(new)
