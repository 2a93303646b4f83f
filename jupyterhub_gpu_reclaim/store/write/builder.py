"""Begins checkpoints: makes room for one, announces it, and returns its writer.

Safe to call from several threads at once; it shares the repository's lock. Where a
commit means the node's folder, all of this is done there.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.catalogue.committed import Catalogue
from jupyterhub_gpu_reclaim.store.catalogue.garbage import Garbage
from jupyterhub_gpu_reclaim.store.format import crypto, layout
from jupyterhub_gpu_reclaim.store.format.associated_data import Origin
from jupyterhub_gpu_reclaim.store.packing import dedup_index
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
from jupyterhub_gpu_reclaim.store.workers import pack_writers
from jupyterhub_gpu_reclaim.store.workers.group import CaptureCrew
from jupyterhub_gpu_reclaim.store.write.parent import lean, least_chunk
from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter, Draft

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.catalogue.manifest_cache import Infos
    from jupyterhub_gpu_reclaim.store.format.compression import Compression
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.packing.merge import Earlier
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool

log = logging.getLogger(__name__)


class Busy:
    """What this process is writing; the lock is held for moments only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ids: set[str] = set()

    def refuse(self, checkpoint: str) -> None:
        """Refuse what is being written; the caller holds the lock.

        Raises:
            Refused: ``OPERATION_IN_FLIGHT``.
        """
        if checkpoint in self.ids:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="saving")


class Place(NamedTuple):
    """A backend, what is committed there, and what may go."""

    backend: Backend
    catalogue: Catalogue
    garbage: Garbage

    @classmethod
    def of(cls, backend: Backend, clock: Clock, keys: Wrapper, infos: Infos) -> Place:
        """All three of one backend."""
        catalogue = Catalogue(backend, keys, infos)
        return cls(backend, catalogue, Garbage(backend, clock, catalogue.known_or_none))

    def remove(self, checkpoint: str) -> int:
        """Remove a checkpoint or its remains; the bytes freed, as `Garbage.remove`.

        Raises:
            StoreError: it could not be removed whole.
        """
        try:
            return self.garbage.remove(checkpoint)
        finally:
            self.catalogue.drop(checkpoint)


class Terms(NamedTuple):
    """How every checkpoint is written; see :class:`~.repository.Repository`."""

    pack_bytes: int
    chunk_bytes: int
    compression: Compression
    read_back: bool


class Beginner:
    """Begins checkpoints.

    Args:
        place: where they are written.
        clock: for the time of a commit.
        keys: wrap the data keys.
        pool: workers; None: our own threads do it.
        terms: how.
        busy: of the repository.
    """

    def __init__(
        self,
        place: Place,
        *,
        clock: Clock,
        keys: Wrapper,
        pool: Pool | None,
        terms: Terms,
        busy: Busy,
    ) -> None:
        self._place = place
        self._clock = clock
        self._keys = keys
        self._pool = pool
        self._terms = terms
        self._busy = busy

    def exists(self, checkpoint: str) -> bool:
        """Whether it is committed where checkpoints are written.

        Raises:
            StoreError: that place does not answer.
        """
        return self._place.catalogue.exists(checkpoint)

    def begin(
        self,
        checkpoint: str,
        key: SessionKey,
        *,
        incarnation: str,
        generation: int,
        expected_bytes: int,
        parent: str,
    ) -> CheckpointWriter:
        """See :meth:`Repository.begin`.

        Raises:
            BadRequest: no checkpoint may be called that.
            StoreError: it is committed, or the store does not work.
            Refused: it is being written.
        """
        if not layout.is_id(checkpoint):
            what = f"No checkpoint is called {checkpoint!r}."
            raise BadRequest(Reason.INVALID, what=what)
        with self._busy.lock:
            self._busy.refuse(checkpoint)
            self._busy.ids.add(checkpoint)
        place, terms = self._place, self._terms
        try:
            self._make_room(checkpoint)
            begun = self._clock.now()
            least = least_chunk(terms.chunk_bytes, expected_bytes)
            earlier = lean(
                place.backend,
                place.catalogue,
                checkpoint,
                key,
                begun=begun,
                chunk_bytes=least,
            )
            origin = Origin(
                id=checkpoint, key=key, generation=generation, data_key=crypto.new_key()
            )
            recipe = Recipe(
                origin=origin,
                id_key=earlier.body.id_key if earlier else crypto.new_key(),
                chunk_bytes=earlier.body.chunk_bytes if earlier else least,
                pack_bytes=terms.pack_bytes,
                compression=terms.compression,
                read_back=terms.read_back,
            )
            draft = Draft(
                recipe=recipe, incarnation=incarnation, begun=begun, parent=parent
            )
            return self._writer(draft, earlier)
        except BaseException:
            self._ended(checkpoint)
            raise

    def _make_room(self, checkpoint: str) -> None:
        """Remove remains of an earlier attempt; what is committed, or needed, stays."""
        exists = StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=checkpoint)
        if self._place.catalogue.exists(checkpoint):
            raise exists
        self._place.remove(checkpoint)
        if self._place.backend.list(layout.pack_prefix(checkpoint)):
            raise exists

    def _writer(self, draft: Draft, earlier: Earlier | None) -> CheckpointWriter:
        table, backend = None, self._place.backend
        if earlier is not None:
            packs = [pack.length for pack in earlier.body.packs]
            table = dedup_index.of_index(earlier.index, packs)
        crew, spec = None, backend.spec()
        if self._pool is not None and spec is not None:
            # Before the session stands still: its first start takes a while.
            self._pool.warm()
            crew = CaptureCrew(
                self._pool, spec, draft.recipe, table, first_lane=pack_writers.OWN
            )
        return CheckpointWriter(
            backend,
            draft,
            lanes=pack_writers.Lanes(backend, draft.recipe, table, crew),
            earlier=earlier,
            keys=self._keys,
            clock=self._clock,
            ended=self._ended,
            discard=self._give_up,
        )

    def _give_up(self, checkpoint: str) -> None:
        """Remove what a writer that has given up has left."""
        with self._busy.lock:
            # Now: what cannot be removed in an outage can be deleted after it.
            self._busy.ids.discard(checkpoint)
        self._place.remove(checkpoint)

    def _ended(self, checkpoint: str) -> None:
        # A commit that failed late had a manifest for a moment.
        self._place.catalogue.drop(checkpoint)
        try:
            self._place.backend.delete(layout.intent(checkpoint))
        except StoreError as error:
            log.warning("- the intent of %s stays for a day: %s", checkpoint, error)
        with self._busy.lock:
            self._busy.ids.discard(checkpoint)
