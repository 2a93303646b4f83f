"""The associated data of every encrypted byte: ids, numbers, lengths, order.

Writing and reading of packs, indexes and manifests share it, so that both bind the
same. Pure; the terms are those of ``FORMAT.md``, keys.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import SessionKey, Value
from jupyterhub_gpu_reclaim.store.format import crypto

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.format.compression import Kind

FORMAT = 1
MAGIC = b"GRSTORE" + bytes([FORMAT])

_BLOCK = struct.Struct("<IBHI")
_SEGMENT = struct.Struct("<II")


class Origin(Value, frozen=True, kw_only=True):
    """A checkpoint that packs were written for, with the key that opens them."""

    id: str
    key: SessionKey
    generation: int
    data_key: bytes

    def __repr__(self) -> str:
        return f"Origin({self.id})"

    def pack_key(self, number: int) -> bytes:
        """The key of one of its packs."""
        return self._derive("pack", number)

    def index_key(self) -> bytes:
        """The key of its index."""
        return self._derive("index", 0)

    def _derive(self, purpose: str, number: int) -> bytes:
        return crypto.derive(
            self.data_key,
            purpose,
            self.id,
            self.key.user,
            self.key.server,
            str(self.generation),
            str(number),
        )


def manifest_key(data_key: bytes, checkpoint: str) -> bytes:
    """The key of a manifest's body."""
    return crypto.derive(data_key, "manifest", checkpoint, "", "", "", "0")


def manifest(checkpoint: str) -> bytes:
    """What a manifest's body is bound to."""
    return MAGIC + checkpoint.encode()


def block(number: int, kind: Kind, chunks: int, length: int) -> bytes:
    """What a block is bound to, beside its pack's key.

    Args:
        number: in its pack.
        kind: how it is stored.
        chunks: that it holds.
        length: stored, without the tag.
    """
    return _BLOCK.pack(number, kind, chunks, length)


def segment(number: int, count: int) -> bytes:
    """What a segment of the index is bound to."""
    return _SEGMENT.pack(number, count)
