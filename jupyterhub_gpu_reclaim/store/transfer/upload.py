"""Uploads committed checkpoints from the node's folder to the store, in the background.

There is no queue that could be lost: what has a manifest in the folder and none in the
store is due, oldest first. What is sent is opened before, and read back when it is
there. Packs go first, the manifest last; objects that the store
already has are not sent again, so an interrupted upload continues where it was. Other
processes (the command line, other nodes) delete and sweep meanwhile: an
:class:`~..catalogue.locks.UploadLock` keeps them away from the packs, and what they
delete here does not come back there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectExists, ObjectMissing, exists
from jupyterhub_gpu_reclaim.store.backends.copying import copy_missing, missing
from jupyterhub_gpu_reclaim.store.catalogue.locks import UploadLock
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.format.manifest import MAX_BYTES
from jupyterhub_gpu_reclaim.store.read.subset import Named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import Entry
    from jupyterhub_gpu_reclaim.store.backends.write_back import WriteBackCache
    from jupyterhub_gpu_reclaim.store.repository import Repository

log = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 600.0


class Upload:
    """Uploads what is due; see :meth:`start`.

    Args:
        cache: where from and where to.
        repository: whose checkpoints.
        after: called after each round, to make room.
        pause: seconds until the next try when one has failed; doubled each time.
        elapsed: a clock that never jumps, in seconds.
    """

    def __init__(
        self,
        cache: WriteBackCache,
        repository: Repository,
        *,
        after: Callable[[], object] = lambda: None,
        pause: float = FIRST_PAUSE,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._elapsed = elapsed
        self._pause = pause
        self._cache = cache
        self._repository = repository
        self._after = after
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def due(self) -> list[str]:
        """Ids of checkpoints that stand on this node only, oldest first.

        Raises:
            StoreError: folder or store does not answer.
        """
        here = {e.name for e in self._cache.local.list(layout.MANIFESTS)}
        there = {e.name for e in self._cache.remote.list(layout.MANIFESTS)}
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
        cache, repository = self._cache, self._repository
        manifest = layout.manifest(checkpoint)
        try:
            needs = repository.objects(checkpoint)
            intent = partial(repository.intent, checkpoint)
            lock = UploadLock(cache.remote, intent, elapsed=self._elapsed)
        except NotFound:
            return False

        def go_on() -> bool:
            if self._stopped.is_set() or not exists(cache.local, manifest):
                return False
            lock.refresh()
            return True

        try:
            self._verify(checkpoint, needs)
            sent = copy_missing(cache.local, cache.remote, needs, go_on=go_on)
            found = self._publish(manifest, needs)
        except (NotFound, StoreError):
            if exists(cache.local, manifest):
                raise
            found = False
        cache.remote.delete(layout.intent(checkpoint))
        if found:
            log.info("- %s is in the store: %s sent", checkpoint, text.size(sent))
        elif not exists(cache.remote, manifest):
            # Who deleted it has left the packs alone, because they were on their way.
            repository.delete(checkpoint)
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
        self._cache.wake = self._woken.set
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

    def _verify(self, checkpoint: str, needs: Sequence[Entry]) -> None:
        """See that what is about to be sent is what was written.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``.
        """
        todo = Named({entry.name for entry in missing(self._cache.remote, needs)})
        for problem in self._repository.verify(checkpoint, part=todo):
            raise damaged(problem.why)

    def _publish(self, manifest: str, needs: Sequence[Entry]) -> bool:
        """Put a manifest into the store; the one that stands in the folder then.

        Returns:
            False when it was deleted meanwhile, by any process.

        Raises:
            StoreError: it is not there, or what it needs is not; call again.
        """
        local, remote = self._cache.local, self._cache.remote
        with self._cache.settling:
            if not exists(local, manifest):
                return False
            self._check(needs)
            data = local.read(manifest, 0, MAX_BYTES)
            # Before it: who sees the checkpoint there, sees what was said of it.
            self._bring_marks(layout.id_of(manifest) or "")
            try:
                remote.publish(manifest, data, needs=needs)
            except ObjectExists:
                log.info("- %s was in the store already", manifest)
            try:
                self._check(needs)
                now = local.read(manifest, 0, MAX_BYTES)
            except ObjectMissing:
                # Deleted by another process: there it was not found yet.
                remote.delete(manifest)
                return False
            except StoreError:
                remote.delete(manifest)
                raise
            if now != data:
                remote.replace(manifest, now)  # another key has wrapped it meanwhile
        return True

    def _bring_marks(self, checkpoint: str) -> None:
        local, remote = self._cache.local, self._cache.remote
        for entry in local.list(layout.mark_prefix(checkpoint)):
            with contextlib.suppress(ObjectMissing, ObjectExists):
                remote.publish(entry.name, local.read(entry.name, 0, MAX_BYTES))

    def _check(self, needs: Sequence[Entry]) -> None:
        if gone := missing(self._cache.remote, needs):
            # By hand, or by a process that was asleep for an hour.
            why = f"{gone[0].name} has gone from the store; it is sent again"
            raise StoreError(Reason.STORE_FAILED, why=why)
