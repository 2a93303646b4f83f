"""The index of a checkpoint, as arrays: which chunk of which file stands where.

Pure; :mod:`.index_codec` turns it into bytes. There may be millions of chunks, so
everything about them is a numpy array and there is no object per chunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.compression import MAX_BLOCK_BYTES, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: A table of blocks; ``pack`` is the place in the manifest's list of packs.
BLOCKS = np.dtype(
    [
        ("pack", "<u4"),
        ("number", "<u4"),
        ("offset", "<u8"),
        ("stored", "<u4"),
        ("chunks", "<u2"),
        ("kind", "u1"),
    ]
)
MAX_REFS = (1 << 32) - 1
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_MAX_NAME = 255


@dataclass(frozen=True)
class Index:
    """The contents of a checkpoint, in the words of ``FORMAT.md``."""

    files: list[tuple[str, int]]  #: name and length, in order
    blocks: NDArray[Any]  #: of :data:`BLOCKS`
    refs: NDArray[np.uint32]  #: of all files in a row; 0 is a chunk of zeros
    ids: NDArray[np.uint64]  #: shape (k, 2), one for each different ref
    #: How many chunks stand in all blocks before each, and in all.
    bases: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        bases = np.zeros(len(self.blocks) + 1, np.int64)
        np.cumsum(self.blocks["chunks"], out=bases[1:])
        object.__setattr__(self, "bases", bases)

    def live(self) -> NDArray[np.int64]:
        """The different refs but 0, in rising order."""
        seen = np.zeros(int(self.bases[-1]) + 1, np.bool_)
        seen[self.refs] = True
        seen[0] = False
        return np.flatnonzero(seen)

    def blocks_of(self, refs: NDArray[Any]) -> NDArray[np.int64]:
        """The blocks in which refs (none of them 0) stand."""
        return np.searchsorted(self.bases, refs.astype(np.int64), side="left") - 1


def is_name(name: str) -> bool:
    """Whether a file may be called that: it cannot leave its folder."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def chunks_of(length: int, chunk_bytes: int) -> int:
    """How many chunks a file of that length has."""
    return -(-length // chunk_bytes)


def damaged(why: str) -> StoreError:
    """The error for a checkpoint that is not what was written."""
    return StoreError(Reason.CHECKPOINT_DAMAGED, why=why)


def check(index: Index, chunk_bytes: int, packs: Sequence[int]) -> None:
    """See that every chunk lies in a block, and every block in its pack.

    Args:
        index: what was read; anything may stand in it.
        chunk_bytes: size of the chunks.
        packs: lengths of the manifest's packs.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, with what does not fit.
    """
    _check_files(index, chunk_bytes)
    _check_blocks(index, chunk_bytes, packs)
    if len(index.refs) and int(index.refs.max()) > index.bases[-1]:
        raise damaged("the index has a chunk that cannot be")
    if len(index.live()) != len(index.ids):
        raise damaged("the index has not an id for every chunk")


def _check_files(index: Index, chunk_bytes: int) -> None:
    names = {name for name, _ in index.files}
    if len(names) != len(index.files) or not all(map(is_name, names)):
        raise damaged("the index has names that cannot be")
    if any(length < 0 for _, length in index.files):
        raise damaged("the index has a length that cannot be")
    chunks = sum(chunks_of(length, chunk_bytes) for _, length in index.files)
    if chunks != len(index.refs):
        raise damaged("the index has not all chunks of its files")


def _check_blocks(index: Index, chunk_bytes: int, packs: Sequence[int]) -> None:
    blocks = index.blocks
    if not len(blocks):
        return
    if int(blocks["pack"].max()) >= len(packs) or index.bases[-1] > MAX_REFS:
        raise damaged("the index has a block that cannot be")
    ends = np.array(packs, np.uint64)[blocks["pack"]]
    plain = blocks["chunks"].astype(np.uint64) * np.uint64(chunk_bytes)
    stored = blocks["stored"].astype(np.uint64)
    tag = np.uint64(crypto.TAG_BYTES)
    fits = (
        (blocks["chunks"] > 0)
        & (plain <= MAX_BLOCK_BYTES)
        & (blocks["kind"] >= min(Kind))
        & (blocks["kind"] <= max(Kind))
        & (stored > tag)
        & (stored <= ends)
        & (blocks["offset"] <= ends - np.minimum(stored, ends))
        & np.where(
            blocks["kind"] == Kind.RAW, stored == plain + tag, stored < plain + tag
        )
    )
    if not fits.all():
        raise damaged("the index has a block that cannot be")
