"""A place that is used only while it is the store of the master key (law 14).

A volume that is not mounted leaves an empty folder, which looks like a store without
checkpoints. So a store has an id, kept in it (``FORMAT.md``) and beside the key. It is
read before anything is written or deleted, and after each answer that is believed (a
manifest, a list, "no such object", a write): the volume may have gone in between.

Blocks are not checked one by one: they are written after the intent and before the
manifest, and only a manifest's keys open them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    ObjectExists,
    ObjectMissing,
    Unavailable,
)
from jupyterhub_gpu_reclaim.store.format import identity, layout
from jupyterhub_gpu_reclaim.store.format.keys import STORE_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import (
        Backend,
        Entry,
        ObjectWriter,
        Spec,
    )
    from jupyterhub_gpu_reclaim.store.format.keys import StoreKeys

_T = TypeVar("_T")


class StoreAbsent(Unavailable):
    """The place exists, but is not the store of the master key."""

    def __init__(self, why: str) -> None:
        super().__init__(why, reason=Reason.STORE_ABSENT)


def store_at(place: Backend) -> str:
    """Id of the store at a place; empty if there is none; StoreError: unknown."""
    try:
        data = place.read(layout.IDENTITY, 0, identity.MAX_BYTES)
    except ObjectMissing:
        return ""
    return identity.decode(data)


class IdentifiedBackend:
    """A place whose answers are those of the store of the master key; thread-safe."""

    def __init__(self, place: Backend, keys: StoreKeys, where: str) -> None:
        self._place = place
        self._keys = keys
        self._where = where

    def confirm(self) -> None:
        """Raise ``StoreAbsent`` if it is not the key's, ``StoreError`` if unknown."""
        found = store_at(self._place)
        if found and found == self._keys.store_id:
            return
        self._keys.read_again()  # somebody may have begun a store meanwhile
        if not found or found != self._keys.store_id:
            raise StoreAbsent(self._why(found, self._keys.store_id))

    def begin(self) -> None:
        """Give an empty place the key's id. Idempotent.

        Raises:
            StoreAbsent: it holds another store, or checkpoints without an id.
        """
        if not store_at(self._place):
            if any(map(self._place.list, (layout.MANIFESTS, layout.PACKS))):
                raise StoreAbsent(
                    f"{self._where} holds checkpoints, and no object"
                    f" {layout.IDENTITY}: copy that one, too"
                )
            with contextlib.suppress(ObjectExists):  # another one at once: see below
                self._place.publish(
                    layout.IDENTITY, identity.encode(self._keys.store_id)
                )
        self.confirm()

    def create(self, name: str) -> ObjectWriter:
        return self._place.create(name)

    def publish(self, name: str, data: bytes) -> None:
        self._written(name, lambda: self._place.publish(name, data))

    def replace(self, name: str, data: bytes) -> None:
        self._written(name, lambda: self._place.replace(name, data))

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._told(name, lambda: self._place.read(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        return self._told(name, lambda: self._place.read_into(name, offset, buffer))

    def length(self, name: str) -> int:
        return self._told(name, lambda: self._place.length(name))

    def list(self, prefix: str) -> list[Entry]:
        return self._told("", lambda: self._place.list(prefix))

    def delete(self, name: str) -> None:
        self._written(name, lambda: self._place.delete(name))

    def free_bytes(self) -> int | None:
        return self._told("", self._place.free_bytes)

    def spec(self) -> Spec:
        # Of the place alone: workers write packs, and read what was named.
        return self._place.spec()

    def _written(self, name: str, work: Callable[[], None]) -> None:
        if name.startswith(layout.PACKS):
            # It is deleted under a lock, which is an object of the store.
            work()
            return
        self.confirm()
        try:
            work()
        finally:
            self.confirm()

    def _told(self, name: str, work: Callable[[], _T]) -> _T:
        try:
            answer = work()
        except ObjectMissing:
            self.confirm()
            raise
        if not name.startswith(layout.PACKS):
            self.confirm()
        return answer

    def _why(self, found: str, wanted: str) -> str:
        where = self._where
        if not wanted and not found:
            return (
                "no store was begun with this master key yet:"
                f' "jupyterhub-gpu-reclaim store init" begins one at {where}'
            )
        if not wanted:
            return (
                f"{where} holds the store {found}, and beside the master key stands no"
                f" {STORE_ID}: if the key is that store's, write that id there"
            )
        if not found:
            volume = "volume" if "://" in where else f'volume ("mount {where}")'
            return (
                f"{where} holds no store. Mount its {volume}, or correct store_url."
                ' Only where none was begun yet: "jupyterhub-gpu-reclaim store init"'
            )
        return (
            f"{where} holds the store {found}, and the master key is that of {wanted}."
            " Mount the right volume, or correct store_url or the place of the key"
        )
