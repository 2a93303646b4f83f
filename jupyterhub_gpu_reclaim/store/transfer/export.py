"""Exports a checkpoint from a store into a file, and imports it from there.

A file may be hostile: all of it is opened and authenticated before a byte of it is put
into the store, and it is put there like a checkpoint that is written: intent, packs,
manifest last.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectExists
from jupyterhub_gpu_reclaim.store.backends.copying import copy_missing, missing
from jupyterhub_gpu_reclaim.store.backends.folder import put_in_place
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.format.passphrase import Rewrap
from jupyterhub_gpu_reclaim.store.locks.upload import Announcement
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer import archive

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

Progress = Callable[[int, int], None]
_BUFFER_BYTES = 4 * 1024 * 1024


def _silent(done: int, total: int) -> None:
    """Ignore the progress."""


def export(
    backend: Backend,
    repository: Repository,
    checkpoint: str,
    path: Path,
    *,
    keys: Wrapper | None = None,
    progress: Progress = _silent,
) -> int:
    """Write a checkpoint with all that it needs into a new file, mode 0600.

    Args:
        backend: where it stands.
        repository: knows what it needs.
        checkpoint: its id.
        path: of the file; it is there when it is whole, and never written over.
        keys: open its manifest and wrap it again; None: it stays as it is.
        progress: called with bytes done and bytes in all.

    Returns:
        Bytes of its objects.

    Raises:
        NotFound: ``CHECKPOINT_MISSING``.
        StoreError: it is damaged, or the file cannot be written.
    """
    objects = repository.objects(checkpoint)
    name = layout.manifest(checkpoint)
    data = backend.read(name, 0, manifest.MAX_BYTES)
    if keys is not None:
        data = manifest.rewrap(data, checkpoint, keys)
    total, done = sum(entry.length for entry in objects), 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    aside = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, "a file of that name is there already")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
            archive.write(file, (name, data), objects, backend, count)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(aside, path)
    except OSError as error:
        why = f"{path}: {(error.strerror or 'unknown error').lower()}"
        raise StoreError(Reason.STORE_FAILED, why=why, detail=str(error)) from error
    finally:
        aside.unlink(missing_ok=True)
    return total


def bring_in(
    file: BinaryIO,
    backend: Backend,
    *,
    keys: Wrapper,
    opens: Wrapper,
    clock: Clock,
    progress: Progress = _silent,
) -> CheckpointInfo:
    """Put an exported checkpoint into a store.

    Args:
        file: open; anything may stand in it.
        backend: of the store.
        keys: the store's own, under which it is wrapped from now on.
        opens: opens what stands in the file.
        clock: for the time of the intent.
        progress: called while it is checked, with bytes done and bytes in all.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, it is not what was exported;
            ``KEY_MISSING``; ``CHECKPOINT_EXISTS``; or the store does not work. Nothing
            is in the store then but, perhaps, remains for its ``sweep``.
    """
    found = archive.Archive(file)
    source = Repository(found, clock=clock, keys=opens)
    id_ = found.checkpoint
    objects = source.objects(id_)
    if set(objects) != found.entries():
        raise damaged("what is in the file is not what its manifest names")
    for problem in source.verify(id_, progress=progress):
        raise damaged(f"{problem.file} in {problem.object}: {problem.why}")
    store = Repository(backend, clock=clock, keys=keys)
    if store.exists(id_):
        raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=id_)
    data = found.read(layout.manifest(id_), 0, manifest.MAX_BYTES)
    data = manifest.rewrap(data, id_, Rewrap(opens, keys))
    announced = Announcement(backend, partial(source.intent, id_))

    def go_on() -> bool:
        announced.refresh()
        return True

    there = set(objects) - set(missing(backend, objects))
    for entry in sorted(there):
        _compare(found, backend, entry)
    copy_missing(found, backend, objects, go_on=go_on)
    try:
        backend.publish(layout.manifest(id_), data, needs=objects)
    except ObjectExists:
        raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=id_) from None
    # Where something fails, the intent stays until it is stale: so do the packs, and
    # the next import of the same goes on with them.
    backend.delete(layout.intent(id_))
    return store.info(id_)


def _compare(found: archive.Archive, backend: Backend, entry: Entry) -> None:
    """Check that a stored pack of an earlier generation is the same as in the file."""
    for at in range(0, entry.length, _BUFFER_BYTES):
        ours = backend.read(entry.name, at, _BUFFER_BYTES)
        if ours != found.read(entry.name, at, _BUFFER_BYTES):
            raise damaged(f"another {entry.name} stands in the store")
