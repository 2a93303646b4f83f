"""What a new checkpoint is based on: its chunk size, and the generation before.

This runs when a checkpoint is begun, before the session is stopped. The intent is
published here; from then on no process deletes the packs that it references.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.locks import intents
from jupyterhub_gpu_reclaim.store.packing.merge import Earlier

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.catalogue.committed import Catalogue

log = logging.getLogger(__name__)

#: Most chunks of a checkpoint. Their list takes about 100 bytes for each of them while
#: it is made, so sessions that would have more get larger chunks.
_MOST_CHUNKS = 1 << 23


def least_chunk(wanted: int, expected_bytes: int) -> int:
    """The chunk size to use: the wanted one or larger.

    Args:
        wanted: by the settings.
        expected_bytes: about how much the checkpoint will hold.
    """
    sizes = [size for size in layout.CHUNK_SIZES if size >= wanted]
    fit = (size for size in sizes if expected_bytes <= size * _MOST_CHUNKS)
    return next(fit, sizes[-1])


def lean(
    backend: Backend,
    catalogue: Catalogue,
    checkpoint: str,
    key: SessionKey,
    *,
    begun: float,
    chunk_bytes: int,
) -> Earlier | None:
    """Publish the intent, then read the last generation, if it can be used.

    Args:
        backend: where they stand.
        catalogue: of the same.
        checkpoint: that begins.
        key: of its session.
        begun: when.
        chunk_bytes: a generation with smaller chunks is not built upon.

    Raises:
        StoreError: the store does not work.
    """
    candidates = [
        body
        for body in catalogue.all()
        if body.info.key == key and body.chunk_bytes >= chunk_bytes
    ]
    last = max(
        candidates,
        key=lambda body: (body.info.generation, body.info.created),
        default=None,
    )
    leans_on = frozenset(origin.id for origin in last.origins) if last else ()
    intent = intents.Intent(checkpoint, begun, frozenset(leans_on))
    intents.publish(backend, intent)
    # Only now it is certain that its packs stay, if it still exists.
    if last is None or not catalogue.exists(last.info.id):
        return None
    try:
        return Earlier(last, catalogue.index(last))
    except StoreError as error:
        log.warning("%s %s is not built upon: %s", key, last.info.id, error)
        return None
