"""A write-back cache: a folder of the node in front of the store.

It is used where ``store_local_dir`` is set. Writes go to the node's folder;
``transfer.upload`` brings them to the store. Reads come from the folder as long as the
object is there; whoever opens what was read, and finds it damaged, takes the other copy
(:meth:`WriteBackCache.copies`) and mends the folder's. The administrator chooses which
of the two makes a checkpoint durable.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.backend import ObjectExists, ObjectMissing, exists
from jupyterhub_gpu_reclaim.store.backends.copying import copy_missing
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry, ObjectWriter, Spec

_T = TypeVar("_T")


class CommitMeans(StrEnum):
    """Place of a checkpoint when its commit returns."""

    #: In the node's folder: lost with the node until it is uploaded. The store behind
    #: need not even answer; what is written references nothing that only that has.
    LOCAL = "local"
    REMOTE = "remote"  #: in the store behind it: survives the node


class WriteBackCache:
    """A folder and the store behind it; see :class:`~.backend.Backend`.

    Every step is ordered so that a crash leaves an object in one place, in both or in
    none: what exists in either exists, and what is deleted is deleted in the folder
    first, so that a repetition finds what is left.

    Args:
        local: the node's folder.
        remote: the store behind it.
        means: what a commit means.
        wake: called when there may be something to upload.
    """

    def __init__(
        self,
        local: Backend,
        remote: Backend,
        means: CommitMeans,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.local = local
        self.remote = remote
        self.means = means
        self.wake = wake
        #: Checkpoints that do not open in the store and cannot be mended there: they
        #: are not read again each time that room is needed.
        self.unmended: set[str] = set()
        #: Held while a manifest is deleted, and while the upload publishes one: it
        #: must not come back in the store after it was deleted in both.
        self.settling = threading.Lock()

    def create(self, name: str) -> ObjectWriter:
        """Begin it in the folder."""
        return self.local.create(name)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put it in the folder; before that in the store, where a commit means that.

        A crash between the two leaves it in the store, where it is found. Deletion
        locks concern every process, so they stand in the store. A mark stands where
        its checkpoint does: in the store, or until the upload in the folder alone.
        """
        if name.startswith(layout.MARKS):
            manifest = layout.manifest(layout.id_of(name) or "")
            with self.settling:
                there = exists(self.remote, manifest)
                (self.remote if there else self.local).publish(name, data)
            return
        if name.startswith(layout.DELETION_LOCKS):
            self.remote.publish(name, data)
            return
        if self.means is CommitMeans.REMOTE:
            copy_missing(self.local, self.remote, needs)
            self.remote.publish(name, data)
        try:
            self.local.publish(name, data)
        except ObjectExists:
            if self.means is CommitMeans.LOCAL:
                raise
        if name.startswith(layout.MANIFESTS):
            self.wake()

    def replace(self, name: str, data: bytes) -> None:
        """Replace it wherever it stands; both the old and the new are good.

        In the store first: a repeat of a call that has failed looks into the folder,
        and finds the old one there until all is done. Then once more in the store,
        where an upload may have brought the old one meanwhile.
        """
        found = [
            _replaced(backend, name, data)
            for backend in (self.remote, self.local, self.remote)
        ]
        if not any(found):
            raise ObjectMissing(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """From the folder, else from the store."""
        return self._first(lambda backend: backend.read(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """From the folder, else from the store."""
        return self._first(lambda backend: backend.read_into(name, offset, buffer))

    def length(self, name: str) -> int:
        """In the folder, else in the store."""
        return self._first(lambda backend: backend.length(name))

    def list(self, prefix: str) -> list[Entry]:
        """List the objects in either.

        Raises:
            StoreError: one of them does not answer, so it is not known.
        """
        found = {entry.name: entry for entry in self.remote.list(prefix)}
        found |= {entry.name: entry for entry in self.local.list(prefix)}
        return sorted(found.values())

    def delete(self, name: str) -> None:
        """In the folder, then in the store."""
        with self.settling if name.startswith(layout.MANIFESTS) else nullcontext():
            here_only = self._is_here_only(name)
            self.local.delete(name)
            if not here_only:
                self.remote.delete(name)

    def free_bytes(self) -> int | None:
        """Of the folder, which takes what is written."""
        return self.local.free_bytes()

    def capacity_bytes(self) -> int | None:
        """Of the folder, likewise."""
        return self.local.capacity_bytes()

    def spec(self) -> Spec | None:
        """Both, for a worker: it reads and writes packs, and uploads nothing."""
        local, remote = self.local.spec(), self.remote.spec()
        if local is None or remote is None:
            return None
        return {
            "kind": "write-back",
            "local": local,
            "remote": remote,
            "means": self.means.value,
        }

    def copies(self) -> Sequence[Backend]:
        """The folder, then the store: what does not open in one, may in the other."""
        return self.local, self.remote

    def durable(self) -> Backend:
        """The store, and what is yet to be sent, if commits mean it; or the folder."""
        return _StoreFirst(self) if self.means is CommitMeans.REMOTE else self.local

    def _is_here_only(self, name: str) -> bool:
        """Whether a deletion is for the folder alone."""
        # A writer's stands here, an upload's in the store: one is not the other.
        local = self.means is CommitMeans.LOCAL and name.startswith(layout.INTENTS)
        return local and exists(self.local, name)

    def _first(self, call: Callable[[Backend], _T]) -> _T:
        try:
            return call(self.local)
        except StoreError as error:
            # Missing, or a disk that fails: the other copy is as good.
            try:
                return call(self.remote)
            except ObjectMissing:
                raise error from None


class _StoreFirst(BackendProxy):
    """The store; what does not stand there, and is sent at the commit, from the folder.

    Args:
        cache: whose store and folder.
    """

    def __init__(self, cache: WriteBackCache) -> None:
        super().__init__(cache.remote)
        self._local = cache.local

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """From the store, if the object is there, be it damaged or not."""
        try:
            return super().read_into(name, offset, buffer)
        except ObjectMissing:
            return self._local.read_into(name, offset, buffer)


def _replaced(backend: Backend, name: str, data: bytes) -> bool:
    try:
        backend.replace(name, data)
    except ObjectMissing:
        return False
    return True


class LocalCommits(BackendProxy):
    """Backend of a writer where a commit means the node's folder (``commit_means``).

    The store behind is not contacted, so that a session can be suspended while it is
    away: a new checkpoint references only packs in the folder, so it needs no lock
    elsewhere. The upload, which a commit wakes, announces it in the store.

    Args:
        cache: whose folder.
    """

    def __init__(self, cache: WriteBackCache) -> None:
        super().__init__(cache.local)
        self._cache = cache

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put it in the folder, and wake the upload when that was a commit."""
        super().publish(name, data, needs=needs)
        if name.startswith(layout.MANIFESTS):
            self._cache.wake()

    def delete(self, name: str) -> None:
        """In the folder; a manifest that stands there is deleted in both.

        The upload may have seen the manifest of a commit that failed at its very end.
        """
        if not name.startswith(layout.MANIFESTS):
            super().delete(name)
        elif exists(self._cache.local, name):
            self._cache.delete(name)
