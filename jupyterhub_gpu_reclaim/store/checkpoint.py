"""A committed checkpoint opened for reading; only verified bytes. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, starmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format.index import chunks_of, damaged
from jupyterhub_gpu_reclaim.store.packing.blocks import Blocks, BlockSource, is_far
from jupyterhub_gpu_reclaim.store.read import memory_restore
from jupyterhub_gpu_reclaim.store.read.extents import (
    ZERO_BYTES,
    ZEROS,
    Extent,
    extents,
    rest_of,
)
from jupyterhub_gpu_reclaim.store.read.memory_restore import CopyPiece
from jupyterhub_gpu_reclaim.store.workers.group import CopyGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex
    from jupyterhub_gpu_reclaim.store.format.manifest import Body
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool

#: Blocks that are opened ahead of the reader, and kept behind: 256 KiB each, mostly.
_AHEAD = 8
_KEPT = 64
_READERS = 2
#: So little is not worth threads; and how many of its blocks are kept.
_SMALL_BYTES = 512 * 1024
_FEW_BLOCKS = 16
_ZEROS = bytes(ZERO_BYTES)
#: So little is copied before a worker is there.
_FEW_TICKETS = 2


class Damage(NamedTuple):
    """A damaged part of a checkpoint, or one that cannot be opened."""

    checkpoint: str
    file: str
    object: str  #: where it stands in the backend
    why: str
    code: str = str(Reason.CHECKPOINT_DAMAGED.value)

    @property
    def locked(self) -> bool:
        """Whether only its master key is missing, which says nothing of its bytes."""
        return self.code == str(Reason.KEY_MISSING.value)


class CheckpointReader:
    """Without a pool our own threads copy. Each call may raise ``StoreError``."""

    def __init__(
        self, backend: Backend, body: Body, index: ChunkIndex, pool: Pool | None
    ) -> None:
        self._backend = backend
        self._body = body
        self._index = index
        self._pool = pool
        self._chunk = body.chunk_bytes
        self._source = BlockSource(backend, body, index.blocks)
        self._blocks = Blocks(self._source)
        #: Of small files, with their last blocks, the last that was needed at the end.
        self._lock = threading.Lock()
        self._few: OrderedDict[int, Buffer] = OrderedDict()
        self._files = index.places(self._chunk)

    @property
    def info(self) -> CheckpointInfo:
        return self._body.info

    def names(self) -> list[str]:
        return list(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def size(self, name: str) -> int:
        """Plain bytes of a file."""
        return self._file(name)[1]

    def read(self, name: str) -> bytes:
        """A whole file; for small ones."""
        return b"".join(self.stream(name))

    def stream(
        self, name: str, *, skip: Iterable[tuple[int, int]] = ()
    ) -> Iterator[Buffer]:
        """A file, extent by extent, each checked before it is returned.

        ``skip``: ranges (offset, length) to leave out. A missing file is an error at
        once, a damaged block when its turn comes: what came before it was right.
        """
        first, length = self._file(name)
        ranges = rest_of(length, skip)
        wanted = chain.from_iterable(
            extents(self._index, first, self._chunk, offset, count).rows()
            for offset, count in ranges
        )
        if sum(count for _, count in ranges) <= _SMALL_BYTES:
            return (self._small(name, extent) for extent in wanted)
        return self._stream(name, wanted)

    def copy_to(
        self,
        pieces: Mapping[str, Iterable[tuple[int, int, int, int]]],
        *,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Write pieces (like :class:`CopyPiece`) into stopped processes' memory.

        The memory must be fresh: zeros are not written. Nothing is written that was not
        authenticated. ``progress`` gets the bytes done since its last call.
        ``cancelled`` is asked now and then. Returns the bytes of the pieces.

        Raises:
            StoreError: no such file, a block is damaged, a process is gone or its
                memory is not there, or ``CANCELLED``. Some may have been written.
        """
        wanted: list[tuple[int, CopyPiece]] = []
        for name, of_it in pieces.items():
            first, length = self._file(name)
            for piece in starmap(CopyPiece, of_it):
                if min(piece) < 0 or piece.offset + piece.length > length:
                    raise damaged(f"{name} has no such part")
                wanted.append((first, piece))
        plan = memory_restore.plan(self._index, self._chunk, wanted)
        memory_restore.oversee(self._copiers(plan), plan, cancelled, progress)
        return sum(piece.length for _, piece in wanted)

    def _copiers(self, plan: memory_restore.CopyPlan) -> memory_restore.Copiers:
        if self._pool is None or len(plan.tickets) <= _FEW_TICKETS:
            return memory_restore.CopyHere(Blocks(self._source), plan)
        return CopyGroup(self._pool, self._source, plan)

    def verify(
        self, progress: Callable[[int, int], None] | None = None
    ) -> list[Damage]:
        """Read all of its packs; return what is damaged, in the packs' order.

        ``progress`` gets blocks done and blocks in all. StoreError: the store does not
        work, which says nothing of the checkpoint.
        """
        problems = []
        blocks, count = Blocks(self._source), len(self._index.blocks)
        for block in range(count):
            problems += self._verify(block, blocks)
            if progress is not None:
                progress(block + 1, count)
        return problems

    def _verify(self, block: int, blocks: Blocks) -> list[Damage]:
        try:
            blocks.plain(block)
        except StoreError as error:
            if error.reason is not Reason.CHECKPOINT_DAMAGED:
                raise
            number = int(self._index.blocks[block]["pack"])
            pack = self._body.pack_name(self._body.packs[number])
            why, id_ = str(error.facts["why"]), self.info.id
            return [Damage(id_, file, pack, why) for file in self._users(block)]
        return []

    def _users(self, block: int) -> list[str]:
        low, high = self._index.bases[block], self._index.bases[block + 1]
        at = np.flatnonzero((self._index.refs > low) & (self._index.refs <= high))
        return [
            name
            for name, (first, length) in self._files.items()
            if ((at >= first) & (at < first + chunks_of(length, self._chunk))).any()
        ]

    def _stream(self, name: str, wanted: Iterator[Extent]) -> Iterator[Buffer]:
        own = threading.local()

        def begin() -> None:
            own.blocks = Blocks(self._source)

        def read(block: int) -> Buffer:
            return _read(own.blocks, block, name)

        # Two would each read all of what a far store gives at once.
        count = 1 if is_far(self._backend) else _READERS
        with ThreadPoolExecutor(count, "store-read", begin) as readers:
            kept: OrderedDict[int, Future[Buffer]] = OrderedDict()
            queue: list[Extent] = []
            try:
                while True:
                    while len(queue) < _AHEAD and (extent := next(wanted, None)):
                        queue.append(extent)
                        if extent.block == ZEROS:
                            continue
                        if extent.block not in kept:
                            kept[extent.block] = readers.submit(read, extent.block)
                        kept.move_to_end(extent.block)
                    if not queue:
                        return
                    extent = queue.pop(0)
                    zeros = extent.block == ZEROS
                    yield _part(b"" if zeros else kept[extent.block].result(), extent)
                    while len(kept) > _KEPT:
                        kept.popitem(last=False)
            finally:
                for future in kept.values():
                    future.cancel()

    def _small(self, name: str, extent: Extent) -> Buffer:
        # Its block holds other small files, and is kept.
        if extent.block == ZEROS:
            return _part(b"", extent)
        with self._lock:
            plain = self._few.pop(extent.block, None)
            if plain is None:
                plain = _read(self._blocks, extent.block, name)
            self._few[extent.block] = plain
            while len(self._few) > _FEW_BLOCKS:
                self._few.popitem(last=False)
        return _part(plain, extent)

    def _file(self, name: str) -> tuple[int, int]:
        if name not in self._files:
            raise damaged(f"it has no file {name}")
        return self._files[name]


def _read(blocks: Blocks, block: int, name: str) -> Buffer:
    try:
        plain = blocks.plain(block)
        return bytes(plain) if isinstance(plain, memoryview) else plain
    except StoreError as error:
        if "why" in error.facts:
            why = f"{error.facts['why']} ({name})"
            error = StoreError(error.reason, detail=error.detail, why=why)
        raise error from None


def _part(plain: Buffer, extent: Extent) -> memoryview:
    if extent.block == ZEROS:
        return memoryview(_ZEROS)[: extent.length]
    return memoryview(plain)[extent.start : extent.start + extent.length]
