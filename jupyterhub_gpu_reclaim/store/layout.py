"""Which object is called what, and how all of a checkpoint's are removed.

Called by the writer and the repository. Ids have been checked before they come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.store.backend import ASIDE, name_of

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend

MANIFESTS = "manifests/"
PACKS = "packs/"
INTENTS = "writing/"
_SUFFIX = ".json"


def manifest(checkpoint: str) -> str:
    """The object that makes a checkpoint exist."""
    return f"{MANIFESTS}{checkpoint}{_SUFFIX}"


def intent(checkpoint: str) -> str:
    """The object that says that its packs are being written."""
    return f"{INTENTS}{checkpoint}"


def pack_prefix(checkpoint: str) -> str:
    """Where a checkpoint's packs and index stand."""
    return f"{PACKS}{checkpoint}/"


def index(checkpoint: str) -> str:
    """The object that lists a checkpoint's files."""
    return f"{pack_prefix(checkpoint)}index"


def id_of(name: str) -> str | None:
    """Whose object that is; None for what is not ours."""
    if name.startswith(ASIDE):
        name = name_of(name)
    if name.startswith(MANIFESTS) and name.endswith(_SUFFIX):
        return name[len(MANIFESTS) : -len(_SUFFIX)]
    if name.startswith(INTENTS):
        return name[len(INTENTS) :]
    if name.startswith(PACKS) and name.count("/") > 1:
        return name.split("/")[1]
    return None


def remove(backend: Backend, checkpoint: str) -> int:
    """Remove all of a checkpoint, manifest first; idempotent.

    Returns:
        Bytes that were freed, without the manifest's.

    Raises:
        StoreError: something could not be removed. Once the manifest is gone the
            rest is remains, which a sweep removes.
    """
    backend.delete(manifest(checkpoint))
    freed = 0
    unfinished = [e for e in backend.list(ASIDE) if id_of(e.name) == checkpoint]
    for entry in unfinished + backend.list(pack_prefix(checkpoint)):
        backend.delete(entry.name)
        freed += entry.length
    return freed
