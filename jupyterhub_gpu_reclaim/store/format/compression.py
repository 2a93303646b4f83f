"""Compresses one block: raw, as an LZ4 block, or by zstd.

Nothing is authenticated here, so only authenticated bytes may be passed to
:func:`unpack`. Samples of a block tell whether it will shrink: compressing
incompressible bytes is the most expensive part.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import lz4.block
import zstandard

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Buffer

#: Longest block of plain bytes that a reader accepts.
MAX_BLOCK_BYTES = 1 << 20

_PROBE_BYTES = 4096
_PROBES = 4
#: Smaller than this share of the plain size is worth the time to decompress it.
_WORTH = 15 / 16
#: Faster than zlib's fastest and smaller than its best; see docs/explanation/store.md.
_ZSTD_LEVEL = 1


class Kind(IntEnum):
    """How a block is stored; these numbers are in the index."""

    RAW = 1
    LZ4 = 2
    ZSTD = 3


class Compression(StrEnum):
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Garbled(Exception):
    """The bytes are not a block of that kind and length."""


def pack(plain: memoryview, compression: Compression) -> tuple[Kind, Buffer]:
    """The kind and the bytes to store; for a raw block that very view."""
    if compression is Compression.NONE or not _shrinks(plain):
        return Kind.RAW, plain
    if compression is Compression.ZSTD:
        kind, packed = Kind.ZSTD, zstandard.compress(plain, _ZSTD_LEVEL)
    else:
        kind, packed = Kind.LZ4, lz4.block.compress(plain, store_size=False)
    if len(packed) < len(plain) * _WORTH:
        return kind, packed
    return Kind.RAW, plain


def unpack(kind: Kind, data: Buffer, length: int) -> Buffer:
    """The plain bytes of authenticated ``data``, that itself if raw; or Garbled."""
    plain: Buffer = data
    try:
        if kind is Kind.LZ4:
            plain = lz4.block.decompress(
                data, uncompressed_size=length, return_bytearray=True
            )
        elif kind is Kind.ZSTD:
            # The frame's own size is what the library allocates: look at it first.
            size = zstandard.frame_content_size(data)
            if size != length:
                raise Garbled(f"{size} bytes instead of {length}")
            plain = zstandard.decompress(data)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise Garbled(str(error)) from None
    if len(plain) != length:
        raise Garbled(f"{len(plain)} bytes instead of {length}")
    return plain


def _shrinks(plain: memoryview) -> bool:
    if len(plain) <= _PROBE_BYTES * _PROBES:
        return True  # too little to be worth a look
    stride = (len(plain) - _PROBE_BYTES) // (_PROBES - 1)
    pages = (plain[at : at + _PROBE_BYTES] for at in range(0, _PROBES * stride, stride))
    most = _PROBE_BYTES * _WORTH
    return any(len(lz4.block.compress(page, store_size=False)) < most for page in pages)
