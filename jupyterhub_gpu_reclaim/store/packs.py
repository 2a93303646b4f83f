"""The packs of one checkpoint while it is written: few objects that hold many chunks.

Called by the writer, from as many threads as write files. A thread takes an idle pack,
appends, and gives it back, so that there are no more packs than threads and no thread
waits for another's write. A pack that is full is synced and read back in the
background, which spares the commit most of its time.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING

from blake3 import blake3

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.manifest import ObjectRef

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer, ObjectWriter

#: Large enough for few objects, small enough to be settled while the next one fills.
PACK_BYTES = 128 * 1024 * 1024
_READ_BYTES = 1024 * 1024


class Packs:
    """Packs that are being filled.

    Args:
        backend: where they stand.
        prefix: of their names; ends in ``/``.
        pack_bytes: a pack that has that many is full.
    """

    def __init__(self, backend: Backend, prefix: str, *, pack_bytes: int) -> None:
        self._backend = backend
        self._prefix = prefix
        self._limit = pack_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._count = 0
        self._idle: list[_Pack] = []
        self._settling: list[tuple[_Pack, Future[ObjectRef]]] = []
        self._settler = ThreadPoolExecutor(1, thread_name_prefix="store-packs")

    def append(self, data: Buffer) -> tuple[int, int]:
        """Store bytes in some pack.

        Returns:
            The pack's number and the offset in it.

        Raises:
            StoreError: no room, or no store; that pack is given up.
        """
        pack = self._take()
        try:
            offset = pack.append(data)
        except BaseException:
            pack.writer.abandon()
            raise
        self._give(pack)
        return pack.number, offset

    def finish(self, timeout: float) -> list[ObjectRef]:
        """Sync and read back what is left; no thread may be appending.

        Args:
            timeout: seconds to wait for the disk.

        Returns:
            All packs in the order of their numbers.

        Raises:
            StoreError: a pack is not durable, or reads back differently.
        """
        with self._lock:
            self._closed = True
            for pack in self._idle:
                self._settle(pack)
            self._idle.clear()
            settling = list(self._settling)
        self._settler.shutdown(wait=False)
        futures = [future for _, future in settling]
        if wait_for(futures, timeout).not_done:
            raise StoreError(Reason.TIMED_OUT, step="commit", seconds=timeout)
        settling.sort(key=lambda each: each[0].number)
        refs = [future.result() for _, future in settling]
        if [pack.number for pack, _ in settling] != list(range(self._count)):
            raise StoreError(Reason.STORE_FAILED, why="a pack was given up")
        return refs

    def abandon(self) -> None:
        """Let go of everything and make nothing new; idempotent, never waits.

        Packs in the hands of a thread are let go of by that thread.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            settling = list(self._settling)
        self._settler.shutdown(wait=False, cancel_futures=True)
        for pack in idle:
            pack.writer.abandon()
        for pack, future in settling:
            if future.cancelled():
                pack.writer.abandon()

    def _take(self) -> _Pack:
        with self._lock:
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            if self._idle:
                return self._idle.pop()
            # Made under the lock: after `abandon` no object may appear any more.
            name = f"{self._prefix}{self._count:06d}"
            pack = _Pack(self._count, name, self._backend.create(name))
            self._count += 1
            return pack

    def _give(self, pack: _Pack) -> None:
        with self._lock:
            if self._closed:
                pack.writer.abandon()
            elif pack.length >= self._limit:
                self._settle(pack)
            else:
                self._idle.append(pack)

    def _settle(self, pack: _Pack) -> None:
        future = self._settler.submit(pack.settle, self._backend)
        self._settling.append((pack, future))


class _Pack:
    """One object that is being filled, by one thread at a time."""

    def __init__(self, number: int, name: str, writer: ObjectWriter) -> None:
        self.number = number
        self.name = name
        self.writer = writer
        self.length = 0
        self._hash = blake3()

    def append(self, data: Buffer) -> int:
        offset = self.length
        self.writer.write(data)
        self._hash.update(data)
        self.length += len(data)
        return offset

    def settle(self, backend: Backend) -> ObjectRef:
        """Make it durable, read it back once, and vouch for it."""
        try:
            self.writer.finish()
        finally:
            self.writer.abandon()
        ref = ObjectRef(
            name=self.name, length=self.length, digest=self._hash.hexdigest()
        )
        read_back(backend, ref)
        return ref


def read_back(backend: Backend, ref: ObjectRef) -> None:
    """See that an object that was just written stands there as it was written.

    Raises:
        StoreError: ``STORE_FAILED``, it does not; or it cannot be read.
    """
    found = blake3()
    offset = 0
    while data := backend.read(ref.name, offset, _READ_BYTES):
        found.update(data)
        offset += len(data)
    if offset != ref.length or found.hexdigest() != ref.digest:
        raise StoreError(Reason.STORE_FAILED, why=f"{ref.name} reads back differently")
