"""Caches what the manifests of committed checkpoints say, for they never change.

Safe to call from several threads at once. It reads nothing itself, and does not know
whether a checkpoint still exists. A manifest under a new master key says the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.format.manifest import Body


class Infos:
    """What is known of checkpoints, by id; dropped when one is removed."""

    def __init__(self) -> None:
        #: Held for moments only, never while something is read.
        self._lock = threading.Lock()
        self._known: dict[str, Body] = {}
        self._drops = 0

    def get(self, checkpoint: str, read: Callable[[], Body]) -> Body:
        """The cached value, else that of ``read``, which may raise."""
        with self._lock:
            known, drops = self._known.get(checkpoint), self._drops
        if known is not None:
            return known
        body = read()
        with self._lock:
            # What was read beside a removal may be of what was removed.
            if drops == self._drops:
                self._known[checkpoint] = body
        return body

    def drop(self, checkpoint: str) -> None:
        """Forget it; called *after* it was removed."""
        with self._lock:
            self._known.pop(checkpoint, None)
            self._drops += 1
