"""A place that is used only while it is the store that is meant (law 14).

A volume that is not mounted leaves an empty folder, and an empty folder looks like a
store without checkpoints. So a store has an identity (``FORMAT.md``), which is read

* before anything is written or deleted,
* after each answer that is believed: a manifest, a list, "there is no such object", and
  a write: the volume may have gone in between.

Blocks are not looked at one by one: they are written after the intent and before the
manifest, and open under the keys of a manifest alone.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    ObjectExists,
    ObjectMissing,
    Unavailable,
)
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.format import identity, layout
from jupyterhub_gpu_reclaim.store.format.identity import StoreIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class StoreAbsent(Unavailable):
    """The place is there, and it is not the store that is meant."""

    def __init__(self, why: str) -> None:
        super().__init__(why, reason=Reason.STORE_ABSENT)


class Known(Protocol):
    """Ids of the store as remembered outside of it; any thread may ask."""

    def expected(self) -> str:
        """The id that the place must have; empty: none is known."""

    def take(self, store: str) -> None:
        """Remember the id that was found there, or made.

        Raises:
            StoreError: it cannot be remembered.
        """


class IdentityCheck:
    """Tells whether a place is the store that is meant; any thread may ask.

    Args:
        place: where it should be.
        keys: open its identity.
        known: what is remembered of it.
    """

    def __init__(self, place: Backend, keys: Wrapper, known: Known) -> None:
        self._place = place
        self._keys = keys
        self._known = known
        #: The object read last, and opened; an equal one is not opened again.
        self._read: tuple[bytes, StoreIdentity] | None = None
        self._first = threading.Lock()

    def found(self) -> StoreIdentity | None:
        """The identity that stands there; None where there is none.

        Raises:
            StoreError: that is not known: it does not answer, or does not open.
        """
        try:
            data = self._place.read(layout.IDENTITY, 0, identity.MAX_BYTES)
        except ObjectMissing:
            return None
        last = self._read
        if last is None or last[0] != data:
            self._read = last = (data, identity.decode(data, self._keys))
        return last[1]

    def confirm(self) -> None:
        """See that it is the one that is meant.

        Where nothing was known of a store yet, what is there is taken: an identity, or
        checkpoints of a version that gave none, which get one.

        Raises:
            StoreAbsent: it is not there.
            StoreError: that is not known.
        """
        found = self.found()
        if found is None and self._begins():
            found = self.found()
        wanted = self._known.expected()
        if not wanted and found is not None:
            wanted = found.id
            self._known.take(wanted)
        if found is None or found.id != wanted:
            raise StoreAbsent(_why(found, wanted))

    def make(self, store: str) -> None:
        """Give the place that id, unless it has one.

        Raises:
            StoreError: it cannot be written.
        """
        made = StoreIdentity(id=store)
        try:
            self._place.publish(layout.IDENTITY, identity.encode(made, self._keys))
        except ObjectExists:
            return
        log.info("- the store is called %s from now on", store)

    def rekey(self) -> bool:
        """Wrap it under the newest master key; whether that was to be done.

        Raises:
            StoreError: it cannot be read, or not be written.
        """
        try:
            data = self._place.read(layout.IDENTITY, 0, identity.MAX_BYTES)
        except ObjectMissing:
            return False
        new = identity.rewrap(data, self._keys)
        if new == data:
            return False
        self._place.replace(layout.IDENTITY, new)
        return True

    def _begins(self) -> bool:
        """Give an identity to what may have one by itself; whether that was done."""
        with self._first:
            if self._known.expected() or not self._place.list(layout.MANIFESTS):
                return False
            self.make(identity.new_id())
            return True


def _why(found: StoreIdentity | None, wanted: str) -> str:
    if found is not None:
        return f"its place holds another one ({found.id}, not {wanted})"
    if wanted:
        return "the store is not mounted, or its place holds another one"
    return "its place is empty, and no store was begun there"


class IdentifiedBackend(BackendProxy):
    """A backend whose answers are those of the store that is meant.

    Args:
        backend: the place.
        check: tells whether that is it.
    """

    def __init__(self, backend: Backend, check: IdentityCheck) -> None:
        super().__init__(backend)
        self.check = check

    def publish(self, name: str, data: bytes) -> None:
        """Put a small object, there and nowhere else."""
        self._written(lambda: self._backend.publish(name, data))

    def replace(self, name: str, data: bytes) -> None:
        """Put it in the place of another, likewise."""
        self._written(lambda: self._backend.replace(name, data))

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        return self._told(name, lambda: self._backend.read(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's."""
        return self._told(name, lambda: self._backend.read_into(name, offset, buffer))

    def length(self, name: str) -> int:
        """Bytes of that object."""
        return self._told(name, lambda: self._backend.length(name))

    def list(self, prefix: str) -> list[Entry]:
        """All objects below that prefix."""
        return self._told(prefix, lambda: self._backend.list(prefix), whole=True)

    def delete(self, name: str) -> None:
        """Remove it; a pack goes under a deletion lock, which stands there."""
        if name.startswith(layout.PACKS):
            self._backend.delete(name)
        else:
            self._written(lambda: self._backend.delete(name))

    def free_bytes(self) -> int | None:
        """Room that is left there, not below a mount point."""
        self.check.confirm()
        return self._backend.free_bytes()

    def capacity_bytes(self) -> int | None:
        """Room that there is in all, likewise."""
        self.check.confirm()
        return self._backend.capacity_bytes()

    def _written(self, work: Callable[[], None]) -> None:
        self.check.confirm()
        try:
            work()
        finally:
            self.check.confirm()

    def _told(self, name: str, work: Callable[[], _T], *, whole: bool = False) -> _T:
        try:
            answer = work()
        except ObjectMissing:
            self.check.confirm()
            raise
        if whole or not name.startswith(layout.PACKS):
            self.check.confirm()
        return answer


def identified(place: Backend, keys: Wrapper, known: Known) -> IdentifiedBackend:
    """Wrap a place so that it is used only while it is the store that is meant."""
    return IdentifiedBackend(place, IdentityCheck(place, keys, known))
