"""Begins checkpoints: makes room for one, publishes its intent, chooses its base.

All of it happens before the session is stopped. The base is the last generation of the
same session, whose chunks are referenced instead of written again; from the intent on
no process deletes the packs that it references. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.catalogue import locks
from jupyterhub_gpu_reclaim.store.catalogue.committed import Catalogue
from jupyterhub_gpu_reclaim.store.catalogue.garbage import Garbage
from jupyterhub_gpu_reclaim.store.catalogue.marks import Marks
from jupyterhub_gpu_reclaim.store.format import crypto, layout
from jupyterhub_gpu_reclaim.store.format.compression import Compression
from jupyterhub_gpu_reclaim.store.packing.base_blocks import BaseBlocks, dedup_index
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
from jupyterhub_gpu_reclaim.store.packing.packs import PACK_BYTES
from jupyterhub_gpu_reclaim.store.workers.group import CaptureGroup
from jupyterhub_gpu_reclaim.store.workers.pack_writers import PackWriters
from jupyterhub_gpu_reclaim.store.write.commit import BaseCheckpoint
from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool

log = logging.getLogger(__name__)

#: One page: what a session changes is found exactly; docs/explanation/store.md.
CHUNK_BYTES = 4096
#: Most chunks of a checkpoint. Their list takes about 100 bytes for each of them while
#: it is made, so sessions that would have more get larger chunks.
_MOST_CHUNKS = 1 << 23


class CheckpointBuilder:
    """The part of a repository that begins checkpoints; see :class:`~.Repository`."""

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Clock,
        keys: Wrapper,
        pool: Pool | None = None,  # None: everything is done by our own threads
        pack_bytes: int = PACK_BYTES,  # of the objects that hold the blocks
        chunk_bytes: int = CHUNK_BYTES,  # of a session's first generation
        compression: str = Compression.LZ4,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._keys = keys
        self._pool = pool
        self._pack_bytes = pack_bytes
        self._chunk_bytes = chunk_bytes
        self._compression = Compression(compression)
        self._catalogue = Catalogue(backend, keys)
        self._garbage = Garbage(backend, clock, self._catalogue)
        self._marks = Marks(backend)
        #: Checkpoints that this process is writing; the lock is held for moments only.
        self._active: set[str] = set()
        self._turn = threading.Lock()
        #: Whether packs were kept for an intent that did not need them in the end.
        self._kept_for_nothing = False
        #: Held while something is removed or wrapped again, however long that takes;
        #: never while a checkpoint begins, whose intent is enough.
        self._removing = threading.Lock()

    def begin(
        self,
        *,
        id: str,  # noqa: A002 - its name everywhere
        key: SessionKey,
        incarnation: str,
        generation: int,
        expected_bytes: int = 0,  # about; many: larger chunks, to bound our memory
        parent: str = "",  # that the incarnation was restored from, if any
        session: str = "",  # its id; empty if unknown
        account: str = "",  # that it belongs to; empty if unknown
        term: int = 0,  # of the service that orders it; 0: none
    ) -> CheckpointWriter:
        """Begin a checkpoint; remains of an earlier attempt at it are removed.

        Chunks of the last generation of the same session will be referenced.

        Raises:
            BadRequest: the id is invalid.
            StoreError: ``CHECKPOINT_EXISTS``, it is committed already (a damaged one
                too), or was and others need its packs; or the store does not work.
            Refused: ``OPERATION_IN_FLIGHT``, it is being written.
        """
        info = CheckpointInfo(
            id=id,
            key=key,
            incarnation=incarnation,
            generation=generation,
            created=self._clock.now(),
            logical_bytes=0,
            stored_bytes=0,
            parent=parent,
            session=session,
            account=account,
            term=term,
        )
        self._reserve(info.id)
        try:
            least = least_chunk(self._chunk_bytes, expected_bytes)
            base = self._find_base(info, least)
            origin = crypto.Origin(
                id=info.id,
                key=info.key,
                generation=info.generation,
                data_key=crypto.new_key(),
            )
            recipe = Recipe(
                origin=origin,
                id_key=base.body.id_key if base else crypto.new_key(),
                chunk_bytes=base.body.chunk_bytes if base else least,
                pack_bytes=self._pack_bytes,
                compression=self._compression,
            )
            return self._writer(info, recipe, base)
        except BaseException:
            self._ended(info.id)
            raise

    def _refuse_active(self, checkpoint: str) -> None:
        """Refuse one that is being written; the caller holds the lock.

        Raises:
            Refused: ``OPERATION_IN_FLIGHT``.
        """
        if checkpoint in self._active:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="saving")

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
        with self._turn:
            self._refuse_active(checkpoint)
            self._active.add(checkpoint)
        try:
            self._make_room(checkpoint)
        except BaseException:
            self._ended(checkpoint)
            raise

    def _make_room(self, checkpoint: str) -> None:
        """Remove remains of an earlier attempt; anything committed or needed stays."""
        exists = StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=checkpoint)
        if self._catalogue.exists(checkpoint):
            raise exists
        self._garbage.remove(checkpoint)
        if self._backend.list(layout.pack_prefix(checkpoint)):
            raise exists

    def _find_base(
        self, info: CheckpointInfo, chunk_bytes: int
    ) -> BaseCheckpoint | None:
        """Publish the intent, then read the last generation, if it can be used."""
        # One with smaller chunks cannot.
        candidates = [
            body
            for body in self._catalogue.all()
            if body.info.key == info.key and body.chunk_bytes >= chunk_bytes
        ]
        last = max(candidates, key=lambda body: body.info.stamp, default=None)
        references = frozenset(origin.id for origin in (last.origins if last else ()))
        intent = locks.WriteIntent(info.id, info.created, references)
        self._backend.publish(layout.intent(info.id), msgspec.json.encode(intent))
        # Only now it is certain that its packs stay, if it still exists.
        if last is None:
            return None
        if not self._catalogue.exists(last.info.id):
            self._kept_for_nothing = True
            return None
        try:
            return BaseCheckpoint(last, self._catalogue.index(last))
        except StoreError as error:
            log.warning("%s %s is not built upon: %s", info.key, last.info.id, error)
            return None

    def _writer(
        self, info: CheckpointInfo, recipe: Recipe, base: BaseCheckpoint | None
    ) -> CheckpointWriter:
        known = None
        if base is not None:
            packs = [pack.length for pack in base.body.packs]
            ids = dedup_index(base.index, packs)
            known = BaseBlocks(base.body, base.index.blocks, ids)
        group = None
        if self._pool is not None:
            group = CaptureGroup(self._pool, self._backend.spec(), recipe, known)
        return CheckpointWriter(
            self._backend,
            info,
            recipe,
            pack_writers=PackWriters(self._backend, recipe, known, group),
            base=base,
            keys=self._keys,
            clock=self._clock,
            ended=self._ended,
            discard=self._discard,
        )

    def _discard(self, checkpoint: str) -> None:
        with self._turn:
            # Now: what cannot be removed in an outage can be deleted after it.
            self._active.discard(checkpoint)
        self._garbage.remove(checkpoint)

    def _ended(self, checkpoint: str) -> None:
        # A commit that failed late had a manifest for a moment.
        self._catalogue.forget(checkpoint)
        try:
            self._backend.delete(layout.intent(checkpoint))
        except StoreError as error:
            log.warning("- the intent of %s stays for a day: %s", checkpoint, error)
        with self._turn:
            self._active.discard(checkpoint)


def least_chunk(wanted: int, expected_bytes: int) -> int:
    sizes = [size for size in layout.CHUNK_SIZES if size >= wanted]
    fit = (size for size in sizes if expected_bytes <= size * _MOST_CHUNKS)
    return next(fit, sizes[-1])
