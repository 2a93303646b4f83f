"""Exports a checkpoint from a store into one file, and imports it from there.

The file has the objects as they are, encrypted, behind a table::

    8 bytes   GREXPRT and the format's number, 1
    u32       length of the table, little-endian, at most 16 MiB
    table     JSON: a list of [name, length], the manifest first
    bytes     of each object, one after the other; the file ends with the last

A file may be hostile. The table is the only thing that is parsed before anything is
authenticated; it is bounded, its names are confined, and what it names counts only if
the manifest, once it is open, asks for exactly that. All of it is opened and
authenticated before a byte of it is put into the store, and it is put there like a
checkpoint that is written: intent, packs, manifest last.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, NoReturn

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry, ObjectExists, ObjectMissing
from jupyterhub_gpu_reclaim.store.backends.copying import copy_missing, missing, pieces
from jupyterhub_gpu_reclaim.store.backends.folder import put_in_place, read_into
from jupyterhub_gpu_reclaim.store.catalogue.locks import UploadLock
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.format.keys import Rewrap
from jupyterhub_gpu_reclaim.store.repository import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

Progress = Callable[[int, int], None]
_MAGIC = b"GREXPRT\x01"
_LENGTH = struct.Struct("<I")
_MAX_TABLE_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024
_ID = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_OBJECT = re.compile(rf"manifests/{_ID}|packs/{_ID}/([0-9a-f]{{8}}|index)")
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Head(NamedTuple):
    """Beginning of an exported file, and the objects that follow it."""

    data: bytes  #: up to the end of the manifest
    objects: list[Entry]  #: whose bytes follow, in this order


def head_of(
    repository: Repository, checkpoint: str, wraps: Wrapper | None = None
) -> Head:
    """Begin an exported file.

    Args:
        repository: has it.
        checkpoint: its id.
        wraps: whose key opens the file; None: the store's own.

    Raises:
        NotFound: ``CHECKPOINT_MISSING``.
        StoreError: it is damaged, or the store does not work.
    """
    objects = repository.objects(checkpoint)
    data = repository.manifest(checkpoint, wraps)
    named = [[layout.manifest(checkpoint), len(data)], *map(list, objects)]
    table = msgspec.json.encode(named)
    return Head(_MAGIC + _LENGTH.pack(len(table)) + table + data, objects)


def export_checkpoint(
    backend: Backend,
    repository: Repository,
    checkpoint: str,
    path: Path,
    *,
    wraps: Wrapper | None = None,
    progress: Progress = lambda *_: None,
) -> int:
    """Write a checkpoint with all that it needs into a new file, mode 0600.

    Args:
        backend: where it stands.
        repository: knows what it needs.
        checkpoint: its id.
        path: of the file; it is there when it is whole, and never written over.
        wraps: whose key opens the file; None: the store's own.
        progress: called with bytes done and bytes in all.

    Returns:
        Bytes of its objects.

    Raises:
        NotFound: ``CHECKPOINT_MISSING``.
        StoreError: it is damaged, or the file cannot be written.
    """
    data, objects = head_of(repository, checkpoint, wraps)
    total, done = sum(entry.length for entry in objects), 0
    aside = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, "a file of that name is there already")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
            file.write(data)
            for entry in objects:
                for piece in pieces(backend, entry, reason=Reason.CHECKPOINT_DAMAGED):
                    file.write(piece)
                    done += len(piece)
                    progress(done, total)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(aside, path)
    except OSError as error:
        why = f"{path}: {(error.strerror or 'unknown error').lower()}"
        raise StoreError(Reason.STORE_FAILED, why=why, detail=str(error)) from error
    finally:
        aside.unlink(missing_ok=True)
    return total


def import_checkpoint(
    file: BinaryIO,
    backend: Backend,
    *,
    keys: Wrapper,
    opens: Wrapper,
    clock: Clock,
    progress: Progress = lambda *_: None,
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
    archive = ExportedFile(file)
    source = Repository(archive, clock=clock, keys=opens)
    id_ = archive.checkpoint
    objects = source.objects(id_)
    if set(objects) != archive.entries():
        raise damaged("what is in the file is not what its manifest names")
    for problem in source.verify(id_, progress=progress):
        raise damaged(f"{problem.file} in {problem.object}: {problem.why}")
    store = Repository(backend, clock=clock, keys=keys)
    if store.exists(id_):
        raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=id_)
    data = archive.read(layout.manifest(id_), 0, manifest.MAX_BYTES)
    data = manifest.rewrap(data, id_, Rewrap(opens, keys))
    lock = UploadLock(backend, partial(source.intent, id_))

    def go_on() -> bool:
        lock.refresh()
        return True

    for entry in sorted(set(objects) - set(missing(backend, objects))):
        _compare(archive, backend, entry)
    copy_missing(archive, backend, objects, go_on=go_on)
    # Of one of that id that was deleted here: whoever imports it wants it.
    for entry in backend.list(layout.mark_prefix(id_)):
        backend.delete(entry.name)
    try:
        backend.publish(layout.manifest(id_), data)
    except ObjectExists:
        raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=id_) from None
    # Where something fails, the intent stays until it is stale: so do the packs, and
    # the next import of the same goes on with them.
    backend.delete(layout.intent(id_))
    return store.info(id_)


def _compare(archive: ExportedFile, backend: Backend, entry: Entry) -> None:
    """Check that a stored pack of an earlier generation is the same as in the file."""
    for at in range(0, entry.length, _BUFFER_BYTES):
        ours = backend.read(entry.name, at, _BUFFER_BYTES)
        if ours != archive.read(entry.name, at, _BUFFER_BYTES):
            raise damaged(f"another {entry.name} stands in the store")


class ExportedFile:
    """An exported file as a backend that can only be read.

    Args:
        file: open; anything may stand in it.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, it is none.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._fd = file.fileno()
        head = os.pread(self._fd, len(_MAGIC) + _LENGTH.size, 0)
        if len(head) != len(_MAGIC) + _LENGTH.size or head[: len(_MAGIC)] != _MAGIC:
            raise damaged("this is no exported session, or of another version")
        (length,) = _LENGTH.unpack(head[len(_MAGIC) :])
        if length > _MAX_TABLE_BYTES:
            raise damaged("its table is too long")
        table = _decode(os.pread(self._fd, length, len(head)))
        at = len(head) + length
        self._at: dict[str, tuple[int, int]] = {}
        for name, size in table:
            if name in self._at:
                raise damaged("its table names an object twice")
            self._at[name] = (at, size)
            at += size
        if os.fstat(self._fd).st_size != at:
            raise damaged("it is cut off, or something was added")
        self.checkpoint = layout.id_of(table[0][0]) or ""
        if table[0][0] != layout.manifest(self.checkpoint):
            raise damaged("its table does not begin with a manifest")

    def entries(self) -> set[Entry]:
        """All objects but the manifest."""
        name = layout.manifest(self.checkpoint)
        return {entry for entry in self.list("") if entry.name != name}

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        buffer = bytearray(max(0, min(length, self.length(name) - offset)))
        count = self.read_into(name, offset, memoryview(buffer))
        return bytes(buffer[:count])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's."""
        at, size = self._find(name)
        return read_into(self._fd, at + offset, buffer[: max(0, size - offset)])

    def length(self, name: str) -> int:
        """Bytes of that object."""
        return self._find(name)[1]

    def list(self, prefix: str) -> list[Entry]:
        """All objects below that prefix, by name."""
        return sorted(
            Entry(name, size)
            for name, (_, size) in self._at.items()
            if name.startswith(prefix)
        )

    def _refuse(self, name: str, *_: object, **__: Any) -> NoReturn:
        why = f"{name} stands in a file that is read"
        raise StoreError(Reason.STORE_FAILED, why=why)

    create = publish = replace = delete = _refuse

    def free_bytes(self) -> int | None:
        """There is none to be used."""
        return 0

    def capacity_bytes(self) -> int | None:
        """Nor is there any in all."""
        return 0

    def spec(self) -> None:
        """None: the file is open here only."""
        return

    def _find(self, name: str) -> tuple[int, int]:
        if name not in self._at:
            raise ObjectMissing(name)
        return self._at[name]


def _decode(data: bytes) -> list[tuple[str, _Size]]:
    try:
        table = decoders.json_decoder(list[tuple[str, _Size]]).decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise damaged("its table cannot be read") from None
    if not table or not all(_OBJECT.fullmatch(name) for name, _ in table):
        raise damaged("its table names what is no part of a saved session")
    return table
