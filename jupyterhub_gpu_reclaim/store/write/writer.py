"""Writes a checkpoint, file by file, each from one thread. Thread-safe."""

from __future__ import annotations

import contextlib
import logging
import mmap
import threading
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.catalogue.locks import INTENT_FRESH_SECONDS
from jupyterhub_gpu_reclaim.store.format.index import is_name
from jupyterhub_gpu_reclaim.store.format.manifest import Body
from jupyterhub_gpu_reclaim.store.packing.base_blocks import Verdict
from jupyterhub_gpu_reclaim.store.packing.buffers import BufferCutter
from jupyterhub_gpu_reclaim.store.packing.pack_writer import (
    KNOWN,
    LOGICAL,
    STORED,
)
from jupyterhub_gpu_reclaim.store.write.commit import (
    FileEntry,
    merge,
    publish_manifest,
    write_index,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, GpuSample, Step
    from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
    from jupyterhub_gpu_reclaim.store.workers.pack_writers import PackWriters
    from jupyterhub_gpu_reclaim.store.write.commit import BaseCheckpoint

log = logging.getLogger(__name__)


class CheckpointWriter:
    """``ended`` is called once, when the checkpoint is committed or gone."""

    def __init__(
        self,
        backend: Backend,
        info: CheckpointInfo,
        recipe: Recipe,
        *,
        pack_writers: PackWriters,
        base: BaseCheckpoint | None,
        keys: Wrapper,
        clock: Clock,
        ended: Callable[[str], None],
        discard: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._info = info
        self._id = info.id
        self._recipe = recipe
        self._pack_writers = pack_writers
        self._base = base
        self._keys = keys
        self._clock = clock
        self._ended = ended
        self._remove = discard
        self._files: list[FileWriter] = []
        self._names: set[str] = set()
        #: Guards the counters and the files; held for moments only.
        self._lock = threading.Lock()
        #: Held while it is committed or removed: one of them wins, whole.
        self._ending = threading.Lock()
        self._failure: BaseException | None = None
        self._cancelled = False
        self._committed: CheckpointInfo | None = None
        self._gone = False

    @property
    def logical_bytes(self) -> int:
        return self._pack_writers.counted(LOGICAL)

    @property
    def stored_bytes(self) -> int:
        return self._pack_writers.counted(STORED)

    def file(self, name: str) -> FileWriter:
        """Begin a file; several may be open at once, each for one thread.

        ``name``: ``[A-Za-z0-9._-]`` components joined by ``/``, else BadRequest;
        none twice.
        """
        if not is_name(name):
            raise BadRequest(Reason.INVALID, what=f"No file may be called {name!r}.")
        with self._lock:
            self._check_open()
            if name in self._names:
                raise BadRequest(Reason.INVALID, what=f"{name} is there already.")
            self._names.add(name)
            return self._begin(name)

    @property
    def parts(self) -> Callable[[], FileWriter] | None:
        """Begins a part: a file without a name, which others are composed of.

        None: pages of memory are no whole chunks here.
        """
        return self._part if self._recipe.chunk_bytes == mmap.PAGESIZE else None

    def _part(self) -> FileWriter:
        with self._lock:
            self._check_open()
            return self._begin("")

    def _begin(self, name: str) -> FileWriter:
        number, chunk = len(self._files), self._recipe.chunk_bytes
        file = FileWriter(self, self._pack_writers, number, name, chunk)
        self._files.append(file)
        return file

    def add(self, name: str, data: bytes) -> None:
        """Write a whole small file; see :meth:`file`."""
        with self.file(name) as file:
            file.write(data)

    def commit(
        self,
        *,
        steps: Sequence[Step] = (),
        frozen_seconds: float = 0.0,  # how long the session stood still
        gpus: Sequence[GpuSample] = (),
        goes_on: bool = False,  # whether the saved session has gone on since
        not_kept: str = "",  # names of files that it could write, and not in it
        name: str = "",  # given by a person
        timeout: float = 600.0,  # seconds to wait for the disk
        last_look: Callable[[], None] | None = None,
    ) -> CheckpointInfo:
        """Make it exist: on return it is durable, read back and listed.

        ``last_look`` is called when nothing but the manifest is missing; its error bars
        the commit. A StoreError: it does not exist, and its objects are removed.
        """
        with self._ending:
            if self._committed:
                return self._committed
            try:
                with self._lock:
                    self._check_open()
                info = self._publish(
                    timeout,
                    last_look or (lambda: None),
                    steps=list(steps),
                    frozen_seconds=frozen_seconds,
                    gpus=list(gpus),
                    goes_on=goes_on,
                    not_kept=not_kept,
                    name=name,
                )
            except BaseException as error:
                self.fail(error)
                try:
                    self._discard()
                except StoreError as left:
                    key = self._info.key
                    log.warning("%s remains of %s are left: %s", key, self._id, left)
                raise
            self._committed = info
            # Before an abort hears that this has won: it is deleted then.
            self._ended(self._id)
        return info

    def abort(self) -> bool:
        """Remove all; idempotent, from any thread. False: a commit had won."""
        self._cancelled = True
        if not self._committed:
            self._pack_writers.cancel()
        with self._ending:
            if self._committed:
                return False
            self._discard()
        return True

    def fail(self, error: BaseException) -> None:
        """A part could not be written: bar the commit."""
        with self._lock:
            self._failure = self._failure or error

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """An error inside bars the commit."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _check_open(self) -> None:
        if isinstance(self._failure, ReclaimError):
            raise StoreError(
                self._failure.reason,
                detail=self._failure.detail,
                **self._failure.facts,
            ) from self._failure
        if self._failure:
            raise StoreError(
                Reason.STORE_FAILED,
                why="a file was not written to its end",
                detail=repr(self._failure),
            ) from self._failure
        if self._cancelled or self._gone:
            raise StoreError(Reason.CANCELLED)
        if self._committed:
            raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=self._id)

    def _publish(
        self, timeout: float, last_look: Callable[[], None], **record: Any
    ) -> CheckpointInfo:
        with self._lock:
            files = [file.entry() for file in self._files]
        recipe = self._recipe
        reports = self._pack_writers.reports(timeout)
        looked = self._pack_writers.verdicts()
        merged = merge(files, recipe.chunk_bytes, reports, self._base, looked)
        self._tell_damage()
        # The packs settle meanwhile; nothing that names them is written before.
        self._pack_writers.settled(timeout)
        index = write_index(self._backend, recipe.origin, merged.index)
        origins = [recipe.origin, *merged.origins]
        own = sum(length for report in reports for _, length in report.packs)
        keeps = dict.fromkeys((origin.id for origin in origins), 0)
        keeps[self._id] = index
        for pack in merged.packs:
            keeps[origins[pack.origin].id] += pack.length
        info = msgspec.structs.replace(
            self._info,
            created=self._clock.now(),
            logical_bytes=sum(file.length for file in files if file.name),
            stored_bytes=own + index,
            keeps=keeps,
            deduplicated_bytes=self._pack_writers.counted(KNOWN),
            **record,
        )
        body = Body(
            info=info,
            chunk_bytes=recipe.chunk_bytes,
            id_key=recipe.id_key,
            origins=origins,
            packs=merged.packs,
            index=index,
        )
        last_look()
        publish_manifest(self._backend, body, self._keys, self._last_look)
        return info

    def _tell_damage(self) -> None:
        if self._base is None:
            return
        body, blocks = self._base.body, self._base.index.blocks
        damaged = self._pack_writers.verdicts() == Verdict.DAMAGED
        for pack in np.unique(blocks["pack"][damaged]).tolist():
            log.warning(
                "%s %s is damaged: what %s needs of it was stored again",
                self._info.key,
                body.pack_name(body.packs[pack]),
                self._id,
            )

    def _last_look(self) -> None:
        if self._cancelled:
            raise StoreError(Reason.CANCELLED)
        if self._clock.now() > self._info.created + INTENT_FRESH_SECONDS / 2:
            # Another process may have taken its packs for remains.
            raise StoreError(Reason.STORE_FAILED, why="it took too long to save")

    def _discard(self) -> None:
        if self._gone:
            return
        self._pack_writers.abandon()
        self._remove(self._id)
        self._gone = True
        self._ended(self._id)


class FileWriter:
    """Writes one file of a checkpoint, from one thread; a context manager."""

    # Leaving the context by an error bars the commit of the whole checkpoint.

    def __init__(
        self,
        owner: CheckpointWriter,
        pack_writers: PackWriters,
        number: int,
        name: str,
        chunk_bytes: int,
    ) -> None:
        self._owner = owner
        self._pack_writers = pack_writers
        self.number = number
        self._name = name
        self._chunk = chunk_bytes
        self._cutter = BufferCutter(self._put, chunk_bytes)
        self._first = 0
        self._length = 0
        self._closed = False
        self._pieces: list[tuple[int, int, int]] = []

    def write(self, data: Buffer) -> None:
        """The buffer may be reused on return; StoreError: the checkpoint is lost."""
        self._check_open()
        view = memoryview(data).cast("B")
        with self._owner.failing():
            if self._cutter.is_empty and self._first >= 0:
                begin = self._first * self._chunk
                taken = self._pack_writers.share(self.number, begin, view)
                self._first += taken // self._chunk
                self._length += taken
                view = view[taken:]
            self._cutter.feed(view)

    def take_memory(self, memory: ProcessMemory) -> None:
        """Take a standing process's memory as the whole file.

        :meth:`CheckpointWriter.abort` from another thread ends it. The file still has
        to be closed.

        Raises:
            OSError: it cannot be read; a StoreError where a worker was to read it.
        """
        self._refuse_begun()
        with self._owner.failing():
            self._pack_writers.take_memory(self.number, 0, memory)
        self._length, self._first = memory.length, -1

    def compose(
        self,
        parts: Sequence[tuple[FileWriter, object]],
        pieces: Sequence[tuple[int, int, int]],
    ) -> None:
        """Make the whole file out of parts (:attr:`CheckpointWriter.parts`).

        ``pieces``: which part, its first chunk, and how many chunks.
        """
        self._refuse_begun()
        chunks = [part.entry().length // self._chunk for part, _ in parts]
        for number, first, many in pieces:
            if first + many > chunks[number]:
                raise StoreError(Reason.STORE_FAILED, why="a part of it is too short")
            self._pieces.append((parts[number][0].number, first, many))
            self._length += many * self._chunk
        self._first = -1

    def cancel(self) -> None:
        """Make `take_memory` raise soon, from any thread; idempotent."""
        # All of the checkpoint is lost.
        self._owner.fail(StoreError(Reason.CANCELLED))
        self._pack_writers.cancel()

    def close(self) -> None:
        """Idempotent. A file that is not closed bars the commit."""
        if self._closed:
            return
        with self._owner.failing():
            self._cutter.flush()
        self._closed = True

    def entry(self) -> FileEntry:
        if not self._closed:
            raise StoreError(
                Reason.STORE_FAILED, why=f"{self._name} was not written to its end"
            )
        return FileEntry(self._name, self._length, self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            self.close()
        else:
            self._owner.fail(error)

    def _put(self, data: memoryview, length: int) -> None:
        if self._first < 0:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} has ended")
        self._pack_writers.put(self.number, self._first, data, length)
        self._first += len(data) // self._chunk
        self._length += length

    def _refuse_begun(self) -> None:
        self._check_open()
        if self._length or self._first:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} was begun already")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(Reason.STORE_FAILED, why=f"{self._name} is closed")
