"""A folder as a backend: files of root's, synced, published by rename.

Called by the agent, which makes one for its store folder, and then by the repository.
It never follows a symbolic link and never leaves its folder.

Why not obstore's ``LocalStore``: it never syncs. ``strace`` of a put and of a writer
(obstore 0.12.1) shows open, write, rename, and neither ``fsync`` of the file nor of its
folder, so that what it has said to be written may be gone after a loss of power. It
opens what it makes with mode 0666, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, NoReturn

from jupyterhub_gpu_reclaim import words
from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry, ObjectExists, ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from jupyterhub_gpu_reclaim.store.backend import Buffer, Spec

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: File systems without hard links: there the look before is all there is.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class FolderBackend:
    """Objects as files under one folder, mode 0600 in folders of 0700.

    Args:
        root: made when it is missing. One that others may enter is closed to them.

    Raises:
        StoreError: it cannot be made, is no folder or belongs to somebody else.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = root.stat()
            if found.st_uid != os.geteuid():
                _fail(f"its folder belongs to user id {found.st_uid}")
            if stat.S_IMODE(found.st_mode) & 0o077:
                root.chmod(0o700)
        except OSError as error:
            _translate(error, str(root))

    def create(self, name: str) -> _FileWriter:
        """Begin a new file; its folders are made, and synced into theirs."""
        path = self._root / name
        try:
            try:
                self._make_folders(path.parent)
                fd = os.open(path, _NEW | os.O_EXCL, 0o600)
            except FileNotFoundError:
                # A delete has pruned the empty folder in between: once is enough.
                self._make_folders(path.parent)
                fd = os.open(path, _NEW | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ObjectExists(name) from None
        except OSError as error:
            _translate(error, name)
        return _FileWriter(fd, path, name)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Write aside under ``tmp/``, sync, link into place, sync the folder."""
        del needs  # there is one place only
        path = self._root / name
        try:
            if path.exists():
                raise ObjectExists(name)
            self._make_folders(path.parent)
            aside = self._write_aside(name, data)
            try:
                _put_in_place(aside, path)
            finally:
                aside.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except FileExistsError:
            raise ObjectExists(name) from None
        except OSError as error:
            _translate(error, name)

    def replace(self, name: str, data: bytes) -> None:
        """Write aside under ``tmp/``, sync, rename over it, sync the folder."""
        path = self._root / name
        try:
            self.length(name)
            aside = self._write_aside(name, data)
            aside.rename(path)
            _sync_folder(path.parent)
        except OSError as error:
            _translate(error, name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        with self._reading(name) as fd:
            return _read_all(fd, offset, length)

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's, without a copy of ours."""
        done = 0
        with self._reading(name) as fd:
            while done < len(buffer) and (
                part := os.preadv(fd, [buffer[done:]], offset + done)
            ):
                done += part
        return done

    def length(self, name: str) -> int:
        """Bytes of that file."""
        try:
            found = (self._root / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(name) from None
        except OSError as error:
            _translate(error, name)
        if not stat.S_ISREG(found.st_mode):
            raise ObjectMissing(name)
        return found.st_size

    def list(self, prefix: str) -> list[Entry]:
        """Regular files below that folder; links and odd things are not seen."""
        entries: list[Entry] = []
        try:
            _walk(self._root, prefix.rstrip("/"), entries)
        except OSError as error:
            _translate(error, prefix)
        return sorted(entries)

    def delete(self, name: str) -> None:
        """Unlink, sync the folder, and drop folders that are now empty."""
        path = self._root / name
        try:
            path.unlink()
            _sync_folder(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            _translate(error, name)
        with contextlib.suppress(OSError):
            # Not empty, or gone already: both are fine.
            for folder in path.parents:
                if self._root in (folder, folder.parent):
                    break
                folder.rmdir()

    def free_bytes(self) -> int | None:
        """Room for those who are not root: root's reserve is not ours to fill."""
        try:
            found = os.statvfs(self._root)
        except OSError as error:
            _translate(error, str(self._root))
        return found.f_bavail * found.f_frsize

    def spec(self) -> Spec:
        """Its path."""
        return {"kind": "folder", "path": str(self._root.absolute())}

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        """An object's file, open; what fails inside is translated, too."""
        try:
            fd = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                yield fd
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(name) from None
        except OSError as error:
            _translate(error, name)

    def _write_aside(self, name: str, data: bytes) -> Path:
        """A synced file under ``tmp/``; a random part keeps two writers apart."""
        shown = f"tmp/{name}~{secrets.token_hex(4)}"
        aside = self._root / shown
        self._make_folders(aside.parent)
        writer = _FileWriter(os.open(aside, _NEW | os.O_EXCL, 0o600), aside, shown)
        try:
            writer.write(data)
            writer.finish()
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        finally:
            writer.abandon()
        return aside

    def _make_folders(self, folder: Path) -> None:
        """Make what is missing between root and it; each synced into its parent."""
        missing = []
        while folder != self._root and not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(each.parent)


class _FileWriter:
    """One file that is being written; see :class:`~.backend.ObjectWriter`."""

    def __init__(self, fd: int, path: Path, name: str) -> None:
        self._fd = fd
        self._path = path
        self._name = name

    def write(self, data: Buffer) -> None:
        """Append all of it, however the kernel cuts it up."""
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            _translate(error, self._name, len(rest), self._path.parent)

    def finish(self) -> None:
        """Sync the file, then the folder that names it."""
        try:
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)  # network file systems report late errors here
            _sync_folder(self._path.parent)
        except OSError as error:
            _translate(error, self._name, 0, self._path.parent)

    def abandon(self) -> None:
        """Close it; the file stays as remains."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _put_in_place(aside: Path, path: Path) -> None:
    """Give a file its name; unlike a rename, a link never replaces what stands."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        aside.rename(path)


def _walk(root: Path, folder: str, entries: list[Entry]) -> None:
    try:
        with os.scandir(root / folder) as found:
            for each in found:
                name = f"{folder}/{each.name}"
                if each.is_dir(follow_symlinks=False):
                    _walk(root, name, entries)
                elif each.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        size = each.stat(follow_symlinks=False).st_size
                        entries.append(Entry(name, size))
    except (FileNotFoundError, NotADirectoryError):
        return


def _read_all(fd: int, offset: int, length: int) -> bytes:
    first = os.pread(fd, length, offset)
    if len(first) == length or not first:
        return first
    parts = [first]
    done = len(first)
    while done < length and (part := os.pread(fd, length - done, offset + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fail(why: str) -> NoReturn:
    raise StoreError(Reason.STORE_FAILED, why=why)


def _translate(
    error: OSError, name: str, needed: int = 0, folder: Path | None = None
) -> NoReturn:
    """The system's error in our words; a full disk is told apart."""
    detail = f"{name}: {error}"
    if error.errno in _NO_ROOM:
        free = "nothing"
        if folder is not None:
            with contextlib.suppress(OSError):
                found = os.statvfs(folder)
                free = words.size(found.f_bavail * found.f_frsize)
        more = f"{words.size(needed)} more" if needed else "more"
        raise StoreError(
            Reason.STORE_FULL, needed=more, free=free, detail=detail
        ) from error
    why = (error.strerror or "unknown error").lower()
    raise StoreError(Reason.STORE_FAILED, why=why, detail=detail) from error
