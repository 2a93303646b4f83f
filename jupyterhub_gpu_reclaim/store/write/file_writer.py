"""One file of a checkpoint while it is written: buffers, passed to pack writers.

One thread writes a file. It never ends a checkpoint; a failure of its own bars the
commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.buffers import Slots

if TYPE_CHECKING:
    from types import TracebackType

    from jupyterhub_gpu_reclaim.store.backend import Buffer
    from jupyterhub_gpu_reclaim.store.workers.pack_writers import Lanes
    from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter


class FileWriter:
    """Writes one file of a checkpoint, from one thread; a context manager.

    Leaving the context by an error marks the whole checkpoint as not to be committed.
    """

    def __init__(
        self,
        owner: CheckpointWriter,
        lanes: Lanes,
        number: int,
        name: str,
        chunk_bytes: int,
    ) -> None:
        self._owner = owner
        self._lanes = lanes
        self._number = number
        self._name = name
        self._chunk = chunk_bytes
        self._slots = Slots(self._put, chunk_bytes)
        self._first = 0
        self._length = 0
        self._closed = False

    def write(self, data: Buffer) -> None:
        """Append; the buffer may be used again when this returns.

        Raises:
            StoreError: no room, no store, or cancelled; the checkpoint is lost.
        """
        self._check_open()
        try:
            self._slots.feed(data)
        except BaseException as error:
            self._owner.fail(error)
            raise

    def take_pipe(self, pipe: int) -> int:
        """The whole file: all that comes out of a pipe until its end.

        The workers read it, where there are any. :meth:`CheckpointWriter.abort` from
        another thread ends it.

        Args:
            pipe: blocking or not; it is not closed here.

        Returns:
            How many bytes came. The file still has to be closed.

        Raises:
            StoreError: see :meth:`write`; or something was written before.
        """
        self._check_open()
        if self._length or self._first:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} was begun already")
        try:
            self._length = self._lanes.take_pipe(self._number, pipe)
            # Nothing may follow a chunk that was filled up.
            self._first = -1
        except BaseException as error:
            self._owner.fail(error)
            raise
        return self._length

    def cancel(self) -> None:
        """Make a running :meth:`take_pipe` raise soon; the checkpoint is lost.

        From any thread, any number of times; it never blocks.
        """
        self._owner.fail(StoreError(Reason.CANCELLED))
        self._lanes.call_off()

    def close(self) -> None:
        """End the file; idempotent. A file that is not closed bars the commit.

        Raises:
            StoreError: see :meth:`write`.
        """
        if self._closed:
            return
        try:
            self._slots.flush()
        except BaseException as error:
            self._owner.fail(error)
            raise
        self._closed = True

    def entry(self) -> tuple[str, int]:
        """Its name and length.

        Raises:
            StoreError: it is not closed.
        """
        if not self._closed:
            raise StoreError(
                Reason.STORE_FAILED, why=f"{self._name} was not written to its end"
            )
        return self._name, self._length

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._owner.fail(error)

    def _put(self, data: memoryview, length: int) -> None:
        if self._first < 0:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} has ended")
        self._lanes.put(self._number, self._first, data, length)
        self._first += len(data) // self._chunk
        self._length += length

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} is closed")
