"""Unpacks an archive made by ``writer`` below a folder, and nowhere else.

The stream was written from files that a user owns, and the place (a tmpfs, a root) is
that user's, too, so neither is trusted: every path is opened below the folder without
following a link or entering another mount, and nothing but plain files, folders, links
and fifos is made, up to a limit. A file is written under another name and then renamed
over the old one, so that repeating a restore is harmless.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from jupyterhub_gpu_reclaim.checkpoint.archive.tarformat import (
    BLOCK_BYTES,
    END,
    OPAQUE,
    attributes_of,
    damaged,
    layout_of,
    time_of,
)
from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import empty, mode_of, open_beneath, remove
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEMPORARY: Final = b".gpu-reclaim-restore"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_BY_NAME: Final = os.O_PATH | os.O_NOFOLLOW

_MOST_BYTES: Final = 1 << 42
_MOST_ENTRIES: Final = 20_000_000


def unpack(
    buffers: Iterable[bytes | bytearray | memoryview],
    folder: int,
    *,
    overlay: bool = False,
    clear: bool = False,
) -> tuple[str, ...]:
    """Unpack everything in a stream that ``pack`` wrote. Idempotent.

    With ``overlay`` whiteouts remove what is there, and opaque folders are emptied
    first. With ``clear`` the folder is emptied first (a tmpfs that an earlier attempt
    left), but for other mounts below it.

    Returns:
        What could not be put back, each a sentence for the log.

    Raises:
        RestoreFailed: the stream is damaged, would leave the folder or is too large
            (``checkpoint_damaged``), or the place does not take it
            (``restore_failed``).
    """
    unpacker = _Unpacker(folder, overlay=overlay)
    try:
        if clear:
            empty(folder)
        with tarfile.open(
            fileobj=cast("IO[bytes]", BufferReader(iter(buffers))),  # read suffices
            mode="r|",
            encoding="utf-8",
            errors="surrogateescape",
            bufsize=BLOCK_BYTES,
        ) as tar:
            return unpacker.run(tar)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise damaged(str(error)) from None
    except OSError as error:
        raise RestoreFailed(
            Reason.RESTORE_FAILED,
            why=f"a file could not be put back: {error.strerror}",
            detail=str(error),
        ) from None


class _Unpacker:
    def __init__(self, folder: int, *, overlay: bool) -> None:
        self._folder = folder
        self._overlay = overlay
        self._bytes = self._entries = 0
        self._notes: list[str] = []
        #: folders whose times are set when everything below them has been made
        self._open: list[tuple[bytes, int]] = []

    def run(self, tar: tarfile.TarFile) -> tuple[str, ...]:
        for info in tar:
            if END in info.pax_headers:
                self._leave(b"")
                return tuple(self._notes)
            self._count(info)
            path = _checked(info.name)
            self._leave(path)
            try:
                self._make(tar, info, path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Another mount of the new place, which it has for a reason.
                self._notes.append(f"{info.name} lies under a mount and was left out.")
        raise damaged("an archive ends too early")

    def _count(self, info: tarfile.TarInfo) -> None:
        self._entries += 1
        self._bytes += info.size
        too_much = self._bytes > _MOST_BYTES
        if info.size < 0 or self._entries > _MOST_ENTRIES or too_much:
            raise damaged("an archive is larger than allowed")

    def _make(self, tar: tarfile.TarFile, info: tarfile.TarInfo, path: bytes) -> None:
        if path == b".":
            self._finish(self._folder, info)
            self._open.append((path, time_of(info)))
            return
        parent_path, _, name = path.rpartition(b"/")
        with closing(
            open_beneath(self._folder, parent_path or b".", _FOLDER)
        ) as parent:
            if info.isdir():
                self._make_folder(parent, name, info, path)
            elif info.ischr() and self._overlay:
                remove(parent, name)
            else:
                mode_of(parent, name)  # to rename over a mount would take it away
                remove(parent, _TEMPORARY)
                self._make_other(tar, parent, info)
                self._put(parent, name)

    def _make_folder(
        self, parent: int, name: bytes, info: tarfile.TarInfo, path: bytes
    ) -> None:
        mode = mode_of(parent, name)
        if mode is not None and (not stat.S_ISDIR(mode) or OPAQUE in info.pax_headers):
            remove(parent, name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        with closing(open_beneath(parent, name, _FOLDER)) as folder:
            self._finish(folder, info)
        self._open.append((path, time_of(info)))

    def _make_other(
        self, tar: tarfile.TarFile, parent: int, info: tarfile.TarInfo
    ) -> None:
        if info.issym():
            os.symlink(os.fsencode(info.linkname), _TEMPORARY, dir_fd=parent)
            os.chown(
                _TEMPORARY, info.uid, info.gid, dir_fd=parent, follow_symlinks=False
            )
            times = (time_of(info), time_of(info))
            os.utime(_TEMPORARY, ns=times, dir_fd=parent, follow_symlinks=False)
        elif info.islnk():
            target = _checked(info.linkname)
            with closing(open_beneath(self._folder, target, _BY_NAME)) as first:
                os.link(f"/proc/self/fd/{first}", _TEMPORARY, dst_dir_fd=parent)
        elif info.isfifo():
            os.mkfifo(_TEMPORARY, 0o600, dir_fd=parent)
            with closing(open_beneath(parent, _TEMPORARY, _BY_NAME)) as fifo:
                self._finish(fifo, info)
        elif info.isreg():
            self._make_file(tar, parent, info)
        else:
            raise damaged(f"an archive holds something of type {info.type!r}")

    def _make_file(
        self, tar: tarfile.TarFile, parent: int, info: tarfile.TarInfo
    ) -> None:
        content = tar.extractfile(info)
        if content is None:
            raise damaged("an archive holds a file without contents")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with closing(open_beneath(parent, _TEMPORARY, flags, 0o600)) as file:
            size, parts = layout_of(info)
            if size + self._bytes > _MOST_BYTES:
                raise damaged("an archive is larger than allowed")
            for start, length in parts:
                at, end = start, start + length
                while at < end:
                    block = content.read(min(BLOCK_BYTES, end - at))
                    if not block:
                        raise damaged("an archive ends in the middle of a file")
                    at += os.pwrite(file, block, at)
            os.ftruncate(file, size)
            self._finish(file, info)

    def _finish(self, descriptor: int, info: tarfile.TarInfo) -> None:
        """Owner first: a change of it would clear the set-uid bit and capabilities."""
        path = f"/proc/self/fd/{descriptor}"
        os.chown(path, info.uid, info.gid)
        Path(path).chmod(info.mode & 0o7777)
        for name, value in attributes_of(info):
            try:
                os.setxattr(path, name, value)
            except OSError as error:
                if error.errno not in {errno.ENOTSUP, errno.EPERM}:
                    raise
                label = os.fsdecode(name)
                self._notes.append(f"{info.name}: {label} is not possible here.")
        os.utime(path, ns=(time_of(info), time_of(info)))

    def _put(self, parent: int, name: bytes) -> None:
        try:
            os.rename(_TEMPORARY, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            if error.errno == errno.EISDIR:
                remove(parent, name)
                os.rename(_TEMPORARY, name, src_dir_fd=parent, dst_dir_fd=parent)
                return
            remove(parent, _TEMPORARY)
            raise
        # Two names of one file: rename does nothing then, and leaves the first.
        remove(parent, _TEMPORARY)

    def _leave(self, path: bytes) -> None:
        while self._open:
            left, mtime = self._open[-1]
            if path and (left == b"." or path.startswith(left + b"/")):
                return
            self._open.pop()
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                closing(open_beneath(self._folder, left, _FOLDER)) as folder,
            ):
                os.utime(folder, ns=(mtime, mtime))


def _checked(name: str) -> bytes:
    path = os.fsencode(name)
    parts = path.split(b"/")
    if path != b"." and any(part in {b"", b".", b".."} for part in parts):
        raise damaged("an archive names a path that leads out of it")
    return path
