"""Deletes unneeded objects, under the repository's lock, while others write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import exists
from jupyterhub_gpu_reclaim.store.catalogue import locks
from jupyterhub_gpu_reclaim.store.catalogue.marks import latest
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.catalogue.committed import Catalogue

log = logging.getLogger(__name__)


class _Needed(NamedTuple):
    packs: set[str]  #: objects that readable manifests name
    owners: set[str]  #: checkpoints all of whose packs must stay
    coming: set[str]  #: checkpoints that are being written
    committed: set[str]  #: checkpoints that exist
    blind: bool  #: some manifest could not be read: it may name anything


class SweepResult(NamedTuple):
    removed: list[str]  #: checkpoints that do not exist, whose remains these were
    freed_bytes: int


class Garbage:
    def __init__(self, backend: Backend, clock: Clock, catalogue: Catalogue) -> None:
        self._backend = backend
        self._clock = clock
        self._catalogue = catalogue

    def remove(self, checkpoint: str) -> int:
        """Remove it or its remains; idempotent. Bytes freed, without the manifest's."""
        # Once the manifest, which goes first, is gone, the rest is remains for a sweep.
        try:
            return self._remove(checkpoint)
        finally:
            self._catalogue.forget(checkpoint)

    def _remove(self, checkpoint: str) -> int:
        backend = self._backend
        earlier: Iterable[str] = ()
        intent: locks.WriteIntent | None = None
        if self._catalogue.exists(checkpoint):
            if body := self._catalogue.cached_or_none(checkpoint):
                earlier = [origin.id for origin in body.origins[1:]]
            # The intent goes first: where it stands alone, nothing was ever committed.
            backend.delete(layout.intent(checkpoint))
            backend.delete(layout.manifest(checkpoint))
        elif intent := locks.read_intent(backend, checkpoint):
            earlier = intent.references
        never = intent is not None
        aside = [
            e for e in backend.list(layout.ASIDE) if layout.id_of(e.name) == checkpoint
        ]
        packs = backend.list(layout.pack_prefix(checkpoint))
        marks = backend.list(layout.mark_prefix(checkpoint))
        remains = aside + packs + marks
        done = self._clear(checkpoint, remains, never=never, except_writing=checkpoint)
        backend.delete(layout.intent(checkpoint))
        for owner in earlier:
            # That only it has kept alive.
            if not self._catalogue.exists(owner):
                packs = backend.list(layout.pack_prefix(owner))
                done += self._clear(
                    owner, packs, never=False, except_writing=checkpoint
                )
        return sum(entry.length for entry in done)

    def sweep(self, writing: AbstractSet[str]) -> SweepResult:
        """Remove the remains of checkpoints that do not exist, and stale locks."""
        # In this order: a commit meanwhile is found by its intent or its manifest.
        found: dict[str, list[Entry]] = {}
        for prefix in (layout.PACKS, layout.ASIDE, layout.INTENTS, layout.MARKS):
            for entry in self._backend.list(prefix):
                if id_ := layout.id_of(entry.name):
                    found.setdefault(id_, []).append(entry)
        self._drop_dead_locks()
        needed = self._needed()
        removed, freed = [], 0
        for id_ in sorted(found.keys() - needed.owners - needed.coming - writing):
            entries = found[id_]
            if id_ in needed.committed:
                # Its packs are its own affair; what it left beside them is not needed.
                entries = [e for e in entries if not e.name.startswith(layout.PACKS)]
                if not _spare(id_, entries, needed, never=False):
                    continue  # no lock for a mark that counts
            elif all(e.name in needed.packs for e in entries):
                continue  # others need all that is left of it
            never = any(map(_is_intent, entries)) and (
                locks.read_intent(self._backend, id_) is not None
            )
            done = self._clear(id_, entries, never=never)
            freed += sum(entry.length for entry in done)
            if done and id_ not in needed.committed:
                removed.append(id_)
        return SweepResult(removed, freed)

    def _clear(
        self,
        owner: str,
        entries: Sequence[Entry],
        *,
        never: bool,
        except_writing: str = "",
    ) -> list[Entry]:
        """Remove and return those of the objects, listed before, that none needs."""
        # ``never``: the checkpoint has never existed anywhere, so a manifest that
        # cannot be read does not name its packs either. ``except_writing``: a
        # writer's intent of this checkpoint does not count.
        # An intent goes last: while it stands, no manifest names the packs.
        todo = sorted(entries, key=_is_intent)
        if not todo:
            return []
        backend = self._backend
        try:
            with locks.deletion_lock(backend, owner, self._clock) as check:
                needed = self._needed(except_writing=except_writing)
                spare = _spare(owner, todo, needed, never=never)
                for entry in spare:
                    check()
                    backend.delete(entry.name)
                return spare
        except StoreError as error:
            if error.reason is not Reason.STORE_FULL:
                raise
        # Not even a lock finds room: one object makes some.
        needed = self._needed(except_writing=except_writing)
        spare = _spare(owner, todo, needed, never=never)
        if not spare:
            return []
        backend.delete(spare[0].name)
        rest = self._clear(owner, spare[1:], never=never, except_writing=except_writing)
        return [spare[0], *rest]

    def _needed(self, *, except_writing: str = "") -> _Needed:
        now = self._clock.now()
        fresh = [one for one in locks.all_intents(self._backend) if one.is_fresh(now)]
        owners = {id_ for one in fresh for id_ in one.references}
        coming = {one.checkpoint for one in fresh} - {except_writing}
        packs: set[str] = set()
        committed: set[str] = set()
        blind = False
        for entry in self._backend.list(layout.MANIFESTS):
            id_ = layout.id_of(entry.name)
            if id_ is None:
                continue
            committed.add(id_)
            body = self._catalogue.cached_or_none(id_)
            if body is not None:
                packs |= {need.name for need in body.objects()}
            elif exists(self._backend, entry.name):
                blind = True
        if blind:
            log.warning("- some manifest cannot be read, so no shared pack is removed")
        return _Needed(packs, owners, coming, committed, blind)

    def _drop_dead_locks(self) -> None:
        for entry in self._backend.list(layout.DELETION_LOCKS):
            id_ = layout.id_of(entry.name)
            now = self._clock.now()
            if id_ and not locks.is_being_deleted(self._backend, id_, now):
                self._backend.delete(entry.name)


def _spare(
    owner: str, entries: Sequence[Entry], needed: _Needed, *, never: bool
) -> list[Entry]:
    if owner in needed.coming:
        return []
    named = owner in needed.owners or owner in needed.committed
    blind = needed.blind and not never
    marks = latest(entries).values()

    def stays(name: str) -> bool:
        if layout.mark_number(name):
            return owner in needed.committed and name in marks
        if not name.startswith(layout.PACKS):
            return False
        if name == layout.index(owner):
            return owner in needed.committed  # no other checkpoint uses it
        return named or blind or name in needed.packs

    return [entry for entry in entries if not stays(entry.name)]


def _is_intent(entry: Entry) -> bool:
    return entry.name.startswith(layout.INTENTS)
