"""Opens and makes files below a folder that no path, link or race can leave.

A session's user owns its root: any part of a path there may be a symbolic link to
anywhere, and may become one during a look-up. Every path is resolved with ``openat2``
(Linux 5.6), inside the given folder and in one step; ``/proc`` magic links are never
followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_NO_XDEV: Final = 0x01
_OPENAT2: Final = 437  # the same number on every architecture
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_IN_ROOT: Final = 0x10

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_HOW = struct.Struct("=QQQ")


def open_in_root(root: int, path: bytes, flags: int) -> int:
    """Open a path as seen by a process with that root; ``..`` and links stay inside.

    Raises:
        OSError: as ``open`` does.
    """
    return _open(root, path, flags, 0, _IN_ROOT | _NO_MAGICLINKS)


def found_at(
    root: int, path: bytes, flags: int = os.O_PATH | os.O_NOFOLLOW
) -> AbstractContextManager[int]:
    """The same inside the block, by name only unless other flags are given."""
    return closing(open_in_root(root, path, flags))


def open_made_folder(root: int, path: bytes, flags: int, mode: int) -> int:
    """Open a folder; it, and those above, are made with that mode where there are none.

    Raises:
        OSError: as ``open`` and ``mkdir`` do.
    """
    try:
        return open_in_root(root, path, flags)
    except FileNotFoundError:
        parent, _, name = path.rstrip(b"/").rpartition(b"/")
        above = open_made_folder(root, parent or b"/", flags, mode)
    with closing(above):
        os.mkdir(name, mode, dir_fd=above)
    return open_in_root(root, path, flags)


def open_file_in_root(root: int, path: bytes) -> int:
    """Open a regular file for reading, as :func:`open_in_root` finds it.

    Anything else is not opened at all: opening a device can have effects.

    Raises:
        OSError: as ``open`` does; EINVAL if it is not a regular file.
    """
    with found_at(root, path, os.O_PATH) as name:
        if not stat.S_ISREG(os.fstat(name).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(f"/proc/self/fd/{name}", flags)


def open_beneath(folder: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a relative path below ``folder``, in its mount, following no symbolic link.

    Raises:
        OSError: as ``open`` does; ELOOP for a link, EXDEV for a way out of the folder
            or into another mount.
    """
    resolve = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV
    return _open(folder, path, flags, mode, resolve)


def open_root(path: str | os.PathLike[str]) -> int:
    """A folder to resolve in, e.g. ``/proc/<pid>/root``, which is trusted itself."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def root_of(pid: int) -> AbstractContextManager[int]:
    """The root folder of a process inside the block; raises as ``open`` does."""
    return closing(open_root(f"/proc/{pid}/root"))


def names_in(folder: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(folder)]


def mode_of(parent: int, name: bytes) -> int | None:
    """Type and mode of that name in an open folder; None if there is none.

    Raises:
        OSError: EXDEV for the place of another mount.
    """
    try:
        entry = open_beneath(parent, name, os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with closing(entry):
        return os.fstat(entry).st_mode


def remove(parent: int, name: bytes) -> None:
    """Remove a name below an open folder, and all that is below it. Idempotent.

    Raises:
        OSError: EXDEV when another mount is in the way.
    """
    if _unlink(parent, name):
        return
    with closing(open_beneath(parent, name, _FOLDER)) as folder:
        empty(folder)
        if names_in(folder):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(name))
    os.rmdir(name, dir_fd=parent)


def empty(top: int) -> None:
    """Remove all that is below an open folder, but other mounts and the way to them.

    Raises:
        OSError: as ``open`` and ``unlink`` do.
    """
    folders = [b"."]
    for path in folders:  # it grows
        with closing(open_beneath(top, path, _FOLDER)) as folder:
            for name in names_in(folder):
                try:
                    if not _unlink(folder, name):
                        folders.append(path + b"/" + name)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
    for path in reversed(folders[1:]):
        try:
            os.rmdir(path, dir_fd=top)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _unlink(folder: int, name: bytes) -> bool:
    """Remove anything but a folder; False for a folder.

    Raises:
        OSError: EXDEV for the place of another mount.
    """
    # The kernel refuses to remove the place of a mount only to programs of the mount's
    # own namespace; for all others it removes the mount, too.
    mode = mode_of(folder, name)
    if mode is None:
        return True
    if stat.S_ISDIR(mode):
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return True


def _open(folder: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    how = _HOW.pack((flags | os.O_CLOEXEC) & 0xFFFFFFFF, mode, resolve)
    descriptor: int = libc.syscall(
        _OPENAT2, folder, ctypes.c_char_p(path), ctypes.c_char_p(how), len(how)
    )
    return checked(descriptor, os.fsdecode(path))
