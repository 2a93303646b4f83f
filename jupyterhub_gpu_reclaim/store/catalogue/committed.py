"""The committed checkpoints of a store, and what their manifests say.

Safe to call from several threads at once. It only reads; manifests never change, so
their contents are cached.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing
from jupyterhub_gpu_reclaim.store.format import index_codec, layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import damaged

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.catalogue.manifest_cache import Infos
    from jupyterhub_gpu_reclaim.store.format.index import Index
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

log = logging.getLogger(__name__)


class Catalogue:
    """What is committed.

    Args:
        backend: where the objects stand.
        keys: unwrap the data keys.
        infos: what was read before, shared by several catalogues of the same
            checkpoints.
    """

    def __init__(self, backend: Backend, keys: Wrapper, infos: Infos) -> None:
        self._backend = backend
        self._keys = keys
        self._infos = infos

    def exists(self, checkpoint: str) -> bool:
        """Whether it is committed, be it damaged or not.

        Raises:
            StoreError: the store does not answer, so nothing is known.
        """
        if not layout.is_id(checkpoint):
            return False
        try:
            self._backend.length(layout.manifest(checkpoint))
        except ObjectMissing:
            return False
        return True

    def ids(self) -> list[str]:
        """Of all that exist, damaged ones too.

        Raises:
            StoreError: the store does not work.
        """
        entries = self._backend.list(layout.MANIFESTS)
        return [id_ for entry in entries if (id_ := layout.id_of(entry.name))]

    def raw(self, checkpoint: str) -> bytes:
        """A manifest as it is stored.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: the store does not work.
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
        """What its manifest says now.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: ``CHECKPOINT_DAMAGED``, ``KEY_MISSING``, or the store does not
                work.
        """
        return manifest.decode(self.raw(checkpoint), checkpoint, self._keys)

    def known(self, checkpoint: str) -> Body:
        """What its manifest says, from memory where it was read before; cheap.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: see :meth:`read`.
        """
        if not self.exists(checkpoint):
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self._infos.get(checkpoint, lambda: self.read(checkpoint))

    def known_or_none(self, checkpoint: str) -> Body | None:
        """The same; None when it cannot be read now, which is logged, or is gone.

        Raises:
            StoreError: the store does not work.
        """
        try:
            return self._infos.get(checkpoint, lambda: self.read(checkpoint))
        except NotFound:
            return None  # deleted in between
        except StoreError as error:
            if error.reason not in (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING):
                raise
            log.warning("- checkpoint %s is left out: %s", checkpoint, error)
            return None

    def all(self) -> list[Body]:
        """All that can be read; the others are logged.

        Raises:
            StoreError: the store does not work.
        """
        found = [self.known_or_none(id_) for id_ in self.ids()]
        return [body for body in found if body is not None]

    def index(self, body: Body) -> Index:
        """The index of a checkpoint whose every object is seen to be there.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``, or the store does not work.
        """
        for name, wanted in body.objects():
            length = self._backend.length(name)
            if length != wanted:
                raise damaged(f"{name} has {length} bytes instead of {wanted}")
        name = layout.index(body.info.id)
        return index_codec.decode(
            index_codec.read(self._backend, name, body.index),
            body.index.segments,
            body.origins[0].index_key(),
            chunk_bytes=body.chunk_bytes,
            packs=[pack.length for pack in body.packs],
        )

    def drop(self, checkpoint: str) -> None:
        """Forget what was read; called *after* it was removed."""
        self._infos.drop(checkpoint)
