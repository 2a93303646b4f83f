"""Upload locks: announce in a store that a checkpoint is being copied into it.

An upload or import announces itself before it looks at what the store already has. The
intent keeps other processes' deletions away from its packs; if one of them is already
removing some, nothing is sent until it has ended (``FORMAT.md``).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, publish_over
from jupyterhub_gpu_reclaim.store.format.layout import intent as intent_name
from jupyterhub_gpu_reclaim.store.locks import deletion, intents

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Backend

#: Far below the age at which others take an intent for a dead writer's.
REFRESH_SECONDS = 3600.0


class Announcement:
    """An intent that stands in a store and stays fresh; from several threads.

    Args:
        backend: the store that is copied to.
        intent: of the copy, as of now.
        elapsed: a clock that never jumps, in seconds.

    Raises:
        StoreError: what it needs is being removed, so that nothing may be sent now; or
            the store does not work. The intent may stand.
    """

    def __init__(
        self,
        backend: Backend,
        intent: Callable[[], intents.Intent],
        *,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._intent = intent
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._due = elapsed() + REFRESH_SECONDS
        said = self._say()
        # Only now: a deletion that begins after this finds the intent.
        for owner in sorted(said.leans_on):
            if deletion.stands(backend, owner, said.begun):
                why = f"what is left of {owner} is being removed"
                raise StoreError(Reason.STORE_FAILED, why=why)

    def refresh(self) -> None:
        """Refresh the intent, when that is due; cheap.

        Raises:
            StoreError: the store does not work.
            NotFound: the checkpoint was deleted.
        """
        with self._lock:
            if self._elapsed() < self._due:
                return
            self._due = self._elapsed() + REFRESH_SECONDS
        self._say()

    def _say(self) -> intents.Intent:
        intent = self._intent()
        name, data = intent_name(intent.checkpoint), intents.encode(intent)
        try:
            publish_over(self._backend, name, data)
        except ObjectMissing:
            self._backend.publish(name, data)  # a stale one, just swept
        return intent
