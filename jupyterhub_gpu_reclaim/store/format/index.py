"""The index of a checkpoint: where each chunk of each file is.

As arrays, and as sealed bytes (``FORMAT.md``, index). There may be millions of chunks,
so everything is a numpy array; there is no object per chunk. Input was authenticated
before it is parsed, and is checked all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer

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
SEGMENT_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024


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


class _IndexHead(Value, frozen=True, kw_only=True):
    files: list[tuple[str, int]]
    blocks: int
    refs: int
    ids: int


class Encoded(NamedTuple):
    """An index being encoded piece by piece, for all of it may be large."""

    segments: int
    length: int  #: of all sealed segments
    sealed: Iterator[bytes]


def encode_index(index: ChunkIndex, key: bytes) -> Encoded:
    """The sealed segments; ``key`` may seal one index only."""
    parts = list(_parts(index))
    length = sum(len(part) for part in parts)
    segments = -(-length // SEGMENT_BYTES)
    sealer = crypto.Sealer(key)
    sealed = (
        sealer.seal(number, plain, crypto.bound_segment(number, segments))
        for number, plain in enumerate(_cut(parts))
    )
    return Encoded(segments, length + segments * crypto.TAG_BYTES, sealed)


def _cut(parts: Iterable[memoryview]) -> Iterator[bytearray]:
    piece = bytearray()
    for part in parts:
        rest = part
        while len(rest):
            take = SEGMENT_BYTES - len(piece)
            piece += rest[:take]
            rest = rest[take:]
            if len(piece) == SEGMENT_BYTES:
                yield piece
                piece = bytearray()
    if piece:
        yield piece


def decode_index(
    segments: Iterable[bytes],
    count: int,
    key: bytes,
    *,
    chunk_bytes: int,
    packs: Sequence[int],
) -> ChunkIndex:
    """An index, checked, of ``count`` segments; ``packs``: lengths of the manifest's.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, with what does not fit.
    """
    plain = _open(segments, count, key)
    try:
        index = _parse(plain)
    except (ValueError, lz4.block.LZ4BlockError, msgspec.DecodeError) as error:
        raise damaged(f"the index cannot be read ({error})") from None
    check(index, chunk_bytes, packs)
    return index


def read_segments(backend: Backend, name: str, length: int) -> Iterator[bytes]:
    """The sealed segments of an index of that length, one at a time."""
    step = SEGMENT_BYTES + crypto.TAG_BYTES
    for at in range(0, length, step):
        yield backend.read(name, at, min(step, length - at))


def check_segments(
    segments: Iterable[bytes], count: int, key: bytes, name: str
) -> None:
    """Check that an index that was just written reads back.

    Raises:
        StoreError: ``STORE_FAILED``, it does not; or it cannot be read.
    """
    try:
        for _ in _opened(segments, count, key):
            pass
    except crypto.Forged:
        why = f"{name} reads back differently"
        raise StoreError(Reason.STORE_FAILED, why=why) from None


def _parts(index: ChunkIndex) -> Iterator[memoryview]:
    head = msgspec.json.encode(
        _IndexHead(
            files=index.files,
            blocks=len(index.blocks),
            refs=len(index.refs),
            ids=len(index.ids),
        )
    )
    yield memoryview(len(head).to_bytes(4, "little") + head)
    for name in BLOCKS.names or ():
        yield _shrink(np.ascontiguousarray(index.blocks[name]))
    yield _shrink(np.diff(index.refs, prepend=np.uint32(0)).astype("<u4"))
    yield np.ascontiguousarray(index.ids, "<u8").reshape(-1).view(np.uint8).data


def _shrink(column: NDArray[Any]) -> memoryview:
    # LZ4 pieces behind their total length.
    plain = column.view(np.uint8).data
    pieces = []
    for at in range(0, len(plain), _PIECE_BYTES):
        piece = lz4.block.compress(plain[at : at + _PIECE_BYTES], store_size=False)
        pieces += [len(piece).to_bytes(4, "little"), piece]
    data = b"".join(pieces)
    return memoryview(len(data).to_bytes(8, "little") + data)


def _opened(segments: Iterable[bytes], count: int, key: bytes) -> Iterator[bytes]:
    """The plain segments; Forged if one is missing or not what was written."""
    sealer, number = crypto.Sealer(key), 0
    for sealed in segments:
        yield sealer.open(number, sealed, crypto.bound_segment(number, count))
        number += 1
    if number != count:
        raise crypto.Forged


def _open(segments: Iterable[bytes], count: int, key: bytes) -> bytearray:
    plain = bytearray()
    try:
        for opened in _opened(segments, count, key):
            plain += opened
    except crypto.Forged:
        raise damaged("the index is not what was written") from None
    return plain


class _ColumnReader:
    """Takes bytes from the front; raises ValueError when there are too few."""

    def __init__(self, plain: Buffer) -> None:
        self._rest = memoryview(plain)

    def take(self, length: int) -> memoryview:
        if length > len(self._rest):
            raise ValueError("it ends too early")
        found, self._rest = self._rest[:length], self._rest[length:]
        return found

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def column(self, kind: Any, count: int) -> NDArray[Any]:
        # See _shrink.
        inner = _ColumnReader(bytes(self.take(self.number(8))))
        size = count * np.dtype(kind).itemsize
        pieces = [
            lz4.block.decompress(
                inner.take(inner.number(4)),
                uncompressed_size=min(_PIECE_BYTES, size - at),
            )
            for at in range(0, size, _PIECE_BYTES)
        ]
        inner.end()
        return np.frombuffer(b"".join(pieces), kind, count)

    def end(self) -> None:
        if len(self._rest):
            raise ValueError("it has more than it should")


def _parse(plain: bytearray) -> ChunkIndex:
    reader = _ColumnReader(plain)
    head = decoders.json_decoder(_IndexHead).decode(reader.take(reader.number(4)))
    if not all(0 <= count <= MAX_REFS for count in (head.blocks, head.refs, head.ids)):
        raise ValueError("its counts cannot be")
    # LZ4 shrinks by 255 at most: no count can claim more memory than that.
    if max(head.blocks, head.refs * 4, head.ids * 16) > 256 * len(plain):
        raise ValueError("its counts do not fit its length")
    blocks = np.empty(head.blocks, BLOCKS)
    for name in BLOCKS.names or ():
        blocks[name] = reader.column(BLOCKS[name], head.blocks)
    refs = np.cumsum(reader.column("<u4", head.refs), dtype=np.uint32)
    ids = np.frombuffer(reader.take(16 * head.ids), "<u8").reshape(-1, 2)
    reader.end()
    return ChunkIndex(head.files, blocks, refs, ids)
