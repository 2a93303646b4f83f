"""The packs of one pack writer while they are written: objects of encrypted blocks.

Called from one thread at a time. Each call raises ``StoreError`` when there is no room
or no store, or a block reads back differently; nothing can be finished then. Every
block is read back. Where the backend can, that is done at once, while the block is in
the processor's cache, and what comes is compared with what was written, which costs a
quarter of opening it; only the first block of a pack is opened, for a mistake in its
key or its names would be in all of them. Else every block is opened after its pack was
finished. A full pack is finished in the background, which spares the commit most of
its time.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import crypto, layout
from jupyterhub_gpu_reclaim.store.format.compression import MAX_BLOCK_BYTES
from jupyterhub_gpu_reclaim.store.packing.blocks import BlockOpener, BlockRow

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.compression import Kind
    from jupyterhub_gpu_reclaim.store.format.crypto import Origin

#: Large enough for few objects, small enough to be settled while the next one fills.
PACK_BYTES = 64 * 1024 * 1024
#: A pack writer's packs are numbered from its own number times this.
PACKS_PER_WRITER = 1 << 16


class Packs:
    """Packs that are being filled, one after the other."""

    # The number of their pack writer tells them from those of others.

    def __init__(
        self,
        backend: Backend,
        origin: Origin,
        *,
        writer: int,
        pack_bytes: int,
    ) -> None:
        self._backend = backend
        self._origin = origin
        self._next = writer * PACKS_PER_WRITER
        self._limit = pack_bytes
        self._out = memoryview(bytearray(MAX_BLOCK_BYTES + crypto.TAG_BYTES))
        self._back = memoryview(bytearray(MAX_BLOCK_BYTES + crypto.TAG_BYTES))
        self._open: _Pack | None = None
        self._settling: list[tuple[_Pack, Future[None]]] = []
        self._settler = ThreadPoolExecutor(1, thread_name_prefix="store-packs")
        self._failed = False
        #: Every block so far.
        self.rows: list[BlockRow] = []

    def append(self, kind: Kind, chunks: int, data: Buffer) -> int:
        """Return the bytes written."""
        pack = self._open or self._begin()
        number, stored = len(pack.rows), len(data) + crypto.TAG_BYTES
        out = self._out[:stored]
        row = BlockRow(pack.number, number, pack.length, stored, chunks, kind)
        pack.sealer.seal_into(number, data, row.bound(), out)
        try:
            pack.writer.write(out)
            if pack.unseen == number:
                pack.verify(row, self._back[:stored], out)
        except BaseException:
            self._failed = True
            raise
        pack.rows.append(row)
        self.rows.append(row)
        pack.length += stored
        if pack.length >= self._limit:
            self._settle(pack)
        return stored

    def close(self) -> list[tuple[int, int]]:
        """Begin to settle the rest, the last call; number and length of each pack."""
        if self._open is not None:
            self._settle(self._open)
        self._settler.shutdown(wait=False)
        return [(pack.number, pack.length) for pack, _ in self._settling]

    def settled(self, timeout: float) -> None:
        """Wait until every pack is durable, and was read back."""
        futures = [future for _, future in self._settling]
        if wait_for(futures, timeout).not_done:
            raise StoreError(Reason.TIMED_OUT, step="commit", seconds=timeout)
        for future in futures:
            future.result()
        if self._failed:
            raise StoreError(Reason.STORE_FAILED, why="a pack was given up")

    def abandon(self) -> None:
        """Release everything; idempotent, never waits."""
        self._failed = True
        pack, self._open = self._open, None
        if pack is not None:
            pack.writer.abandon()
        self._settler.shutdown(wait=False, cancel_futures=True)
        for pack, future in self._settling:
            if future.cancelled():
                pack.writer.abandon()

    def let_end(self, timeout: float) -> None:
        """Wait until nothing settles any more, after :meth:`abandon`."""
        wait_for([future for _, future in self._settling], timeout)

    def _begin(self) -> _Pack:
        if self._next % PACKS_PER_WRITER == PACKS_PER_WRITER - 1:
            raise StoreError(Reason.STORE_FAILED, why="a checkpoint has too many packs")
        self._open = pack = _Pack(self._backend, self._origin, self._next)
        self._next += 1
        return pack

    def _settle(self, pack: _Pack) -> None:
        self._open = None
        future = self._settler.submit(pack.settle)
        self._settling.append((pack, future))


class _Pack:
    def __init__(self, backend: Backend, origin: Origin, number: int) -> None:
        self._backend = backend
        self.number = number
        self.name = layout.pack(origin.id, number)
        self.sealer = crypto.Sealer(origin.pack_key(number))
        self.rows: list[BlockRow] = []
        #: The first of them that was not read back yet.
        self.unseen = 0
        self.length = 0
        self.writer = backend.create(self.name)

    def verify(self, row: BlockRow, back: memoryview, written: memoryview) -> None:
        """Check that a block just written is there, if that can be checked now."""
        # ``back`` is room for what is read.
        count = self.writer.read_back(row.offset, back)
        if count is None:
            return
        if not np.array_equal(back[:count], written):
            self._differs()
        if row.number == 0:
            try:
                self.sealer.open(row.number, back, row.bound())
            except crypto.Forged:
                self._differs()
        self.unseen += 1

    def settle(self) -> None:
        """Make it durable, and check every block that was not checked before."""
        try:
            self.writer.finish()
        finally:
            self.writer.abandon()
        if unseen := self.rows[self.unseen :]:
            blocks = BlockOpener(self._backend)
            for row in unseen:
                try:
                    blocks.open(self.name, self.sealer, row)
                except crypto.Forged:
                    self._differs()
        if self._backend.length(self.name) != self.length:
            self._differs()

    def _differs(self) -> NoReturn:
        why = f"{self.name} reads back differently"
        raise StoreError(Reason.STORE_FAILED, why=why) from None
