"""One pack writer of a capture: plain bytes in, encrypted blocks in packs out.

It belongs to a thread or to a worker process, and is called from one thread at a time.
Its result is one :class:`Report`, of arrays that processes can share. It knows files
only by their numbers. After a ``StoreError`` (no room, or no store) it is unusable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.store.format import compression as codec
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.crypto import Origin  # noqa: TC001 - msgspec's
from jupyterhub_gpu_reclaim.store.format.index import BLOCKS
from jupyterhub_gpu_reclaim.store.packing.packs import Packs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.packing.base_blocks import BaseChunks
    from jupyterhub_gpu_reclaim.store.packing.blocks import BlockRow

#: Bytes that a pack writer takes at once: a multiple of every chunk size.
BUFFER_BYTES = 1 << 20
#: Plain bytes of the blocks that are written.
BLOCK_BYTES = 256 * 1024

#: Columns of a pack writer's counters.
LOGICAL, STORED, KNOWN = range(3)
COUNTERS = 3


class Recipe(Value, frozen=True, kw_only=True):
    origin: Origin
    id_key: bytes
    chunk_bytes: int
    pack_bytes: int
    compression: codec.Compression

    def __repr__(self) -> str:
        return f"Recipe({self.origin.id})"


class Report(NamedTuple):
    """What a pack writer wrote, as arrays, for there may be millions."""

    packs: list[tuple[int, int]]  #: number and length
    blocks: NDArray[Any]  #: of ``BLOCKS``; ``pack`` is the pack's number
    ids: NDArray[np.uint64]  #: shape (k, 2): of the chunks in its blocks, in order
    rows: NDArray[np.int64]  #: shape (r, 3): file, first chunk, count of chunks
    #: For the rows' chunks in a row: 0 is zeros, n > 0 its own n-th chunk, n < 0 is
    #: the chunk -n of the last generation.
    refs: NDArray[np.int64]


class PackWriter:
    """Tells zeros, known and new chunks apart, and writes the new ones."""

    # Its number is unique among the checkpoint's pack writers; only it writes its
    # counters.

    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        number: int,
        known: BaseChunks | None,
        counters: NDArray[np.int64],
    ) -> None:
        self._recipe = recipe
        self._known = known
        self._counters = counters
        #: Packs that it writes into; settled or abandoned by the owner.
        self.packs = Packs(
            backend,
            recipe.origin,
            writer=number,
            pack_bytes=recipe.pack_bytes,
        )
        self._chunk = recipe.chunk_bytes
        self._chunk_ids = crypto.ChunkIds(recipe.id_key)
        self._block_chunks = max(1, BLOCK_BYTES // self._chunk)
        self._pending = np.empty((self._block_chunks, self._chunk), np.uint8)
        self._filled = 0
        self._count = 0
        self._ids: list[NDArray[np.uint64]] = []
        self._rows: list[tuple[int, int, int]] = []
        self._refs: list[NDArray[np.int64]] = []
        #: The buffer that was taken last, and its chunks: cutting it again each time
        #: takes a tenth of what naming them takes.
        self._buffer: memoryview | None = None
        self._chunks: list[memoryview] = []

    def put(self, file: int, first: int, data: memoryview, length: int) -> None:
        """Take whole chunks of a file."""
        # ``length`` of the bytes are the file's, the rest is padding. ``data`` may be
        # reused on return.
        self._put(file, first, data, self._cut(data), length)

    def _put(
        self,
        file: int,
        first: int,
        data: memoryview,
        chunks: list[memoryview],
        length: int,
    ) -> None:
        rows = np.frombuffer(data, np.uint8).reshape(-1, self._chunk)
        refs = np.zeros(len(rows), np.int64)
        found = not_zero(rows)
        if len(found):
            refs[found] = self._place(rows, chunks, found)
        self._rows.append((file, first, len(rows)))
        self._refs.append(refs)
        self._counters[LOGICAL] += length

    def put_padded(self, file: int, at: int, buffer: memoryview, length: int) -> None:
        """Pad the last chunk with zeros, and take it; see :meth:`put`."""
        # ``buffer`` has BUFFER_BYTES and is changed behind ``length``; the same one
        # each time is fastest.
        whole = length + -length % self._chunk
        buffer[length:whole] = bytes(whole - length)
        if buffer is not self._buffer:
            self._buffer, self._chunks = buffer, self._cut(buffer)
        self._put(file, at // self._chunk, buffer[:whole], self._chunks, length)

    def put_memory(
        self,
        file: int,
        begin: int,
        memory: ProcessMemory,
        part: range,
        buffer: memoryview,
    ) -> None:
        """Take that part of a process's memory; OSError: it cannot be read."""
        # The memory stands from ``begin`` on in the file.
        for at in part[::BUFFER_BYTES]:
            length = min(BUFFER_BYTES, part.stop - at)
            memory.read_into(at, buffer[:length])
            self.put_padded(file, begin + at, buffer, length)

    def report(self) -> Report:
        """Write the rest; the packs settle in the background from now on."""
        if self._filled:
            self._write(self._pending[: self._filled])
            self._filled = 0
        return Report(
            packs=self.packs.close(),
            blocks=_table(self.packs.rows),
            ids=_joined(self._ids, np.empty((0, 2), np.uint64)),
            rows=np.array(self._rows, np.int64).reshape(-1, 3),
            refs=_joined(self._refs, np.empty(0, np.int64)),
        )

    def _cut(self, data: memoryview) -> list[memoryview]:
        return [data[at : at + self._chunk] for at in range(0, len(data), self._chunk)]

    def _place(
        self,
        rows: NDArray[np.uint8],
        chunks: list[memoryview],
        found: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Refs of the chunks that are not zero; new ones are put into a block."""
        named = self._chunk_ids.of([chunks[number] for number in found.tolist()])
        ids = np.frombuffer(named, np.uint64).reshape(-1, 2)
        if self._known is None:
            refs = np.zeros(len(found), np.int64)
        else:
            refs = -self._known.find(ids)
        fresh = refs == 0
        new = found[fresh]
        self._counters[KNOWN] += (len(found) - len(new)) * self._chunk
        refs[fresh] = np.arange(self._count + 1, self._count + 1 + len(new))
        self._count += len(new)
        self._ids.append(ids[fresh])
        self._gather(rows, new)
        return refs

    def _gather(self, rows: NDArray[np.uint8], new: NDArray[np.int64]) -> None:
        # Straight from the buffer where a whole block is contiguous.
        size = self._block_chunks
        while len(new):
            if not self._filled and len(new) >= size and new[size - 1] - new[0] < size:
                self._write(rows[new[0] : new[0] + size])
                new = new[size:]
                continue
            take = min(size - self._filled, len(new))
            into = self._pending[self._filled : self._filled + take]
            np.take(rows, new[:take], axis=0, out=into, mode="clip")
            self._filled += take
            new = new[take:]
            if self._filled == size:
                self._write(self._pending)
                self._filled = 0

    def _write(self, chunks: NDArray[np.uint8]) -> None:
        plain = chunks.reshape(-1).data
        kind, data = codec.pack(plain, self._recipe.compression)
        self._counters[STORED] += self.packs.append(kind, len(chunks), data)


def not_zero(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Numbers of the chunks that hold anything; the first bytes decide for most."""
    words = rows.view(np.uint64)
    some = words[:, 0] != 0
    unsure = np.flatnonzero(~some)
    if len(unsure) == len(rows):
        some = np.bitwise_or.reduce(words, axis=1) != 0
    elif len(unsure):
        some[unsure] = np.bitwise_or.reduce(words[unsure], axis=1) != 0
    return np.flatnonzero(some)


def _table(rows: list[BlockRow]) -> NDArray[Any]:
    return np.array(rows, BLOCKS) if rows else np.empty(0, BLOCKS)


def _joined(parts: list[NDArray[Any]], empty: NDArray[Any]) -> NDArray[Any]:
    # The list is emptied, so that its memory can go.
    joined = np.concatenate([*parts, empty])
    parts.clear()
    return joined
