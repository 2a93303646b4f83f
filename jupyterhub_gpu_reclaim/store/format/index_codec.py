"""Encodes the index of a checkpoint as sealed bytes, and back (``FORMAT.md``, index).

Pure, except for reading segments one by one. Input was authenticated before it is
parsed, and is checked all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import lz4.block
import msgspec
import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import associated_data, crypto
from jupyterhub_gpu_reclaim.store.format.index import (
    BLOCKS,
    MAX_REFS,
    Index,
    check,
    damaged,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.manifest import IndexRef

SEGMENT_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024


class _Head(Value, frozen=True, kw_only=True):
    files: list[tuple[str, int]]
    blocks: int
    refs: int
    ids: int


class Encoded(NamedTuple):
    """An index on its way out: a piece at a time, for all of it may be large."""

    segments: int
    length: int  #: of all sealed segments
    sealed: Iterator[bytes]


def encode(index: Index, key: bytes) -> Encoded:
    """The sealed segments.

    Args:
        index: what to seal.
        key: the index key; it may seal one index only.
    """
    parts = list(_parts(index))
    length = sum(len(part) for part in parts)
    segments = -(-length // SEGMENT_BYTES)
    sealer = crypto.Sealer(key)
    sealed = (
        sealer.seal(number, plain, associated_data.segment(number, segments))
        for number, plain in enumerate(_cut(parts))
    )
    return Encoded(segments, length + segments * crypto.TAG_BYTES, sealed)


def _cut(parts: Iterable[memoryview]) -> Iterator[bytearray]:
    """The parts in a row, in pieces of a segment each."""
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


def decode(
    segments: Iterable[bytes],
    count: int,
    key: bytes,
    *,
    chunk_bytes: int,
    packs: Sequence[int],
) -> Index:
    """An index whose every chunk lies in a block, and every block in its pack.

    Args:
        segments: the sealed ones.
        count: how many there must be.
        key: the index key.
        chunk_bytes: size of the chunks.
        packs: lengths of the manifest's packs.

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


def read(backend: Backend, name: str, ref: IndexRef) -> Iterator[bytes]:
    """The sealed segments of an index that stands in a backend, one at a time.

    Raises:
        StoreError: it cannot be read; what it holds is not looked at.
    """
    step = SEGMENT_BYTES + crypto.TAG_BYTES
    for at in range(0, ref.length, step):
        yield backend.read(name, at, min(step, ref.length - at))


def compare(segments: Iterable[bytes], count: int, key: bytes, name: str) -> None:
    """See that an index that was just written reads back.

    Raises:
        StoreError: ``STORE_FAILED``, it does not; or it cannot be read.
    """
    try:
        for _ in _opened(segments, count, key):
            pass
    except crypto.Forged:
        why = f"{name} reads back differently"
        raise StoreError(Reason.STORE_FAILED, why=why) from None


def _parts(index: Index) -> Iterator[memoryview]:
    head = msgspec.json.encode(
        _Head(
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
    """A column as LZ4 pieces, behind their length."""
    plain = column.view(np.uint8).data
    pieces = []
    for at in range(0, len(plain), _PIECE_BYTES):
        piece = lz4.block.compress(plain[at : at + _PIECE_BYTES], store_size=False)
        pieces += [len(piece).to_bytes(4, "little"), piece]
    data = b"".join(pieces)
    return memoryview(len(data).to_bytes(8, "little") + data)


def _opened(segments: Iterable[bytes], count: int, key: bytes) -> Iterator[bytes]:
    """The plain segments; Forged when one is not what was written, or is missing."""
    sealer, number = crypto.Sealer(key), 0
    for sealed in segments:
        yield sealer.open(number, sealed, associated_data.segment(number, count))
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


class _Reader:
    """Takes bytes from the front; what is not there is a ValueError."""

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
        """A column that was shrunk, of exactly so many values."""
        inner = _Reader(bytes(self.take(self.number(8))))
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


def _parse(plain: bytearray) -> Index:
    reader = _Reader(plain)
    head = msgspec.json.decode(reader.take(reader.number(4)), type=_Head)
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
    return Index(head.files, blocks, refs, ids)
