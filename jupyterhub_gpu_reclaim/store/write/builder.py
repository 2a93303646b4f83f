"""Begins checkpoints: makes room for one, publishes its intent, chooses its base.

All of it happens before the session is stopped. The base is the last generation of the
same session, whose chunks are referenced instead of written again; from the intent on
no process deletes the packs that it references. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.catalogue import locks
from jupyterhub_gpu_reclaim.store.format import crypto, layout
from jupyterhub_gpu_reclaim.store.packing.base_blocks import BaseBlocks, dedup_index
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
from jupyterhub_gpu_reclaim.store.workers import pack_writers
from jupyterhub_gpu_reclaim.store.workers.group import CaptureGroup
from jupyterhub_gpu_reclaim.store.write.commit import BaseCheckpoint
from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter, Draft

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.catalogue.committed import Catalogue
    from jupyterhub_gpu_reclaim.store.catalogue.garbage import Garbage
    from jupyterhub_gpu_reclaim.store.format.compression import Compression
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool

log = logging.getLogger(__name__)

#: Most chunks of a checkpoint. Their list takes about 100 bytes for each of them while
#: it is made, so sessions that would have more get larger chunks.
_MOST_CHUNKS = 1 << 23


class ActiveWrites:
    """Checkpoints that this process is writing; the lock is held for moments only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ids: set[str] = set()

    def refuse(self, checkpoint: str) -> None:
        """Refuse one that is being written; the caller holds the lock.

        Raises:
            Refused: ``OPERATION_IN_FLIGHT``.
        """
        if checkpoint in self.ids:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="saving")


class WriteOptions(NamedTuple):
    """Settings of every checkpoint; see :class:`~.repository.Repository`."""

    pack_bytes: int
    chunk_bytes: int
    compression: Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBuilder:
    backend: Backend  #: where they are written
    catalogue: Catalogue  #: of that backend
    garbage: Garbage  #: of that backend
    clock: Clock  #: for the time of a commit
    keys: Wrapper  #: wrap the data keys
    pool: Pool | None  #: workers; None: our own threads do it
    options: WriteOptions
    active: ActiveWrites  #: of the repository

    def begin(self, draft: Draft, expected_bytes: int) -> CheckpointWriter:
        self._reserve(draft.id)
        options = self.options
        try:
            begun = self.clock.now()
            least = least_chunk(options.chunk_bytes, expected_bytes)
            base = self._find_base(draft, begun, least)
            origin = crypto.Origin(
                id=draft.id,
                key=draft.key,
                generation=draft.generation,
                data_key=crypto.new_key(),
            )
            recipe = Recipe(
                origin=origin,
                id_key=base.body.id_key if base else crypto.new_key(),
                chunk_bytes=base.body.chunk_bytes if base else least,
                pack_bytes=options.pack_bytes,
                compression=options.compression,
            )
            return self._writer(draft, recipe, begun, base)
        except BaseException:
            self._ended(draft.id)
            raise

    def _reserve(self, checkpoint: str) -> None:
        """Begin to write one of that id; :meth:`_ended` is its end.

        Raises:
            BadRequest: the id is invalid.
            Refused: it is being written (``OPERATION_IN_FLIGHT``).
            StoreError: it exists, or the store does not work.
        """
        if not layout.is_id(checkpoint):
            what = f"No checkpoint is called {checkpoint!r}."
            raise BadRequest(Reason.INVALID, what=what)
        with self.active.lock:
            self.active.refuse(checkpoint)
            self.active.ids.add(checkpoint)
        try:
            self._make_room(checkpoint)
        except BaseException:
            self._ended(checkpoint)
            raise

    def _make_room(self, checkpoint: str) -> None:
        """Remove remains of an earlier attempt; anything committed or needed stays."""
        exists = StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=checkpoint)
        if self.catalogue.exists(checkpoint):
            raise exists
        self.garbage.remove(checkpoint)
        if self.backend.list(layout.pack_prefix(checkpoint)):
            raise exists

    def _find_base(
        self, draft: Draft, begun: float, chunk_bytes: int
    ) -> BaseCheckpoint | None:
        """Publish the intent, then read the last generation, if it can be used.

        One with smaller chunks cannot.
        """
        candidates = [
            body
            for body in self.catalogue.all()
            if body.info.key == draft.key and body.chunk_bytes >= chunk_bytes
        ]
        last = max(candidates, key=lambda body: body.info.stamp, default=None)
        references = frozenset(origin.id for origin in (last.origins if last else ()))
        intent = locks.WriteIntent(draft.id, begun, references)
        locks.publish_intent(self.backend, intent)
        # Only now it is certain that its packs stay, if it still exists.
        if last is None or not self.catalogue.exists(last.info.id):
            return None
        try:
            return BaseCheckpoint(last, self.catalogue.index(last))
        except StoreError as error:
            log.warning("%s %s is not built upon: %s", draft.key, last.info.id, error)
            return None

    def _writer(
        self, draft: Draft, recipe: Recipe, begun: float, base: BaseCheckpoint | None
    ) -> CheckpointWriter:
        known = None
        if base is not None:
            packs = [pack.length for pack in base.body.packs]
            ids = dedup_index(base.index, packs)
            known = BaseBlocks(base.body, base.index.blocks, ids)
        group, spec = None, self.backend.spec()
        if self.pool is not None and spec is not None:
            # Before the session stands still: its first start takes a while.
            self.pool.warm()
            group = CaptureGroup(self.pool, spec, recipe, known, first=pack_writers.OWN)
        return CheckpointWriter(
            self.backend,
            draft,
            recipe,
            begun=begun,
            pack_writers=pack_writers.PackWriters(self.backend, recipe, known, group),
            base=base,
            keys=self.keys,
            clock=self.clock,
            ended=self._ended,
            discard=self._discard,
        )

    def _discard(self, checkpoint: str) -> None:
        with self.active.lock:
            # Now: what cannot be removed in an outage can be deleted after it.
            self.active.ids.discard(checkpoint)
        self.garbage.remove(checkpoint)

    def _ended(self, checkpoint: str) -> None:
        # A commit that failed late had a manifest for a moment.
        self.catalogue.forget(checkpoint)
        try:
            self.backend.delete(layout.intent(checkpoint))
        except StoreError as error:
            log.warning("- the intent of %s stays for a day: %s", checkpoint, error)
        with self.active.lock:
            self.active.ids.discard(checkpoint)


def least_chunk(wanted: int, expected_bytes: int) -> int:
    """The wanted chunk size, or a larger one if that many bytes are expected."""
    sizes = [size for size in layout.CHUNK_SIZES if size >= wanted]
    fit = (size for size in sizes if expected_bytes <= size * _MOST_CHUNKS)
    return next(fit, sizes[-1])
