"""The store as the agent sees it: begin, open, list, delete and sweep checkpoints.

Called by the agent, from several threads at once. One process owns a store: writers of
another process are not seen, and its sweep would take their work for remains.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.errors import BadRequest, NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store import layout
from jupyterhub_gpu_reclaim.store.backend import ASIDE, ObjectMissing
from jupyterhub_gpu_reclaim.store.checkpoint import Checkpoint
from jupyterhub_gpu_reclaim.store.infos import Infos
from jupyterhub_gpu_reclaim.store.manifest import (
    Body,
    damaged,
    decode_index,
    decode_manifest,
)
from jupyterhub_gpu_reclaim.store.packs import PACK_BYTES
from jupyterhub_gpu_reclaim.store.writer import CheckpointWriter, Draft

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from jupyterhub_gpu_reclaim.clock import Clock
    from jupyterhub_gpu_reclaim.models import CheckpointInfo, SessionKey
    from jupyterhub_gpu_reclaim.store.backend import Backend

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
#: Far above any manifest of ours; a damaged length must not fill the memory.
_MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class SweepResult(NamedTuple):
    """What a sweep has removed."""

    removed: list[str]  #: ids of writers that never committed
    freed_bytes: int


class Repository:
    """Checkpoints in a backend. All calls block; all are safe from any thread.

    Args:
        backend: where the objects stand.
        clock: for the time of a commit.
        pack_bytes: size of the objects that hold the chunks.
    """

    def __init__(
        self, backend: Backend, *, clock: Clock, pack_bytes: int = PACK_BYTES
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._pack_bytes = pack_bytes
        self._lock = threading.Lock()
        self._writing: set[str] = set()
        self._infos = Infos()

    def begin(
        self,
        *,
        id: str,  # noqa: A002 - its name everywhere
        key: SessionKey,
        incarnation: str,
        generation: int,
    ) -> CheckpointWriter:
        """Begin a checkpoint; remains of an earlier attempt at it are removed.

        Raises:
            BadRequest: no checkpoint may be called that.
            StoreError: ``CHECKPOINT_EXISTS``, it is committed already (a damaged one
                too); or the store does not work.
            Refused: ``OPERATION_IN_FLIGHT``, it is being written.
        """
        if not _ID.fullmatch(id):
            raise BadRequest(Reason.INVALID, what=f"No checkpoint is called {id!r}.")
        with self._lock:
            self._refuse_if_writing(id)
            self._writing.add(id)
        try:
            self._refuse_if_committed(id)
            self._remove(id)
            draft = Draft(
                id=id, key=key, incarnation=incarnation, generation=generation
            )
            return CheckpointWriter(
                self._backend,
                draft,
                self._clock,
                self._ended,
                pack_bytes=self._pack_bytes,
            )
        except BaseException:
            self._ended(id)
            raise

    def exists(self, checkpoint: str) -> bool:
        """Whether it is committed, be it damaged or not.

        Raises:
            StoreError: the store does not answer, so nothing is known.
        """
        if not _ID.fullmatch(checkpoint):
            return False
        try:
            self._backend.length(layout.manifest(checkpoint))
        except ObjectMissing:
            return False
        return True

    def open(self, checkpoint: str) -> Checkpoint:
        """A committed checkpoint; its packs are seen to stand there, unread.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: ``CHECKPOINT_DAMAGED``, or the store does not work.
        """
        body = self._body(checkpoint)
        for pack in body.packs:
            length = self._backend.length(pack.name)
            if length != pack.length:
                raise damaged(
                    f"{pack.name} has {length} bytes instead of {pack.length}"
                )
        data = self._backend.read(body.index.name, 0, body.index.length + 1)
        return Checkpoint(self._backend, body, decode_index(data, body))

    def info(self, checkpoint: str) -> CheckpointInfo:
        """What is known of a committed checkpoint; cheap.

        That it exists is looked at each time; its manifest is read once, and what
        becomes of that later is for ``open`` to see.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: ``CHECKPOINT_DAMAGED``, or the store does not work.
        """
        if not self.exists(checkpoint):
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self._info(checkpoint)

    def list(self) -> list[CheckpointInfo]:
        """Committed checkpoints by age, oldest first.

        One whose manifest is damaged is logged and left out: ``exists`` and ``info``
        tell of it, and no sweep removes it.

        Raises:
            StoreError: the store does not work, so nothing is known.
        """
        infos = []
        for entry in self._backend.list(layout.MANIFESTS):
            id_ = layout.id_of(entry.name)
            try:
                infos.append(self._info(id_ or ""))
            except NotFound:
                continue  # deleted in between, or nothing of ours
            except StoreError as error:
                if error.reason is not Reason.CHECKPOINT_DAMAGED:
                    raise
                log.warning("- checkpoint %s is left out: %s", id_, error)
        return sorted(infos, key=lambda info: (info.created, info.id))

    def delete(self, checkpoint: str) -> None:
        """Remove a checkpoint; idempotent: not there is fine.

        Raises:
            Refused: ``OPERATION_IN_FLIGHT``, it is being written.
            StoreError: it could not be removed whole; call again.
        """
        if not _ID.fullmatch(checkpoint):
            return
        with self._lock:
            self._refuse_if_writing(checkpoint)
            self._remove(checkpoint)

    def sweep(self, *, keep_writing: AbstractSet[str] = frozenset()) -> SweepResult:
        """Remove what writers that died have left; committed ones are not touched.

        Args:
            keep_writing: ids that somebody else than this object still writes.

        Raises:
            StoreError: the store does not work; what was removed is removed.
        """
        with self._lock:
            # No writer begins meanwhile, and every one that has begun is known.
            names = [
                entry.name
                for prefix in (layout.PACKS, ASIDE)
                for entry in self._backend.list(prefix)
            ]
            ids = {id_ for name in names if (id_ := layout.id_of(name))}
            removed = []
            freed = 0
            for id_ in sorted(ids - self._writing - keep_writing):
                if _ID.fullmatch(id_) and not self.exists(id_):
                    freed += self._remove(id_)
                    removed.append(id_)
        return SweepResult(removed, freed)

    def free_bytes(self) -> int | None:
        """Room that is left, None where that cannot be known."""
        return self._backend.free_bytes()

    def _info(self, checkpoint: str) -> CheckpointInfo:
        return self._infos.get(checkpoint, lambda: self._body(checkpoint).info)

    def _remove(self, checkpoint: str) -> int:
        try:
            return layout.remove(self._backend, checkpoint)
        finally:
            self._infos.drop(checkpoint)

    def _body(self, checkpoint: str) -> Body:
        missing = NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        if not _ID.fullmatch(checkpoint):
            raise missing
        try:
            data = self._backend.read(
                layout.manifest(checkpoint), 0, _MAX_MANIFEST_BYTES
            )
        except ObjectMissing:
            raise missing from None
        return decode_manifest(data, checkpoint)

    def _refuse_if_writing(self, checkpoint: str) -> None:
        if checkpoint in self._writing:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="saving")

    def _refuse_if_committed(self, checkpoint: str) -> None:
        if self.exists(checkpoint):
            raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=checkpoint)

    def _ended(self, checkpoint: str) -> None:
        # A commit that failed late had a manifest for a moment.
        self._infos.drop(checkpoint)
        with self._lock:
            self._writing.discard(checkpoint)
