"""Removes what nobody needs, beside whoever writes (``FORMAT.md``, order of deleting).

Called by the repository, which holds its lock meanwhile. A pack stays while any
manifest or any intent names it; where that cannot be known, it stays too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.store import intents, layout
from jupyterhub_gpu_reclaim.store.backend import ASIDE, ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from jupyterhub_gpu_reclaim.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.manifest import Body

log = logging.getLogger(__name__)


class _Needed(NamedTuple):
    """What must stay."""

    packs: frozenset[str]  #: objects that readable manifests name
    owners: frozenset[str]  #: checkpoints all of whose packs must stay
    committed: frozenset[str]  #: checkpoints that exist
    blind: bool  #: some manifest could not be read: it may name anything


class Garbage:
    """Knows what is needed, and removes the rest.

    Args:
        backend: where the objects stand.
        clock: for the age of intents.
        body: what a manifest says, None where it cannot be read.
    """

    def __init__(
        self, backend: Backend, clock: Clock, body: Callable[[str], Body | None]
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._body = body

    def remove(self, checkpoint: str) -> int:
        """Remove a checkpoint, or its remains: manifest first; idempotent.

        Packs that others need stay.

        Returns:
            Bytes that were freed, without the manifest's.

        Raises:
            StoreError: something could not be removed. Once the manifest is gone the
                rest is remains, which a sweep removes.
        """
        backend, intent = self._backend, layout.intent(checkpoint)
        never, earlier = False, []
        if self._stands(layout.manifest(checkpoint)):
            body = self._body(checkpoint)
            earlier = [origin.id for origin in body.origins[1:]] if body else []
            # The intent goes first: where it stands alone, nothing was ever committed.
            backend.delete(intent)
            backend.delete(layout.manifest(checkpoint))
        else:
            never = self._is_writers(checkpoint)
        for entry in backend.list(ASIDE):
            if layout.id_of(entry.name) == checkpoint:
                backend.delete(entry.name)
        freed = self._delete_packs(checkpoint, earlier, never=never)
        backend.delete(intent)
        return freed

    def sweep(self, writing: AbstractSet[str]) -> tuple[list[str], int]:
        """Remove the remains of checkpoints that do not exist, and stale odds and ends.

        Args:
            writing: checkpoints that are known to be written.

        Returns:
            Whose remains were removed, and bytes that were freed.

        Raises:
            StoreError: the store does not work; what was removed is removed.
        """
        # In this order: who commits meanwhile is found by an intent or a manifest.
        found: dict[str, list[Entry]] = {}
        for prefix in (layout.PACKS, ASIDE, layout.INTENTS):
            for entry in self._backend.list(prefix):
                if id_ := layout.id_of(entry.name):
                    found.setdefault(id_, []).append(entry)
        needed = self._needed()
        removed, freed = [], 0
        for id_ in sorted(found.keys() - needed.owners - writing):
            entries = found[id_]
            if id_ in needed.committed:
                # Its packs are its own affair; what it left beside them is not needed.
                entries = [e for e in entries if not e.name.startswith(layout.PACKS)]
            never = any(map(_is_intent, entries)) and self._is_writers(id_)
            done = self._delete(entries, id_, needed, never=never)
            freed += sum(entry.length for entry in done)
            if done and id_ not in needed.committed:
                removed.append(id_)
        return removed, freed

    def _delete_packs(
        self, checkpoint: str, earlier: Iterable[str], *, never: bool
    ) -> int:
        """Delete its packs, and those of earlier ones that only it has kept alive."""
        found = {id_: self._packs(id_) for id_ in (checkpoint, *earlier)}
        if not any(found.values()):
            return 0
        needed = self._needed(except_writing=checkpoint)
        done: list[Entry] = []
        for id_, entries in found.items():
            if id_ not in needed.committed:
                never_this = never and id_ == checkpoint
                done += self._delete(entries, id_, needed, never=never_this)
        return sum(entry.length for entry in done)

    def _packs(self, checkpoint: str) -> list[Entry]:
        return self._backend.list(layout.pack_prefix(checkpoint))

    def _delete(
        self, entries: Iterable[Entry], owner: str, needed: _Needed, *, never: bool
    ) -> list[Entry]:
        """Delete what of a checkpoint's objects is not needed; what was deleted.

        Args:
            entries: the objects.
            owner: the checkpoint, which does not exist.
            needed: what must stay.
            never: it has never existed anywhere, so that a manifest which cannot be
                read does not name its packs either.
        """
        done = []
        # An intent goes last: while it stands, it says that nobody names the packs.
        for entry in sorted(entries, key=_is_intent):
            name = entry.name
            shared = name.startswith(layout.PACKS) and name != layout.index(owner)
            named = name in needed.packs or owner in needed.owners
            if shared and (named or (needed.blind and not never)):
                continue
            self._backend.delete(name)
            done.append(entry)
        return done

    def _needed(self, *, except_writing: str = "") -> _Needed:
        fresh = intents.fresh(self._backend, self._clock.now())
        owners = {id_ for one in fresh for id_ in one.leans_on}
        owners |= {one.checkpoint for one in fresh} - {except_writing}
        packs: set[str] = set()
        committed: set[str] = set()
        blind = False
        for entry in self._backend.list(layout.MANIFESTS):
            id_ = layout.id_of(entry.name)
            if id_ is None:
                continue
            committed.add(id_)
            body = self._body(id_)
            if body is not None:
                packs |= {need.name for need in body.objects()}
            elif self._stands(entry.name):
                blind = True
        if blind:
            log.warning("- some manifest cannot be read, so no shared pack is removed")
        return _Needed(frozenset(packs), frozenset(owners), frozenset(committed), blind)

    def _is_writers(self, checkpoint: str) -> bool:
        """Whether its intent is of a writer, not of a copy of what is committed."""
        intent = intents.read(self._backend, layout.intent(checkpoint))
        return intent is not None and not intent.is_copy

    def _stands(self, name: str) -> bool:
        try:
            self._backend.length(name)
        except ObjectMissing:
            return False
        return True


def _is_intent(entry: Entry) -> bool:
    return entry.name.startswith(layout.INTENTS)
