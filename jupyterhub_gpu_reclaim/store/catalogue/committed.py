"""The committed checkpoints of a store, and what their manifests say.

Safe to call from several threads at once. It only reads; manifests never change, so
their contents are cached.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    ObjectMissing,
    Unavailable,
    copies_of,
    exists,
    mend,
)
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import (
    damaged,
    decode_index,
    read_segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

_T = TypeVar("_T")
#: A turned bit in the name of the master key asks for a key that nobody has.
_DAMAGE = (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING)

log = logging.getLogger(__name__)


class Catalogue:
    """Committed checkpoints; any call raises ``StoreError`` if the store does not work.

    Args:
        backend: where the objects stand.
        keys: unwrap the data keys.
        cache: what was read before, shared by several catalogues of the same
            checkpoints.
    """

    def __init__(self, backend: Backend, keys: Wrapper, cache: ManifestCache) -> None:
        self._backend = backend
        self._keys = keys
        self._cache = cache

    def exists(self, checkpoint: str) -> bool:
        """Whether it is committed, be it damaged or not."""
        return layout.is_id(checkpoint) and exists(
            self._backend, layout.manifest(checkpoint)
        )

    def ids(self) -> list[str]:
        """Of all that exist, damaged ones too."""
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
        """Read a checkpoint's manifest as it is now.

        Raises:
            NotFound: ``CHECKPOINT_MISSING``.
            StoreError: ``CHECKPOINT_DAMAGED``, ``KEY_MISSING``.
        """
        try:
            return manifest.decode(self.raw(checkpoint), checkpoint, self._keys)
        except StoreError as error:
            if error.reason not in _DAMAGE:
                raise
            return self._from_copies(lambda place: self._read(place, checkpoint), error)

    def cached(self, checkpoint: str) -> Body:
        """Like :meth:`read`, from memory where it was read before; cheap."""
        if not self.exists(checkpoint):
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self._cache.get(checkpoint, lambda: self.read(checkpoint))

    def cached_or_none(self, checkpoint: str) -> Body | None:
        """The same; None when it cannot be read now, which is logged, or is gone."""
        try:
            return self._cache.get(checkpoint, lambda: self.read(checkpoint))
        except NotFound:
            return None  # deleted in between
        except StoreError as error:
            if error.reason not in _DAMAGE:
                raise
            log.warning("- checkpoint %s is left out: %s", checkpoint, error)
            return None

    def all(self) -> list[Body]:
        """All manifests that can be read; the others are logged."""
        found = [self.cached_or_none(id_) for id_ in self.ids()]
        return [body for body in found if body is not None]

    def index(self, body: Body) -> ChunkIndex:
        """The index of a checkpoint whose every object is seen to be there.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``.
        """
        for entry in body.objects():
            self._see(entry)
        try:
            return self._index(self._backend, body)[0]
        except StoreError as error:
            if error.reason not in _DAMAGE:
                raise
            return self._from_copies(lambda place: self._index(place, body), error)

    def _see(self, entry: Entry) -> None:
        """See that an object has the right length, in some place."""
        length = self._backend.length(entry.name)
        if length == entry.length:
            return
        for place in copies_of(self._backend):
            with contextlib.suppress(ObjectMissing):
                if place.length(entry.name) == entry.length:
                    return
        raise damaged(f"{entry.name} has {length} bytes instead of {entry.length}")

    def _read(self, place: Backend, checkpoint: str) -> tuple[Body, str, bytes]:
        name = layout.manifest(checkpoint)
        data = place.read(name, 0, manifest.MAX_BYTES)
        return manifest.decode(data, checkpoint, self._keys), name, data

    @staticmethod
    def _index(place: Backend, body: Body) -> tuple[ChunkIndex, str, bytes]:
        name = layout.index(body.info.id)
        segments = list(read_segments(place, name, body.index.length))
        index = decode_index(
            segments,
            body.index.segments,
            body.origins[0].index_key(),
            chunk_bytes=body.chunk_bytes,
            packs=[pack.length for pack in body.packs],
        )
        return index, name, b"".join(segments)

    def _from_copies(
        self, look: Callable[[Backend], tuple[_T, str, bytes]], error: StoreError
    ) -> _T:
        """Return what opens in some place, and put it back where it does not.

        Raises:
            StoreError: that error, where it opens nowhere; ``Unavailable``, it may
                open in a place that does not answer.
        """
        failed: list[Backend] = []
        places = copies_of(self._backend)
        for place in places if len(places) > 1 else ():
            try:
                found, name, data = look(place)
            except Unavailable as away:
                error = away
            except StoreError:
                failed.append(place)
            else:
                mend(failed, name, 0, data)
                return found
        raise error

    def forget(self, checkpoint: str) -> None:
        """Drop it from the cache; called *after* it was removed."""
        self._cache.drop(checkpoint)


class ManifestCache:
    """Bodies of manifests, by checkpoint id; dropped when one is removed."""

    def __init__(self) -> None:
        #: Held for moments only, never while something is read.
        self._lock = threading.Lock()
        self._bodies: dict[str, Body] = {}
        self._drops = 0

    def get(self, checkpoint: str, read: Callable[[], Body]) -> Body:
        """The cached value, else that of ``read``, which may raise."""
        with self._lock:
            body, drops = self._bodies.get(checkpoint), self._drops
        if body is not None:
            return body
        body = read()
        with self._lock:
            # What was read beside a removal may be of what was removed.
            if drops == self._drops:
                self._bodies[checkpoint] = body
        return body

    def drop(self, checkpoint: str) -> None:
        """Forget it; called *after* it was removed."""
        with self._lock:
            self._bodies.pop(checkpoint, None)
            self._drops += 1
