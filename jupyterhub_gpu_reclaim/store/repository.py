"""The store as a whole: begin, open, list, delete and sweep checkpoints.

Thread-safe. Other processes may work on the same store: their intents say what they
need (``FORMAT.md``). It does not decide which checkpoints are worth keeping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing
from jupyterhub_gpu_reclaim.store.catalogue.committed import is_damage
from jupyterhub_gpu_reclaim.store.checkpoint import CheckpointReader, Damage
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.write.builder import CheckpointBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Mark
    from jupyterhub_gpu_reclaim.store.backend import Entry
    from jupyterhub_gpu_reclaim.store.catalogue.garbage import SweepResult
    from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber


class Repository(CheckpointBuilder):
    """Checkpoints in a backend. All calls block; all are safe from any thread.

    Each raises ``StoreError`` when the store does not work. One that needs a committed
    checkpoint raises ``NotFound`` (``CHECKPOINT_MISSING``) when there is none, and
    ``StoreError`` with ``CHECKPOINT_DAMAGED`` or ``KEY_MISSING`` when it is unreadable.
    """

    def prepare(self) -> None:
        """Begin what the first capture or return would wait for; cheap once it runs."""
        if self._pool is not None:
            self._pool.warm()

    def exists(self, checkpoint: str) -> bool:
        return self._catalogue.exists(checkpoint)

    def ids(self) -> list[str]:
        """All that are committed, including those that cannot be read."""
        return self._catalogue.ids()

    def open(self, checkpoint: str) -> CheckpointReader:
        """Open a committed checkpoint; its packs must exist, but are not read."""
        body = self._catalogue.read(checkpoint)
        if self._pool is not None:
            self._pool.warm()
        return CheckpointReader(
            self._backend, body, self._catalogue.index(body), self._pool
        )

    def info(self, checkpoint: str) -> CheckpointInfo:
        """Facts about a committed checkpoint, from its manifest; cheap."""
        return self._catalogue.cached(checkpoint).info

    def objects(self, checkpoint: str) -> list[Entry]:
        """Every object needed to read it, but the manifest; older packs, too."""
        return self._catalogue.cached(checkpoint).objects()

    def mark(self, checkpoint: str, said: Mark, number: MarkNumber) -> None:
        """Seal a mark of a checkpoint, durably; idempotent. The highest number counts.

        Raises:
            Refused: ``FORMER_SERVICE``: there is a later one.
        """
        # Beside a delete it may stay behind, for a sweep; who waits for one waits long.
        self._marks.put(self._catalogue.cached(checkpoint), said, number)

    def verify(
        self, checkpoint: str, progress: Callable[[int, int], None] | None = None
    ) -> list[Damage]:
        """Read all of one; what is damaged, its mark too, which counts as none then.

        None of one that is gone. ``progress`` gets blocks done and blocks in all.
        StoreError: the store does not work, which says nothing of the checkpoint.
        """
        try:
            found = self.open(checkpoint).verify(progress)
            marks = self._marks.damage(self._catalogue.cached(checkpoint))
            found += [Damage(checkpoint, "", name, why) for name, why in marks]
        except NotFound:
            return []
        except StoreError as error:
            if not is_damage(error):
                raise
            name, code = layout.manifest(checkpoint), error.reason.value
            found = [Damage(checkpoint, "", name, error.message, code)]
        # Of one that is deleted meanwhile the manifest goes first.
        return found if found and self.exists(checkpoint) else []

    def rekey(self, checkpoint: str) -> bool:
        """Wrap under the newest master key; False: it is already, or it has gone.

        No data is written again. A crash leaves the manifest as it was or rewrapped.
        """
        data = self._catalogue.raw(checkpoint)
        new = manifest.rewrap(data, checkpoint, self._keys)
        if manifest.split(new).key == manifest.split(data).key:
            return False
        with self._removing:
            # Not beside a delete of ours: it would come back.
            try:
                self._backend.replace(layout.manifest(checkpoint), new)
            except ObjectMissing:
                return False
        return True

    def delete(self, checkpoint: str) -> int:
        """Remove a checkpoint; idempotent. Bytes freed, without the manifest's.

        On return everything that no other checkpoint needs is gone. Packs that a later
        generation needs stay until that is deleted. After a StoreError call again.

        Raises:
            Refused: ``OPERATION_IN_FLIGHT``, it is being written.
        """
        if not layout.is_id(checkpoint):
            return 0
        with self._removing:
            with self._turn:
                self._refuse_active(checkpoint)
                writing = set(self._active)
            again = not self._catalogue.exists(checkpoint)
            freed = self._garbage.remove(checkpoint)
            if again or (self._kept_for_nothing and not writing):
                # One that was cut off: which earlier generations only it has kept
                # alive stood in its manifest, which is gone. Or an intent that is gone
                # has kept some; beside another writer it may be there still.
                self._kept_for_nothing &= bool(writing)
                freed += self._garbage.sweep(writing).freed_bytes
        return freed

    def sweep(self) -> SweepResult:
        """Remove unneeded objects; committed checkpoints are not touched."""
        with self._removing:
            with self._turn:
                writing = set(self._active)
            return self._garbage.sweep(writing)

    def free_bytes(self) -> int | None:
        return self._backend.free_bytes()

    def list(self) -> list[CheckpointInfo]:
        """All committed checkpoints, oldest first; unreadable ones are logged."""
        # At the end of the class: what comes after means this by `list`.
        bodies = self._catalogue.all()
        words = self._marks.of(bodies)
        infos = []
        for body in bodies:
            said, number = words.get(body.info.id, (body.info.mark, (0, 0)))
            infos.append(body.info.marked(said, number))
        return sorted(infos, key=lambda info: (info.created, info.id))
