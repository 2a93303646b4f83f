"""Brings committed checkpoints from the node's folder to the store, in the background.

Started by the agent where there are two tiers. There is no queue that could be lost:
what has a manifest in the folder and none in the store is due, oldest first. Packs go
first, the manifest last; what stands there already is not sent again, so an upload that
was cut off goes on where it was. Nothing is deleted here but the upload's own intent.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from jupyterhub_gpu_reclaim import words
from jupyterhub_gpu_reclaim.errors import NotFound, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store import layout
from jupyterhub_gpu_reclaim.store.backend import ObjectExists
from jupyterhub_gpu_reclaim.store.copying import copy_missing, missing
from jupyterhub_gpu_reclaim.store.tiers import stands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.backend import Entry
    from jupyterhub_gpu_reclaim.store.tiers import Tiers

log = logging.getLogger(__name__)

#: Far above any manifest of ours.
_MAX_SMALL_BYTES = 64 * 1024 * 1024
_LOOK_SECONDS = 60.0
FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 600.0


class Knows(Protocol):
    """What the upload asks the repository."""

    def list(self) -> Sequence[CheckpointInfo]:
        """Committed checkpoints, oldest first."""

    def objects(self, checkpoint: str) -> Sequence[Entry]:
        """What one needs to be read, without its manifest."""

    def intent(self, checkpoint: str) -> tuple[str, bytes]:
        """The object that says to other nodes that its packs are being written."""


class Upload:
    """Uploads what is due; see :meth:`start`.

    Args:
        tiers: where from and where to.
        repository: whose checkpoints.
        after: called after each round, to make room.
        pause: seconds until the next try when one has failed; doubled each time.
    """

    def __init__(
        self,
        tiers: Tiers,
        repository: Knows,
        *,
        after: Callable[[], object] = lambda: None,
        pause: float = FIRST_PAUSE,
    ) -> None:
        self._pause = pause
        self._tiers = tiers
        self._repository = repository
        self._after = after
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def due(self) -> list[str]:
        """Ids of checkpoints that stand on this node only, oldest first.

        Raises:
            StoreError: a tier does not answer.
        """
        here = {e.name for e in self._tiers.local.list(layout.MANIFESTS)}
        there = {e.name for e in self._tiers.remote.list(layout.MANIFESTS)}
        if here <= there:
            return []
        waiting = here - there
        return [
            info.id
            for info in self._repository.list()
            if layout.manifest(info.id) in waiting
        ]

    def upload(self, checkpoint: str) -> bool:
        """Bring one checkpoint there, whole; idempotent.

        Returns:
            False when it was deleted meanwhile.

        Raises:
            StoreError: ``CANCELLED``, or it could not be; call again.
        """
        tiers = self._tiers
        manifest = layout.manifest(checkpoint)

        def go_on() -> bool:
            return not self._stopped.is_set() and stands(tiers.local, manifest)

        try:
            needs = self._repository.objects(checkpoint)
            self._announce(checkpoint)
        except NotFound:
            return False
        try:
            sent = copy_missing(tiers.local, tiers.remote, needs, go_on=go_on)
        except StoreError:
            if not stands(tiers.local, manifest):
                tiers.remote.delete(layout.intent(checkpoint))
                return False
            raise
        with tiers.settling:
            found = stands(tiers.local, manifest)
            if found:
                self._publish(manifest, needs)
        tiers.remote.delete(layout.intent(checkpoint))
        if found:
            log.info("- %s is in the store: %s sent", checkpoint, words.size(sent))
        return found

    def round(self) -> bool:
        """Upload all that is due.

        Returns:
            Whether nothing is left.
        """
        done = True
        for checkpoint in self.due():
            try:
                self.upload(checkpoint)
            except ReclaimError as error:
                if self._stopped.is_set():
                    return False
                log.warning("- %s is not in the store yet: %s", checkpoint, error)
                done = False
        return done

    def start(self) -> None:
        """Begin to upload in a thread, now and whenever there is something due."""
        self._tiers.wake = self._woken.set
        self._woken.set()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """End it between two pieces; what was sent is not sent again."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = self._pause
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                done = self.round()
                self._after()
            except ReclaimError as error:
                log.warning("- nothing can be uploaded now: %s", error)
                done = False
            except Exception:
                # Whatever it is: if this thread ended, nothing would be uploaded again.
                log.exception("- the upload has failed: internal")
                done = False
            if done:
                pause = self._pause
                self._woken.wait(_LOOK_SECONDS)
            else:
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _publish(self, manifest: str, needs: Sequence[Entry]) -> None:
        """Put a manifest into the store; the one that stands in the folder then."""
        local, remote = self._tiers.local, self._tiers.remote
        if gone := missing(remote, needs):
            # A sweep elsewhere has taken an upload of days for one that was given up.
            why = f"{gone[0].name} has gone from the store; it is sent again"
            raise StoreError(Reason.STORE_FAILED, why=why)
        data = local.read(manifest, 0, _MAX_SMALL_BYTES)
        try:
            remote.publish(manifest, data, needs=needs)
        except ObjectExists:
            log.info("- %s was in the store already", manifest)
        now = local.read(manifest, 0, _MAX_SMALL_BYTES)
        if now != data:
            remote.replace(manifest, now)  # another key has wrapped it meanwhile

    def _announce(self, checkpoint: str) -> None:
        """Tell the sweeps of other nodes that these packs are no remains."""
        remote = self._tiers.remote
        name, data = self._repository.intent(checkpoint)
        try:
            remote.publish(name, data)
        except ObjectExists:
            remote.replace(name, data)  # of an attempt that was cut off: a fresh time
