"""How one chunk is stored: as a zero marker, raw, or as an LZ4 block.

Called by the writer and the reader of a checkpoint. Pure: bytes in, bytes out. Whether
a chunk will compress is found out from samples of it, because compressing what will
not shrink is what costs most (FACTS §2).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import lz4.block
from blake3 import blake3

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Buffer

#: Longest chunk that a reader accepts, so that a damaged index cannot fill the memory.
MAX_CHUNK_BYTES = 16 * 1024 * 1024

_PROBE_BYTES = 4096
_PROBES = 4
#: Smaller than this share of the plain size is worth the time to decompress it.
_WORTH = 15 / 16


class Kind(IntEnum):
    """How a chunk is stored; the numbers stand in the index."""

    ZERO = 0
    RAW = 1
    LZ4 = 2


class Encoded(NamedTuple):
    """A chunk as it will be stored."""

    kind: Kind
    data: Buffer  #: empty for a zero chunk; may be the plain view itself
    digest: str  #: BLAKE3 of the plain bytes in hex; empty for a zero chunk


def encode(plain: memoryview) -> Encoded:
    """Find out how to store a chunk, and do it.

    Args:
        plain: contiguous bytes; a raw chunk's ``data`` is this very view.
    """
    if is_zero(plain):
        return Encoded(Kind.ZERO, b"", "")
    digest = blake3(plain).hexdigest()
    if _may_shrink(plain):
        packed: bytes = lz4.block.compress(plain, store_size=False)
        if len(packed) < len(plain) * _WORTH:
            return Encoded(Kind.LZ4, packed, digest)
    return Encoded(Kind.RAW, plain, digest)


def decode(kind: Kind, data: bytes, length: int, digest: str) -> bytes:
    """The plain bytes of a chunk that is not zero, checked.

    Args:
        kind: as it was stored.
        data: the stored bytes.
        length: of the plain bytes.
        digest: BLAKE3 of the plain bytes, in hex.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``; nothing of it may be used.
    """
    plain = data
    if kind is Kind.LZ4:
        try:
            plain = lz4.block.decompress(data, uncompressed_size=length)
        except lz4.block.LZ4BlockError as error:
            raise _damaged(str(error)) from None
    if len(plain) != length:
        raise _damaged(f"{len(plain)} bytes instead of {length}")
    if blake3(plain).hexdigest() != digest:
        raise _damaged("digest differs")
    return plain


def is_zero(view: memoryview) -> bool:
    """Whether all bytes are zero; the first bytes answer for most that are not."""
    head = bytes(view[:64])
    return not any(head) and not any(bytes(view[-64:])) and _all_zero(view)


def _all_zero(view: memoryview) -> bool:
    # Comparing two bytes objects is a memcmp, comparing views goes item by item.
    return bytes(view) == _zeros(len(view))


def _zeros(length: int) -> bytes:
    return _ZEROS if length == len(_ZEROS) else bytes(length)


_ZEROS = bytes(256 * 1024)


def _may_shrink(plain: memoryview) -> bool:
    """Whether one of a few pages of it compresses."""
    if len(plain) <= _PROBE_BYTES * _PROBES:
        return True
    stride = (len(plain) - _PROBE_BYTES) // (_PROBES - 1)
    return any(
        len(lz4.block.compress(plain[at : at + _PROBE_BYTES], store_size=False))
        < _PROBE_BYTES * _WORTH
        for at in range(0, _PROBES * stride, stride)
    )


def _damaged(why: str) -> StoreError:
    return StoreError(Reason.CHECKPOINT_DAMAGED, why=why)
