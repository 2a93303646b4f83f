"""A committed checkpoint that is read: names, sizes, bytes that have been checked.

Made by the repository, called by the agent's restore from several threads at once. It
hands out nothing whose digest it has not seen to be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.store import codec
from jupyterhub_gpu_reclaim.store.manifest import Body, ChunkRef, FileEntry, damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer

_ZEROS = bytes(codec.MAX_CHUNK_BYTES)


class Checkpoint:
    """The contents of one checkpoint.

    Args:
        backend: where they stand.
        body: of its manifest.
        files: of its index.
    """

    def __init__(self, backend: Backend, body: Body, files: list[FileEntry]) -> None:
        self._backend = backend
        self._body = body
        self._files = {file.name: file for file in files}

    @property
    def info(self) -> CheckpointInfo:
        """What the manifest says of it."""
        return self._body.info

    def names(self) -> list[str]:
        """Its files, in the order in which they were begun."""
        return list(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def size(self, name: str) -> int:
        """Plain bytes of a file.

        Raises:
            StoreError: it has no such file.
        """
        return self._file(name).length

    def read(self, name: str) -> bytes:
        """A whole file; for small ones.

        Raises:
            StoreError: it has no such file, or it is damaged.
        """
        return b"".join(self.stream(name))

    def stream(self, name: str) -> Iterator[Buffer]:
        """A file, chunk by chunk, each checked before it is handed out.

        Raises:
            StoreError: it has no such file (at once), or a chunk is damaged (when its
                turn comes: what came before it was right).
        """
        return self._chunks(self._file(name))

    def _chunks(self, file: FileEntry) -> Iterator[Buffer]:
        for number, chunk in enumerate(file.chunks):
            if chunk.kind is codec.Kind.ZERO:
                yield memoryview(_ZEROS)[: chunk.length]
            else:
                yield self._chunk(file, number, chunk)

    def _chunk(self, file: FileEntry, number: int, chunk: ChunkRef) -> bytes:
        pack = self._body.packs[chunk.pack].name
        data = self._backend.read(pack, chunk.offset, chunk.stored)
        try:
            return codec.decode(chunk.kind, data, chunk.length, chunk.digest)
        except StoreError as error:
            why = f"chunk {number} of {file.name} in {pack}: {error.facts['why']}"
            raise damaged(why) from None

    def _file(self, name: str) -> FileEntry:
        if name not in self._files:
            raise damaged(f"it has no file {name}")
        return self._files[name]
