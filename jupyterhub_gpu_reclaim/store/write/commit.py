"""The last steps of a commit: the index, then the manifest (``FORMAT.md``, 3 to 6).

They run when all packs have settled. Everything that is published is read back; what
had to be there before is looked for once more afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import index_codec, layout, manifest
from jupyterhub_gpu_reclaim.store.format.manifest import IndexRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.associated_data import Origin
    from jupyterhub_gpu_reclaim.store.format.index import Index
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.format.manifest import Body


def write_index(backend: Backend, origin: Origin, index: Index) -> IndexRef:
    """Write the index of a checkpoint, and read it back.

    Raises:
        StoreError: no room, no store, or it reads back differently.
    """
    key, name = origin.index_key(), layout.index(origin.id)
    encoded = index_codec.encode(index, key)
    writer = backend.create(name)
    try:
        for sealed in encoded.sealed:
            writer.write(sealed)
        writer.finish()
    finally:
        writer.abandon()
    ref = IndexRef(length=encoded.length, segments=encoded.segments)
    back = index_codec.read(backend, name, ref)
    index_codec.compare(back, ref.segments, key, name)
    return ref


def publish_manifest(
    backend: Backend, body: Body, keys: Wrapper, last_look: Callable[[], None]
) -> None:
    """Make a checkpoint exist.

    Args:
        backend: where all that it needs stands.
        body: the manifest's contents.
        keys: wrap its data key.
        last_look: called right before it exists; an error ends it.

    Raises:
        StoreError: it may stand nevertheless, and has to be removed.
    """
    id_ = body.info.id
    data = manifest.encode(body, keys)
    if manifest.decode(data, id_, keys) != body:
        # A key service that wraps what it does not give back loses everything.
        raise StoreError(Reason.STORE_FAILED, why="its key does not open it")
    objects = body.objects()
    _see_there(backend, objects)
    last_look()
    name = layout.manifest(id_)
    backend.publish(name, data, needs=objects)
    if backend.read(name, 0, len(data) + 1) != data:
        raise StoreError(Reason.STORE_FAILED, why=f"{name} reads back differently")
    _see_there(backend, objects)


def _see_there(backend: Backend, objects: list[Entry]) -> None:
    for name, length in objects:
        if backend.length(name) != length:
            raise StoreError(Reason.STORE_FAILED, why=f"{name} has changed")
