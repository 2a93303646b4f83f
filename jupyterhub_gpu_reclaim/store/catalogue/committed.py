"""The committed checkpoints of a store and their manifests; read-only, thread-safe."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, Unavailable, exists
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import (
    damaged,
    decode_index,
    read_index,
)

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

#: A flipped bit in the name of the master key asks for a key that does not exist.
_DAMAGE = (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING, Reason.OTHER_VERSION)

log = logging.getLogger(__name__)


def is_damage(error: StoreError) -> bool:
    """Whether it is a fault of the checkpoint; all others are of the store."""
    return not isinstance(error, Unavailable) and error.reason in _DAMAGE


class Catalogue:
    """Committed checkpoints; any call raises ``StoreError`` if the store fails."""

    def __init__(self, backend: Backend, keys: Wrapper) -> None:
        self._backend = backend
        self._keys = keys
        #: Bodies of manifests, which never change.
        self._bodies: dict[str, Body] = {}

    def exists(self, checkpoint: str) -> bool:
        return layout.is_id(checkpoint) and exists(
            self._backend, layout.manifest(checkpoint)
        )

    def ids(self) -> list[str]:
        """All that exist, damaged ones too."""
        entries = self._backend.list(layout.MANIFESTS)
        return [id_ for entry in entries if (id_ := layout.id_of(entry.name))]

    def raw(self, checkpoint: str) -> bytes:
        """A manifest as it is stored.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
        """
        missing = NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        if not layout.is_id(checkpoint):
            raise missing
        try:
            return self._backend.read(
                layout.manifest(checkpoint), 0, manifest.MAX_BYTES
            )
        except ObjectMissing:
            raise missing from None

    def read(self, checkpoint: str) -> Body:
        """A checkpoint's manifest as it is now.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: ``CHECKPOINT_DAMAGED``, ``KEY_MISSING``.
        """
        return manifest.decode(self.raw(checkpoint), checkpoint, self._keys)

    def cached(self, checkpoint: str) -> Body:
        """Like :meth:`read`, but cached: manifests never change."""
        if not self.exists(checkpoint):
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self._read_once(checkpoint)

    def cached_or_none(self, checkpoint: str) -> Body | None:
        """The same; None if it is gone or cannot be read now (logged)."""
        try:
            return self._read_once(checkpoint)
        except NotFound:
            return None  # deleted in between
        except StoreError as error:
            if not is_damage(error):
                raise
            log.warning("- checkpoint %s is left out: %s", checkpoint, error)
            return None

    def all(self) -> list[Body]:
        """All manifests that can be read; the others are logged."""
        found = [self.cached_or_none(id_) for id_ in self.ids()]
        return [body for body in found if body is not None]

    def index(self, body: Body) -> ChunkIndex:
        """The index of a checkpoint, after checking that its objects exist.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``.
        """
        for name, expected in body.objects():
            length = self._backend.length(name)
            if length != expected:
                raise damaged(f"{name} has {length} bytes instead of {expected}")
        name = layout.index(body.info.id)
        return decode_index(
            read_index(self._backend, name, body.index),
            body.origins[0].index_key(),
            chunk_bytes=body.chunk_bytes,
            packs=[pack.length for pack in body.packs],
        )

    def forget(self, checkpoint: str) -> None:
        """Drop it from the cache; call this *after* it was removed."""
        self._bodies.pop(checkpoint, None)

    def _read_once(self, checkpoint: str) -> Body:
        body = self._bodies.get(checkpoint)
        if body is None:
            body = self._bodies[checkpoint] = self.read(checkpoint)
        return body
