"""Two tiers for the same objects: a folder of the node, and a store behind it.

They are used where ``store_local_dir`` is set. Writes go to the node's folder;
``transfer.upload`` brings them to the store. Reads come from the folder as long as the
object is there. The administrator chooses which of the two makes a checkpoint durable.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.backend import ObjectExists, ObjectMissing
from jupyterhub_gpu_reclaim.store.backends.copying import copy_missing
from jupyterhub_gpu_reclaim.store.backends.front import Front
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import (
        Backend,
        Entry,
        ObjectWriter,
        Spec,
    )

_T = TypeVar("_T")


class Means(StrEnum):
    """Where a checkpoint stands when its commit returns."""

    #: In the node's folder: lost with the node until it is uploaded. The store behind
    #: need not even answer; what is saved leans upon nothing that only that has.
    LOCAL = "local"
    REMOTE = "remote"  #: in the store behind it: survives the node


class Tiers:
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
        means: Means,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.local = local
        self.remote = remote
        self.means = means
        self.wake = wake
        #: Held while a manifest is deleted, and while the upload publishes one: it
        #: must not come back in the store after it was deleted in both.
        self.settling = threading.Lock()

    def create(self, name: str) -> ObjectWriter:
        """Begin it in the folder."""
        return self.local.create(name)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put it in the folder; before that in the store, where a commit means that.

        A crash between the two leaves it in the store, where it is found. Deletion
        locks concern every process, so they stand in the store.
        """
        if name.startswith(layout.REMOVALS):
            self.remote.publish(name, data)
            return
        if self.means is Means.REMOTE:
            copy_missing(self.local, self.remote, needs)
            self.remote.publish(name, data)
        try:
            self.local.publish(name, data)
        except ObjectExists:
            if self.means is Means.LOCAL:
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
        """What stands in either.

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

    def spec(self) -> Spec | None:
        """Both, for a worker: it reads and writes packs, and uploads nothing."""
        local, remote = self.local.spec(), self.remote.spec()
        if local is None or remote is None:
            return None
        return {
            "kind": "tiers",
            "local": local,
            "remote": remote,
            "means": self.means.value,
        }

    def front(self) -> Backend:
        """Where a checkpoint is written and committed."""
        return Front(self) if self.means is Means.LOCAL else self

    def _is_here_only(self, name: str) -> bool:
        """Whether a deletion is for the folder alone."""
        # A writer's stands here, an upload's in the store: one is not the other.
        local = self.means is Means.LOCAL and name.startswith(layout.INTENTS)
        return local and stands(self.local, name)

    def _first(self, call: Callable[[Backend], _T]) -> _T:
        try:
            return call(self.local)
        except StoreError as error:
            # Missing, or a disk that fails: the other copy is as good.
            try:
                return call(self.remote)
            except ObjectMissing:
                raise error from None


def _replaced(backend: Backend, name: str, data: bytes) -> bool:
    try:
        backend.replace(name, data)
    except ObjectMissing:
        return False
    return True


def stands(backend: Backend, name: str) -> bool:
    """Whether an object is there.

    Raises:
        StoreError: that is not known.
    """
    try:
        backend.length(name)
    except ObjectMissing:
        return False
    return True
