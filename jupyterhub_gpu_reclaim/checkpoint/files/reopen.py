"""Opens a saved session's files again with the rights of the tasks that held them.

CRIU is root, and would open whatever is at a path now. So each file is opened before
CRIU runs, by a thread that has the holder's user, groups and capabilities, below the
session's root: first by name only (O_PATH), to be examined, then that very inode. So
nothing comes back that its user could not open at this moment. There are two
exceptions, both for the very file that was saved: what its task owns, although its mode
forbids it (its user could change that), and what was in the task's memory already, a
program or a library, with the same contents (``Reopener._may_have``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, overriding
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import FOLDER
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import found_at, open_in_root
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD, checked, libc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import (
        FileRequest,
    )

T = TypeVar("T")

#: Folder for files without a name when their own folder is gone.
ELSEWHERE: Final = b"/tmp"
#: Flags that fcntl(2) sets on an open file.
_SETTABLE: Final = os.O_APPEND | os.O_NONBLOCK | os.O_DIRECT | os.O_NOATIME
GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_AT_EACCESS: Final = 0x200  # <linux/fcntl.h>
#: Not taken by a file in memory before Linux 6.6 (O_DIRECT), or not by one without a
#: name (the others).
_NOT_IN_MEMORY: Final = os.O_DIRECT | os.O_DIRECTORY | os.O_NOFOLLOW


#: Those of the memory devices that hold no state, by their minor numbers
#: (Documentation/admin-guide/devices.txt): null zero full random urandom kmsg.
_MEMORY: Final = 1
_STATELESS: Final = frozenset({3, 5, 7, 8, 9, 11})


class FileIdentity(NamedTuple):
    device: int
    inode: int


def identity(descriptor: int) -> FileIdentity:
    status = os.fstat(descriptor)
    return FileIdentity(status.st_dev, status.st_ino)


class Opened(NamedTuple):
    descriptor: int  #: for CRIU
    file: int = -1  #: opened by name only, where the other is a stand-in; else -1


class Trial(NamedTuple):
    """What a rehearsal opens files with, where a return would use the user's own."""

    #: An empty folder, open to everybody, where everything is made that a return would
    #: make among the user's files, or write to.
    scratch: int
    goes_on: bool = False  #: whether the tree runs meanwhile, as behind a save point


@dataclass
class Reopener:
    """Opens files for one holder; its methods are called inside of ``run_as``."""

    who: Credentials
    _root: int
    _saved: Mapping[bytes, FileFingerprint]
    _pipes: dict[int, int]
    _trial: Trial | None = None

    def open(self, wish: FileRequest, made: int | None = None) -> Opened:
        """What was wished, opened.

        Raises:
            RestoreFailed: it is gone, or may not be opened (``file_missing``,
                ``file_denied``).
        """
        try:
            with closing(self._find(wish) if made is None else os.dup(made)) as found:
                if made is None and self._is_written(wish, found):
                    return Opened(self._try_writing(wish, found), os.dup(found))
                return Opened(self._open(wish, found))
        except OSError as error:
            what = "folder" if wish.is_folder else "file"
            if error.errno in GONE:
                raise refused(Reason.FILE_MISSING, wish.path, what=what) from None
            why = error.strerror or "it cannot be opened"
            raise refused(Reason.FILE_DENIED, wish.path, why, what) from None

    def _find(self, wish: FileRequest) -> int:
        """The file at a path, opened by name only (O_PATH).

        A tree that goes on beside its rehearsal renames and deletes files (a temporary
        file that becomes the whole one, a journal), so something empty does for what is
        gone by then.
        """
        try:
            return self._find_now(wish)
        except OSError as error:
            trial = self._trial
            if trial is None or not trial.goes_on or error.errno not in GONE:
                raise
            if wish.is_folder or stat.S_ISDIR(wish.mode):
                return os.dup(trial.scratch)
            return os.open(again(trial.scratch), os.O_TMPFILE | os.O_RDWR, 0o700)

    def _find_now(self, wish: FileRequest) -> int:
        flags = os.O_PATH | os.O_NOFOLLOW
        try:
            return open_in_root(self._root, wish.path, flags)
        except FileNotFoundError:
            if stat.S_ISFIFO(wish.mode):
                return self._replace_fifo(wish)
            raise
        except PermissionError:
            with overriding():
                found = open_in_root(self._root, wish.path, flags)
            if self._may_have(wish, found):
                return found
            os.close(found)
            raise

    def _replace_fifo(self, wish: FileRequest) -> int:
        if wish.pipe in self._pipes:
            return os.dup(self._pipes[wish.pipe])
        if self._trial is not None:
            return _make_fifo(self._trial.scratch)
        for place in (wish.path.rpartition(b"/")[0], ELSEWHERE):
            flags = os.O_PATH | os.O_DIRECTORY
            with (
                contextlib.suppress(OSError),
                found_at(self._root, place, flags) as folder,
            ):
                return _make_fifo(folder)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _is_written(self, wish: FileRequest, found: int) -> bool:
        if self._trial is None or wish.flags & os.O_PATH:
            return False
        is_file = stat.S_ISREG(os.fstat(found).st_mode)
        return is_file and wish.flags & os.O_ACCMODE != os.O_RDONLY

    def _try_writing(self, wish: FileRequest, found: int) -> int:
        # A rehearsal opens no file of the user's for writing: a program that watches
        # one is told when such a descriptor is closed (IN_CLOSE_WRITE), and takes half
        # of it for whole. The kernel is asked whether its holder might, and what CRIU
        # gets is an empty file in memory.
        assert self._trial is not None
        if stat.S_IFMT(wish.mode) not in {0, stat.S_IFREG}:
            raise refused(Reason.FILE_MISSING, wish.path)
        reads = wish.flags & os.O_ACCMODE != os.O_WRONLY
        mode = os.W_OK | (os.R_OK if reads else 0)
        path = again(found).encode()
        ask = functools.partial(libc.faccessat, AT_FDCWD, path, mode, _AT_EACCESS)
        self._permitted(wish, found, lambda: checked(ask()))
        flags = wish.flags & ~_NOT_IN_MEMORY | os.O_TMPFILE
        with closing(os.open(again(self._trial.scratch), flags, 0o600)) as descriptor:
            _seek(descriptor, wish.position)
            return os.dup(descriptor)

    def _open(self, wish: FileRequest, found: int) -> int:
        status = os.fstat(found)
        kind = stat.S_IFMT(status.st_mode)
        if wish.mode and kind != stat.S_IFMT(wish.mode):
            raise refused(Reason.FILE_MISSING, wish.path)
        if kind == stat.S_IFCHR and not is_memory_device(status):
            raise refused(Reason.FILE_DENIED, wish.path, "it is a device")
        if wish.is_folder:
            return self._enter(wish, found)
        if wish.flags & os.O_PATH:
            is_link = stat.S_ISLNK(status.st_mode)
            return os.dup(found) if is_link else os.open(again(found), wish.flags)
        if kind == stat.S_IFIFO:
            return self._open_fifo(wish, found)
        if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR}:
            raise refused(Reason.FILE_DENIED, wish.path, "it is no file")
        with closing(self._reopen(wish, found)) as descriptor:
            _set_flags(descriptor, wish.flags)
            _seek(descriptor, wish.position)
            return os.dup(descriptor)

    def _reopen(self, wish: FileRequest, found: int) -> int:
        flags = wish.flags & ~os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            flags &= ~os.O_DIRECTORY  # a part of O_TMPFILE
        return self._permitted(wish, found, lambda: os.open(again(found), flags))

    def _permitted(self, wish: FileRequest, found: int, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            allowed = error.errno in _DENIED and self._may_have(wish, found)
            if not allowed:
                raise
            with overriding():
                return work()

    def _enter(self, wish: FileRequest, found: int) -> int:
        descriptor = os.open(again(found), FOLDER)
        try:
            # This thread's own; it is the kernel's word that matters.
            os.fchdir(descriptor)
        except OSError:
            if not self._may_have(wish, found):
                os.close(descriptor)
                raise
        return descriptor

    def _open_fifo(self, wish: FileRequest, found: int) -> int:
        """Open one end of a FIFO. Both are held until all are open, for its contents.

        To open the writing end alone needs a reader, so rights are asked for first.
        """
        path, access = again(found), wish.flags & os.O_ACCMODE
        if access != os.O_RDONLY and not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if access != os.O_WRONLY and not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if self._trial is not None:
            path = self._stand_in(self._trial.scratch, wish.pipe)
        if wish.pipe not in self._pipes:
            with overriding():
                both = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._pipes[wish.pipe] = both
        descriptor = os.open(path, wish.flags & ~os.O_NOFOLLOW | os.O_NONBLOCK)
        _set_flags(descriptor, wish.flags)
        return descriptor

    def _stand_in(self, scratch: int, number: int) -> str:
        """A FIFO of ours: a program that waits at the user's would notice its end."""
        name = f"{again(scratch)}/fifo-{number}"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(name, 0o666)  # nothing is masked inside of ``run_as``
        return name

    def _may_have(self, wish: FileRequest, found: int) -> bool:
        """Whether it is the file that was saved, and its holder's or in its memory."""
        saved, status = self._saved.get(wish.path), os.fstat(found)
        if saved is None or FileIdentity(saved.device, saved.inode) != identity(found):
            return False
        if status.st_uid == self.who.uid:
            return True
        # The init runs a Python that its user may not be allowed to reach.
        with overriding():
            return wish.is_contents and open_files.has_contents(saved, found)


def is_memory_device(status: os.stat_result) -> bool:
    """Whether a character device is one of memory that has no state (``/dev/null``)."""
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return major == _MEMORY and minor in _STATELESS


def _make_fifo(folder: int) -> int:
    name = b".reclaim-" + secrets.token_hex(8).encode()
    os.mkfifo(name, 0o600, dir_fd=folder)
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.unlink(name, dir_fd=folder)


def _set_flags(descriptor: int, flags: int) -> None:
    had = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if had & _SETTABLE != flags & _SETTABLE:
        wanted = had & ~_SETTABLE | flags & _SETTABLE
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)


def _seek(descriptor: int, position: int) -> None:
    if position in {0, (1 << 64) - 1}:
        return
    try:
        os.lseek(descriptor, position, os.SEEK_SET)
    except OSError as error:
        if error.errno != errno.ESPIPE:
            raise
