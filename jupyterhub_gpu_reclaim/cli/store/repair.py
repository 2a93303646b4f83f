"""``store verify --repair``: drops a damaged copy if the store behind has a good one.

It never deletes anything in the store behind, and here only after all of that
checkpoint
has been read and authenticated there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.store.backends.tiers import Tiers, stands
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.repository import Repository

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.cli.store.repository import Store


def repair(store: Store, checkpoint: str, objects: set[str]) -> list[str]:
    """Drop damaged objects of this machine's folder, so that the store's are read.

    Args:
        store: where it was found.
        checkpoint: that has damage.
        objects: that are damaged, or the manifest when it could not be opened.

    Returns:
        Names of what was dropped; empty when there is no good copy.

    Raises:
        StoreError: a tier could not be written; what was dropped is dropped.
    """
    tiers = store.backend
    if not isinstance(tiers, Tiers):
        return []
    behind = Repository(tiers.remote, clock=store.clock, keys=store.keys)
    try:
        if behind.verify(checkpoint):
            return []
        needs = behind.objects(checkpoint)
    except (StoreError, NotFound):
        return []
    manifest = layout.manifest(checkpoint)
    if manifest in objects:
        # Which of them kept it from being opened is not known.
        objects = {manifest, layout.index(checkpoint)}
        objects |= {each.name for each in needs if not _is_whole(tiers, *each)}
    here = [name for name in sorted(objects) if stands(tiers.local, name)]
    for name in here:
        tiers.local.delete(name)
    return here


def _is_whole(tiers: Tiers, name: str, length: int) -> bool:
    return stands(tiers.local, name) and tiers.local.length(name) == length
