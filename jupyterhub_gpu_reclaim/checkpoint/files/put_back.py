"""Puts files back as they were, and what is newer into a folder beside them.

For a session that goes back to a save point, whose user has said so: the programs of
then get the files of then (``kept_files``), and nothing that is newer is written over,
or removed. It is moved, under its own name, into a folder beside it, ``newer than
13:55``. What belongs together, a database and its journals, is moved together.

Each file is complete, under no name, before the newer one is moved out of its way. So
an end at any moment leaves each newer file in its place, or in that folder, and the
next attempt does the rest. All names are looked up and made with the rights of the
session's user, below the session's root, and following no link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.libc import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint

#: Ends of names that belong to the database of that name.
_SUFFIXES: Final = (b"-journal", b"-wal", b"-shm")
_NOREPLACE: Final = 1
#: Folders that are tried, of one moment.
_MOST_FOLDERS: Final = 100
_MODE: Final = 0o777
_libc = ctypes.CDLL(None, use_errno=True)


class _Group(NamedTuple):
    """Files that belong together: a database with its journals, or one file."""

    folder: bytes
    files: list[FileFingerprint]  #: that are put back
    others: list[bytes]  #: names that may have come since, and are only moved


def put_back(
    init_pid: int,
    changed: Iterable[FileFingerprint],
    opened: Sequence[FileFingerprint],
    who: Credentials,
    *,
    moment: float,
    read: Callable[[str], Iterable[bytes | bytearray | memoryview]],
) -> list[str]:
    """Put files back as they were; the folders in which the newer ones lie.

    Args:
        init_pid: of the session; its root is where paths are looked up.
        changed: the fingerprints of the files that are not as they were.
        opened: those of all files.
        who: the session's user.
        moment: when they were as they come back.
        read: the contents of a kept file, by its name in the checkpoint.

    Raises:
        RestoreFailed: another program has one of them open (``file_in_use``), or it
            cannot be put there (``file_denied``).
    """
    with ExitStack() as stack:
        root = open_root(f"/proc/{init_pid}/root")
        stack.callback(os.close, root)
        groups = _groups(changed, opened)
        _refuse_in_use(root, groups)
        done: list[str] = []
        for group in groups:
            try:
                beside = _put_group(root, group, who, moment, read)
            except OSError as error:
                names = ", ".join(_name(one.path) for one in group.files)
                why = error.strerror or "it cannot be put there"
                raise RestoreFailed(
                    Reason.FILE_DENIED, path=names, why=why, what="file"
                ) from None
            if beside and beside not in done:
                done.append(beside)
        return done


def incomplete(
    changed: Iterable[FileFingerprint], opened: Iterable[FileFingerprint]
) -> list[FileFingerprint]:
    """What would have to be put back with changed files, and was not kept."""
    bases = {_base(one.path) for one in changed}
    return [one for one in opened if not one.kept and _base(one.path) in bases]


def _groups(
    changed: Iterable[FileFingerprint], opened: Sequence[FileFingerprint]
) -> list[_Group]:
    """All that is moved and put back, if any part of it has changed."""
    bases = {_base(one.path) for one in changed}
    found: dict[bytes, list[FileFingerprint]] = defaultdict(list)
    for one in opened:
        if one.kept and _base(one.path) in bases:
            found[_base(one.path)].append(one)
    groups = []
    for base, files in sorted(found.items()):
        names = {one.path for one in files}
        others = [base + suffix for suffix in (b"", *_SUFFIXES)]
        groups.append(
            _Group(
                base.rpartition(b"/")[0] or b"/",
                files,
                [_leaf(path) for path in others if path not in names],
            )
        )
    return groups


def _base(path: bytes) -> bytes:
    for suffix in _SUFFIXES:
        if path.endswith(suffix):
            return path[: -len(suffix)]
    return path


def _leaf(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _name(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _refuse_in_use(root: int, groups: Iterable[_Group]) -> None:
    """Refuse what another program of the machine has open: it would not notice.

    Raises:
        RestoreFailed: with the program's name (``file_in_use``).
    """
    files: dict[tuple[int, int], bytes] = {}
    for group in groups:
        prefix = group.folder.rstrip(b"/") + b"/"
        paths = [one.path for one in group.files]
        for path in paths + [prefix + name for name in group.others]:
            with suppress(OSError):
                found = open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW)
                try:
                    status = os.fstat(found)
                finally:
                    os.close(found)
                files[status.st_dev, status.st_ino] = path
    for pid in procfs.pids():
        for key in files.keys() & _open_in(pid):
            who = f"{procfs.name(pid)} (process {pid})"
            raise RestoreFailed(Reason.FILE_IN_USE, path=_name(files[key]), who=who)


def _open_in(pid: int) -> set[tuple[int, int]]:
    """What a process has open or mapped, by device and inode."""
    found = set()
    for folder in ("fd", "map_files"):
        with suppress(OSError), os.scandir(f"/proc/{pid}/{folder}") as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat()
                    found.add((status.st_dev, status.st_ino))
    return found


def _put_group(
    root: int,
    group: _Group,
    who: Credentials,
    moment: float,
    read: Callable[[str], Iterable[bytes | bytearray | memoryview]],
) -> str:
    with ExitStack() as stack:

        def begin() -> tuple[int, list[tuple[bytes, int, bytes]]]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            folder = open_in_root(root, group.folder, flags)
            stack.callback(os.close, folder)
            made = []
            for one in group.files:
                descriptor, hidden = _make(folder, _leaf(one.path))
                stack.callback(os.close, descriptor)
                made.append((_leaf(one.path), descriptor, hidden))
            return folder, made

        folder, made = run_as(who, begin)
        for one, (_, descriptor, _) in zip(group.files, made, strict=True):
            for block in read(one.kept):
                _write(descriptor, block)
            _give(descriptor, one)

        def finish() -> bytes:
            names = [name for name, _, _ in made]
            beside = _move(folder, [*names, *group.others], moment)
            for name, descriptor, hidden in made:
                _show(folder, descriptor, hidden, name)
            return beside

        beside = run_as(who, finish)
        os.fsync(folder)
        if not beside:
            return ""
        return _name(group.folder.rstrip(b"/") + b"/" + beside)


def _make(folder: int, name: bytes) -> tuple[int, bytes]:
    """A file in that folder, without a name if it can be; else a hidden one."""
    with suppress(OSError):
        made = os.open(again(folder), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return made, b""
    hidden = b"." + name + b".back"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        os.unlink(hidden, dir_fd=folder)  # of an attempt that was cut off
    return os.open(hidden, flags, 0o600, dir_fd=folder), hidden


def _write(descriptor: int, block: bytes | bytearray | memoryview) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def _give(descriptor: int, one: FileFingerprint) -> None:
    """Owner, mode and time as they were; it is ours, and nobody has it open."""
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (one.uid, one.gid):
        with suppress(OSError):  # as on a file system that trusts no root
            os.fchown(descriptor, one.uid, one.gid)
    os.fchmod(descriptor, one.mode & _MODE)
    os.utime(descriptor, ns=(one.mtime_ns, one.mtime_ns))
    os.fsync(descriptor)


def _move(folder: int, names: Sequence[bytes], moment: float) -> bytes:
    """Move what there is of these into a folder beside; its name, or nothing."""
    there = [name for name in names if _exists(folder, name)]
    if not there:
        return b""
    beside, target = _folder_beside(folder, there, moment)
    try:
        for name in there:
            _rename(folder, name, target)
        os.fsync(target)
    finally:
        os.close(target)
    return beside


def _folder_beside(
    folder: int, names: Sequence[bytes], moment: float
) -> tuple[bytes, int]:
    """A folder that has none of these names, made if it must be."""
    clock = time.strftime("%H:%M", time.gmtime(moment))
    day = time.strftime("%Y-%m-%d", time.gmtime(moment))
    words = [f"newer than {clock}", f"newer than {day} {clock}"]
    words += [f"{words[1]} ({number})" for number in range(2, _MOST_FOLDERS)]
    for word in words:
        name = word.encode()
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            target = os.open(name, flags, dir_fd=folder)
        except OSError:
            continue  # something else has that name
        if not any(_exists(target, one) for one in names):
            return name, target
        os.close(target)
    raise OSError(errno.EEXIST, "there are too many folders of newer files beside it")


def _exists(folder: int, name: bytes) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "a folder has its name now")
    return True


def _rename(folder: int, name: bytes, target: int) -> None:
    """Move it there, over nothing."""
    try:
        checked(_libc.renameat2(folder, name, target, name, _NOREPLACE))
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS}:
            raise
        # A file system without that flag: the name was free a moment ago.
        os.rename(name, name, src_dir_fd=folder, dst_dir_fd=target)


def _show(folder: int, descriptor: int, hidden: bytes, name: bytes) -> None:
    """Give it its name, over nothing."""
    if not hidden:
        os.link(again(descriptor), name, dst_dir_fd=folder, follow_symlinks=True)
        return
    os.link(hidden, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    os.unlink(hidden, dir_fd=folder)
