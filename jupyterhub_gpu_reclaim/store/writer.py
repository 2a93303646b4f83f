"""A checkpoint while it is written, until it is committed or has never been.

Made by the repository, called by the agent's capture from several threads at once. It
publishes the manifest last, and only when everything that it names has been synced and
read back (law 1).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from blake3 import blake3

from jupyterhub_gpu_reclaim.errors import BadRequest, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.models import CheckpointInfo, SessionKey, Step, Value
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store import layout
from jupyterhub_gpu_reclaim.store.file_writer import FileWriter
from jupyterhub_gpu_reclaim.store.manifest import (
    Body,
    FileEntry,
    ObjectRef,
    encode_index,
    encode_manifest,
    is_name,
)
from jupyterhub_gpu_reclaim.store.packs import Packs, read_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend

log = logging.getLogger(__name__)


class Draft(Value, frozen=True, kw_only=True):
    """What is known of a checkpoint before it is written."""

    id: str
    key: SessionKey
    incarnation: str
    generation: int


class CheckpointWriter:
    """Writes one checkpoint.

    Args:
        backend: where to.
        draft: whose checkpoint it is.
        clock: for the time of the commit.
        ended: called once, when it is committed or gone.
        pack_bytes: a pack that has that many is full.
    """

    def __init__(
        self,
        backend: Backend,
        draft: Draft,
        clock: Clock,
        ended: Callable[[str], None],
        *,
        pack_bytes: int,
    ) -> None:
        self._backend = backend
        self._draft = draft
        self._clock = clock
        self._ended = ended
        self._packs = Packs(
            backend, layout.pack_prefix(draft.id), pack_bytes=pack_bytes
        )
        self._files: dict[str, FileWriter] = {}
        #: Guards the counters and the files; held for moments only.
        self._lock = threading.Lock()
        #: Held while it is committed or removed: one of them wins, whole.
        self._ending = threading.Lock()
        self._failure: BaseException | None = None
        self._called_off = False
        self._committed: CheckpointInfo | None = None
        self._gone = False
        self._logical = 0
        self._stored = 0

    @property
    def logical_bytes(self) -> int:
        """Plain bytes taken so far."""
        return self._logical

    @property
    def stored_bytes(self) -> int:
        """Bytes written for them so far."""
        return self._stored

    def file(self, name: str) -> FileWriter:
        """Begin a file; several may be open at once, each for one thread.

        Args:
            name: ``[A-Za-z0-9._-]`` components joined by ``/``; none twice.

        Raises:
            BadRequest: no such name may be.
            StoreError: the checkpoint has ended.
        """
        if not is_name(name):
            raise BadRequest(Reason.INVALID, what=f"No file may be called {name!r}.")
        with self._lock:
            self._check_open()
            if name in self._files:
                raise BadRequest(Reason.INVALID, what=f"{name} is there already.")
            file = self._files[name] = FileWriter(self, self._packs, name)
            return file

    def add(self, name: str, data: bytes) -> None:
        """A whole small file.

        Raises:
            BadRequest: see :meth:`file`.
            StoreError: see :meth:`FileWriter.write`.
        """
        with self.file(name) as file:
            file.write(data)

    def commit(
        self,
        *,
        steps: Sequence[Step] = (),
        frozen_seconds: float = 0.0,
        timeout: float = 600.0,
    ) -> CheckpointInfo:
        """Make it exist: when this returns it is durable, read back and listed.

        Args:
            steps: what the capture did, for the record.
            frozen_seconds: how long the session stood still, for the record.
            timeout: seconds to wait for the disk.

        Raises:
            StoreError: it does not exist, and what was written is removed.
        """
        with self._ending:
            if self._committed:
                return self._committed
            try:
                with self._lock:
                    self._check_open()
                info = self._publish(list(steps), frozen_seconds, timeout)
            except BaseException as error:
                self.fail(error)
                self._try_discard()
                raise
            self._committed = info
        self._ended(self._draft.id)
        return info

    def abort(self) -> bool:
        """Remove everything that was written; idempotent, from any thread.

        Returns:
            Whether the checkpoint does not exist: False when a commit had won.

        Raises:
            StoreError: it could not be removed; call again, or ``delete`` it.
        """
        self._called_off = True
        with self._ending:
            if self._committed:
                return False
            self._discard()
        return True

    def fail(self, error: BaseException) -> None:
        """Remember that a part could not be written, so that none can be committed."""
        with self._lock:
            self._failure = self._failure or error

    def count(self, logical: int, stored: int) -> None:
        """Add to the counters."""
        with self._lock:
            self._logical += logical
            self._stored += stored

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
        if self._called_off or self._gone:
            raise StoreError(Reason.CANCELLED)
        if self._committed:
            raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=self._draft.id)

    def _publish(
        self, steps: list[Step], frozen_seconds: float, timeout: float
    ) -> CheckpointInfo:
        with self._lock:
            files = [file.entry() for file in self._files.values()]
        packs = self._packs.finish(timeout)
        index = self._write_index(files)
        info = CheckpointInfo(
            id=self._draft.id,
            key=self._draft.key,
            incarnation=self._draft.incarnation,
            generation=self._draft.generation,
            created=self._clock.now(),
            logical_bytes=self._logical,
            stored_bytes=sum(each.length for each in (*packs, index)),
            frozen_seconds=frozen_seconds,
            steps=steps,
        )
        manifest = encode_manifest(Body(info=info, packs=packs, index=index))
        name = layout.manifest(info.id)
        if self._called_off:
            raise StoreError(Reason.CANCELLED)
        self._backend.publish(name, manifest)
        if self._backend.read(name, 0, len(manifest) + 1) != manifest:
            raise StoreError(Reason.STORE_FAILED, why=f"{name} reads back differently")
        return info

    def _write_index(self, files: list[FileEntry]) -> ObjectRef:
        data = encode_index(files)
        ref = ObjectRef(
            name=layout.index(self._draft.id),
            length=len(data),
            digest=blake3(data).hexdigest(),
        )
        writer = self._backend.create(ref.name)
        try:
            writer.write(data)
            writer.finish()
        finally:
            writer.abandon()
        read_back(self._backend, ref)
        return ref

    def _try_discard(self) -> None:
        """Clean up behind a failure that is being reported already."""
        try:
            self._discard()
        except StoreError as error:
            log.warning(
                "%s remains of %s are left: %s", self._draft.key, self._draft.id, error
            )

    def _discard(self) -> None:
        if self._gone:
            return
        self._packs.abandon()
        layout.remove(self._backend, self._draft.id)
        self._gone = True
        self._ended(self._draft.id)
