"""The write-back cache's folder as a writer sees it when a commit is local.

It is used where ``commit_means`` is ``local``. The store behind it is not contacted, so
that a session can be saved while the store is away: a new checkpoint references only
packs in the folder, so it needs no lock elsewhere. The upload, which a commit wakes,
announces it in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.store.backend import ObjectMissing
from jupyterhub_gpu_reclaim.store.backends.proxy import Around
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.store.backend import Entry
    from jupyterhub_gpu_reclaim.store.backends.tiers import Tiers


class Front(Around):
    """The folder of two tiers; see :class:`~.backend.Backend`.

    Args:
        tiers: whose folder.
    """

    def __init__(self, tiers: Tiers) -> None:
        super().__init__(tiers.local, lambda work: work())
        self._tiers = tiers

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put it in the folder, and wake the upload when that was a commit."""
        super().publish(name, data, needs=needs)
        if name.startswith(layout.MANIFESTS):
            self._tiers.wake()

    def delete(self, name: str) -> None:
        """In the folder; a manifest that stands there is deleted in both.

        The upload may have seen the manifest of a commit that failed at its very end.
        """
        if name.startswith(layout.MANIFESTS):
            try:
                self.length(name)
            except ObjectMissing:
                return
            self._tiers.delete(name)
        else:
            super().delete(name)
