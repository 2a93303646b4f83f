"""One file of a checkpoint while it is written: chunks, encoded and put into packs.

Made by the checkpoint's writer, called by the thread that reads one of CRIU's pipes. It
never ends a checkpoint; a failure of its own bars the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store import codec
from jupyterhub_gpu_reclaim.store.chunker import Chunker
from jupyterhub_gpu_reclaim.store.manifest import ChunkRef, FileEntry

if TYPE_CHECKING:
    from types import TracebackType

    from jupyterhub_gpu_reclaim.store.backend import Buffer
    from jupyterhub_gpu_reclaim.store.packs import Packs
    from jupyterhub_gpu_reclaim.store.writer import CheckpointWriter


class FileWriter:
    """Writes one file of a checkpoint, from one thread; a context manager.

    Leaving the context by an error marks the whole checkpoint as not to be committed.
    """

    def __init__(self, owner: CheckpointWriter, packs: Packs, name: str) -> None:
        self._owner = owner
        self._packs = packs
        self._name = name
        self._chunks: list[ChunkRef] = []
        self._chunker = Chunker(self._store)
        self._length = 0
        self._closed = False

    def write(self, data: Buffer) -> None:
        """Append; the buffer may be used again when this returns.

        Raises:
            StoreError: no room, no store, or called off; the checkpoint is lost.
        """
        if self._closed:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} is closed")
        try:
            self._chunker.feed(data)
        except BaseException as error:
            self._owner.fail(error)
            raise

    def close(self) -> None:
        """End the file; idempotent. A file that is not closed bars the commit.

        Raises:
            StoreError: see :meth:`write`.
        """
        if self._closed:
            return
        try:
            self._chunker.flush()
        except BaseException as error:
            self._owner.fail(error)
            raise
        self._closed = True

    def entry(self) -> FileEntry:
        """What the index says of it.

        Raises:
            StoreError: it is not closed.
        """
        if not self._closed:
            raise StoreError(
                Reason.STORE_FAILED, why=f"{self._name} was not written to its end"
            )
        return FileEntry(name=self._name, length=self._length, chunks=self._chunks)

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

    def _store(self, plain: memoryview) -> None:
        encoded = codec.encode(plain)
        pack = offset = 0
        if encoded.data:
            pack, offset = self._packs.append(encoded.data)
        stored = len(encoded.data)
        self._chunks.append(
            ChunkRef(encoded.kind, pack, offset, stored, len(plain), encoded.digest)
        )
        self._length += len(plain)
        self._owner.count(len(plain), stored)
