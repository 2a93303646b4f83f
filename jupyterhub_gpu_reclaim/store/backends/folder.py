"""A folder as a backend: files owned by root, synced, published by rename.

It never follows a symbolic link and never leaves its folder.

Why not obstore's ``LocalStore``: it syncs neither the file nor its folder (``strace``
of obstore 0.12.1), so what it reported as written may be gone after a loss of power,
and it creates files with mode 0666.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, NoReturn

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.durable import sync_folder
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    Entry,
    ObjectExists,
    ObjectMissing,
)
from jupyterhub_gpu_reclaim.store.format.layout import (
    IDENTITY,
    INTENTS,
    MANIFESTS,
    PACKS,
    aside_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.store.backend import Buffer, Spec

#: File systems without hard links: there the look before is all there is.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
#: Names in a store's folder from its first object on, and in a new file system.
_OURS = {prefix.rstrip("/") for prefix in (MANIFESTS, PACKS, INTENTS, IDENTITY)}
_NOBODYS = {"lost+found"}
_NEW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
#: The reserve is at most this part of the file system.
_RESERVE_PART = 20


class FolderBackend:
    """Objects as files under one folder, mode 0600 in folders of 0700.

    The folder is made when it is missing, and closed to others who may enter it; if
    it then holds something else, or is another user's, it is a ``StoreError``.
    :meth:`create` leaves ``reserve`` bytes of the file system free, at most a
    twentieth of it. Small objects may use them: freeing room needs some.
    """

    def __init__(self, root: Path, *, reserve: int = 0) -> None:
        self._root = root
        self._reserve = reserve
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = root.stat()
            if found.st_uid != os.geteuid():
                fail(f"its folder belongs to user id {found.st_uid}")
            if stat.S_IMODE(found.st_mode) & 0o077:
                # ``/var`` by mistake is neither a store nor as good as empty.
                names = {each.name for each in root.iterdir()}
                if not (names & _OURS or names <= _NOBODYS):
                    fail("others may enter its folder, and it holds something else")
                root.chmod(0o700)
        except OSError as error:
            translate(error, str(root))

    def create(self, name: str) -> _FileWriter:
        self._refuse_existing(name)
        return _FileWriter(self, name, look=self._refuse_full)

    def publish(self, name: str, data: bytes) -> None:
        self._refuse_existing(name)
        _FileWriter(self, name).write_whole(data)

    def replace(self, name: str, data: bytes) -> None:
        self.length(name)
        _FileWriter(self, name, replaces=True).write_whole(data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._reading(name) as fd:
            left = max(0, min(length, os.fstat(fd).st_size - offset))
            buffer = memoryview(bytearray(left))
            return bytes(buffer[: read_into(fd, offset, buffer)])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        with self._reading(name) as fd:
            return read_into(fd, offset, buffer)

    def length(self, name: str) -> int:
        with _errors(name):
            found = (self._root / name).lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ObjectMissing(name)
        return found.st_size

    def list(self, prefix: str) -> list[Entry]:
        entries: list[Entry] = []
        try:
            walk(self._root, prefix.rstrip("/"), entries)
        except OSError as error:
            translate(error, prefix)
        return sorted(entries)

    def delete(self, name: str) -> None:
        path = self._root / name
        try:
            path.unlink()
            sync_folder(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            translate(error, name)
        with contextlib.suppress(OSError):
            # Not empty, or gone already: both are fine.
            for folder in path.parents:
                if self._root in (folder, folder.parent):
                    break
                folder.rmdir()

    def free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self._root)
        except OSError as error:
            translate(error, str(self._root))
        # Some file systems of FUSE do not tell their size.
        size = found.f_blocks * found.f_frsize
        if not size:
            return None
        reserve = min(self._reserve, size // _RESERVE_PART)
        return max(0, found.f_bavail * found.f_frsize - reserve)

    def spec(self) -> Spec:
        path = str(self._root.absolute())
        return {"kind": "folder", "path": path, "reserve": self._reserve}

    def _refuse_full(self, needed: int) -> None:
        """Refuse what does not fit (``STORE_FULL``).

        Writers that look at once use a block of the reserve each at most.
        """
        room = self.free_bytes()
        if room is not None and room < needed:
            more = f"{text.size(needed)} more"
            raise StoreError(Reason.STORE_FULL, needed=more, free=text.size(room))

    def _refuse_existing(self, name: str) -> None:
        if (self._root / name).exists():
            raise ObjectExists(name)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        with _errors(name):
            fd = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                yield fd
            finally:
                os.close(fd)

    def begin(self, name: str) -> tuple[int, Path]:
        """Make a file that has no name yet."""
        aside = self._root / aside_of(name, secrets.token_hex(4))
        try:
            self._make_folders(aside.parent)
            return os.open(aside, _NEW | os.O_EXCL, 0o600), aside
        except OSError as error:
            translate(error, name)

    def place(self, aside: Path, name: str, *, replaces: bool) -> None:
        """Give a synced file its name, durably; raises ``ObjectExists`` or replaces."""
        path = self._root / name
        try:
            self._make_folders(path.parent)
            put_in_place(aside, path, replaces=replaces)
        except FileExistsError:
            raise ObjectExists(name) from None
        except FileNotFoundError:
            if not aside.exists():
                raise
            # A delete has pruned the empty folder in between: once is enough.
            self._make_folders(path.parent)
            put_in_place(aside, path, replaces=replaces)
        sync_folder(path.parent)

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while folder != self._root and not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            sync_folder(each.parent)


class _FileWriter:
    def __init__(
        self,
        folder: FolderBackend,
        name: str,
        *,
        replaces: bool = False,
        look: Callable[[int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._look = look
        self._fd, self._aside = folder.begin(name)
        self._name = name
        self._replaces = replaces

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        if self._look is not None:
            self._look(len(rest))
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            translate(error, self._name, len(rest), self._aside.parent)

    def write_whole(self, data: bytes) -> None:
        try:
            self.write(data)
            self.finish()
        except BaseException:
            self.abandon()
            raise

    def read_back(self, offset: int, buffer: memoryview) -> int:
        try:
            return read_into(self._fd, offset, buffer)
        except OSError as error:
            translate(error, self._name)

    def finish(self) -> None:
        try:
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)  # network file systems report late errors here
            self._folder.place(self._aside, self._name, replaces=self._replaces)
        except OSError as error:
            translate(error, self._name, 0, self._aside.parent)

    def abandon(self) -> None:
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            if fd >= 0:
                os.close(fd)
            self._aside.unlink(missing_ok=True)


def put_in_place(aside: Path, path: Path, *, replaces: bool = False) -> None:
    """Give a file its name, or raise FileExistsError."""
    # Unlike a rename, a link never replaces another.
    if not replaces:
        try:
            os.link(aside, path, follow_symlinks=False)
        except FileExistsError:
            # A network file system may have lost its answer to our own link.
            if not aside.samefile(path):
                raise
            aside.unlink()
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            aside.unlink()
            return
        if path.exists():
            raise FileExistsError(errno.EEXIST, "stands already", str(path))
    aside.rename(path)


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise ObjectMissing(name) from None
    except OSError as error:
        translate(error, name)


def walk(root: Path, folder: str, entries: list[Entry]) -> None:
    """Add the regular files below a folder; links and special files are ignored."""
    try:
        with os.scandir(root / folder) as found:
            for each in found:
                name = f"{folder}/{each.name}"
                if each.is_dir(follow_symlinks=False):
                    walk(root, name, entries)
                elif each.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        size = each.stat(follow_symlinks=False).st_size
                        entries.append(Entry(name, size))
    except (FileNotFoundError, NotADirectoryError):
        return


def read_into(fd: int, offset: int, buffer: memoryview) -> int:
    """One call of the kernel may return fewer bytes than there are."""
    done = 0
    while done < len(buffer) and (
        part := os.preadv(fd, [buffer[done:]], offset + done)
    ):
        done += part
    return done


def fail(why: str) -> NoReturn:
    raise StoreError(Reason.STORE_FAILED, why=why)


def translate(
    error: OSError, name: str, needed: int = 0, folder: Path | None = None
) -> NoReturn:
    """Raise the system's error as ours; a full disk has its own code."""
    detail = f"{name}: {error}"
    if error.errno in _NO_ROOM:
        free = "nothing"
        if folder is not None:
            with contextlib.suppress(OSError):
                found = os.statvfs(folder)
                free = text.size(found.f_bavail * found.f_frsize)
        more = f"{text.size(needed)} more" if needed else "more"
        raise StoreError(
            Reason.STORE_FULL, needed=more, free=free, detail=detail
        ) from error
    why = (error.strerror or "unknown error").lower()
    denied = error.errno in _DENIED
    reason = Reason.STORE_DENIED if denied else Reason.STORE_FAILED
    raise StoreError(reason, why=why, detail=detail) from error
