"""Opens the blocks of packs, each checked before anything of it is used.

Blocks that stand side by side are read together: with a request for each, a store that
answers within 30 ms would give a reader 8 MB/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.compression import (
    MAX_BLOCK_BYTES,
    Garbled,
    Kind,
    unpack,
)
from jupyterhub_gpu_reclaim.store.format.index import damaged

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

#: Blocks that stand side by side are read in one go, as far as this.
READ_BYTES = 560 * 1024
#: The same in a store where each request takes a while, wherever a read begins.
FAR_BYTES = 4 * 1024 * 1024


class BlockRow(NamedTuple):
    pack: int  #: number of the pack
    number: int  #: in the pack
    offset: int
    stored: int  #: bytes in the pack, with the tag
    chunks: int
    kind: int

    def bound(self) -> bytes:
        length = self.stored - crypto.TAG_BYTES
        return crypto.bound_block(self.number, Kind(self.kind), self.chunks, length)


def is_far(backend: Backend) -> bool:
    return bool(backend.spec()["kind"] == "objects")


class BlockOpener:
    """Reads and opens blocks, into buffers of its own; for one thread."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._least = FAR_BYTES if is_far(backend) else 0
        most = max(READ_BYTES, self._least, MAX_BLOCK_BYTES + crypto.TAG_BYTES)
        self._sealed = memoryview(bytearray(most))
        self._plain = memoryview(bytearray(MAX_BLOCK_BYTES))
        # Which bytes of which pack are in the buffer, and where the last block ended.
        self._name, self._begin, self._end, self._next = "", 0, 0, 0

    def open(self, name: str, sealer: crypto.Sealer, row: BlockRow) -> memoryview:
        """The stored bytes, decrypted; valid until the next call; or Forged."""
        if not crypto.TAG_BYTES <= row.stored <= MAX_BLOCK_BYTES + crypto.TAG_BYTES:
            raise crypto.Forged
        sealed = self._read(name, row.offset, row.stored)
        length = row.stored - crypto.TAG_BYTES
        plain = self._plain[:length]
        sealer.open_into(row.number, sealed, row.bound(), plain)
        return plain

    def has_read(self, name: str, row: BlockRow) -> bool:
        """Whether that block can be opened without another read."""
        begins, ends = row.offset, row.offset + row.stored
        return name == self._name and self._begin <= begins and ends <= self._end

    def _read(self, name: str, offset: int, length: int) -> memoryview:
        same = name == self._name
        if not (same and self._begin <= offset and offset + length <= self._end):
            goes_on = same and offset == self._next
            least = max(self._least, READ_BYTES if goes_on else 0)
            wanted = self._sealed[: max(least, length)]
            # Void while it is filled: a read that fails leaves nothing to be taken.
            self._name = ""
            count = self._backend.read_into(name, offset, wanted)
            if count < length:
                raise crypto.Forged
            self._name, self._begin, self._end = name, offset, offset + count
        self._next = offset + length
        at = offset - self._begin
        return self._sealed[at : at + length]


class BlockSource(NamedTuple):
    backend: Backend
    body: Body
    table: NDArray[Any]  #: of ``index.BLOCKS``, checked


class Blocks:
    """Opens blocks of a checkpoint by their places in its table; for one thread.

    What is returned may be in a buffer, and is valid until the next call.
    """

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._opener = BlockOpener(source.backend)
        self._sealers: dict[int, crypto.Sealer] = {}

    def stored(self, block: int) -> memoryview:
        """The stored bytes, decrypted; or Forged."""
        row = self._row(block)
        if row.pack not in self._sealers:
            ref = self._source.body.packs[row.pack]
            key = self._source.body.origins[ref.origin].pack_key(ref.number)
            self._sealers[row.pack] = crypto.Sealer(key)
        return self._opener.open(self._pack(row), self._sealers[row.pack], row)

    def plain(self, block: int) -> Buffer:
        """All chunks of a block.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``; nothing of it may be used.
        """
        row = self._row(block)
        try:
            length = row.chunks * self._source.body.chunk_bytes
            return unpack(Kind(row.kind), self.stored(block), length)
        except (crypto.Forged, Garbled):
            why = f"block {row.number} of {self._pack(row)} is not what was written"
            raise damaged(why) from None

    def has_read(self, block: int) -> bool:
        """Whether it was read with the one that was opened before."""
        row = self._row(block)
        return self._opener.has_read(self._pack(row), row)

    def _row(self, block: int) -> BlockRow:
        return BlockRow(*self._source.table[block].tolist())

    def _pack(self, row: BlockRow) -> str:
        body = self._source.body
        return body.pack_name(body.packs[row.pack])
