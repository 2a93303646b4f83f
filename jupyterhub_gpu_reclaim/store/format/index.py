"""The index of a checkpoint: where each chunk of each file is.

As arrays, and as sealed bytes (``FORMAT.md``, index). There may be millions of chunks,
so everything is a numpy array; there is no object per chunk. Input was authenticated
before it is parsed, and is checked all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import lz4.block
import msgspec
import numpy as np

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.compression import MAX_BLOCK_BYTES, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend

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
_READ_BYTES = 4 * 1024 * 1024
#: Sealed in one call, which takes less than 2 GiB; half a TiB of memory needs more.
_PART_BYTES = 1 << 30


@dataclass(frozen=True)
class ChunkIndex:
    """The contents of a checkpoint, in the terms of ``FORMAT.md``."""

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

    def places(self, chunk_bytes: int) -> dict[str, tuple[int, int]]:
        """For each file the position of its first ref, and its length in bytes."""
        found, first = {}, 0
        for name, length in self.files:
            found[name] = first, length
            first += chunks_of(length, chunk_bytes)
        return found

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """Of each ref, whether it is the first chunk of a block."""
        begins = np.zeros(int(self.bases[-1]) + 2, np.bool_)
        begins[self.bases[:-1] + 1] = True
        return begins

    def blocks_of(self, refs: NDArray[Any]) -> NDArray[np.int64]:
        """The blocks of some refs (none of them 0)."""
        return np.searchsorted(self.bases, refs.astype(np.int64), side="left") - 1


def is_name(name: str) -> bool:
    """Whether it is a valid file name: it cannot leave its folder."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def chunks_of(length: int, chunk_bytes: int) -> int:
    return -(-length // chunk_bytes)


def damaged(why: str) -> StoreError:
    return StoreError(Reason.CHECKPOINT_DAMAGED, why=why)


def check(index: ChunkIndex, chunk_bytes: int, packs: Sequence[int]) -> None:
    """Check that every chunk lies in a block, and every block in its pack.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, with what does not fit.
    """
    _check_files(index, chunk_bytes)
    _check_blocks(index, chunk_bytes, packs)
    if len(index.refs) and int(index.refs.max()) > index.bases[-1]:
        raise damaged("the index has a chunk that cannot be")
    if len(index.live()) != len(index.ids):
        raise damaged("the index has not an id for every chunk")


def _check_files(index: ChunkIndex, chunk_bytes: int) -> None:
    names = {name for name, _ in index.files}
    if len(names) != len(index.files) or not all(map(is_name, names)):
        raise damaged("the index has names that cannot be")
    if any(length < 0 for _, length in index.files):
        raise damaged("the index has a length that cannot be")
    chunks = sum(chunks_of(length, chunk_bytes) for _, length in index.files)
    if chunks != len(index.refs):
        raise damaged("the index has not all chunks of its files")


def _check_blocks(index: ChunkIndex, chunk_bytes: int, packs: Sequence[int]) -> None:
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


class _Stored(Value, frozen=True, kw_only=True):
    files: list[tuple[str, int]]
    # Of 16 GiB there are 70 MB: a view copies none.
    blocks: memoryview  #: of :data:`BLOCKS`
    refs: memoryview  #: as differences, which LZ4 shrinks to nearly nothing
    ids: memoryview


def encode_index(index: ChunkIndex, key: bytes) -> bytes:
    """The sealed index; ``key`` may seal one only."""
    differences = np.diff(index.refs, prepend=np.uint32(0)).astype("<u4")
    stored = _Stored(
        files=index.files,
        blocks=index.blocks.view(np.uint8).data,
        refs=memoryview(lz4.block.compress(differences, store_size=False)),
        ids=np.ascontiguousarray(index.ids, "<u8").reshape(-1).view(np.uint8).data,
    )
    plain, sealer = memoryview(msgspec.msgpack.encode(stored)), crypto.Sealer(key)
    starts = range(0, len(plain), _PART_BYTES)
    return b"".join(
        sealer.seal(number, plain[at : at + _PART_BYTES], b"")
        for number, at in enumerate(starts)
    )


def decode_index(
    sealed: bytes, key: bytes, *, chunk_bytes: int, packs: Sequence[int]
) -> ChunkIndex:
    """An index, checked; ``packs``: lengths of the manifest's.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, with what does not fit.
    """
    parts, sealer = memoryview(sealed), crypto.Sealer(key)
    step = _PART_BYTES + crypto.TAG_BYTES
    try:
        plain = b"".join(
            sealer.open(number, parts[at : at + step], b"")
            for number, at in enumerate(range(0, max(1, len(parts)), step))
        )
        index = _parse(plain, chunk_bytes)
    except crypto.Forged:
        raise damaged("the index is not what was written") from None
    except (ValueError, lz4.block.LZ4BlockError, msgspec.DecodeError) as error:
        raise damaged(f"the index cannot be read ({error})") from None
    check(index, chunk_bytes, packs)
    return index


def read_index(backend: Backend, name: str, length: int) -> bytes:
    """A sealed index of that length: a slow store gives a part of it in time."""
    starts = range(0, length, _READ_BYTES)
    return b"".join(
        backend.read(name, at, min(_READ_BYTES, length - at)) for at in starts
    )


def _parse(plain: bytes, chunk_bytes: int) -> ChunkIndex:
    stored = decoders.msgpack_decoder(_Stored).decode(plain)
    count = sum(chunks_of(length, chunk_bytes) for _, length in stored.files)
    # LZ4 shrinks by 255 at most: no length can claim more memory than that.
    if not 0 <= 4 * count <= 256 * len(stored.refs):
        raise ValueError("its lengths do not fit its chunks")
    refs = lz4.block.decompress(stored.refs, uncompressed_size=4 * count)
    return ChunkIndex(
        stored.files,
        np.frombuffer(stored.blocks, BLOCKS),
        np.cumsum(np.frombuffer(refs, "<u4"), dtype=np.uint32),
        np.frombuffer(stored.ids, "<u8").reshape(-1, 2),
    )
