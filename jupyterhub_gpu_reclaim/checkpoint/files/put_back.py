"""Puts files back as they were, and what is newer into a folder beside them.

For a session that goes back to a save point, whose user has said so: its programs get
the files of then (``kept_files``). What is newer is moved, under its own name and with
what belongs to it (a database and its journals), into a folder ``newer than 13:55``.

All files are complete, under no name, before the first newer one is moved out of its
way: where there is no room or no right to put them there, all stays as it is. An end at
any later moment leaves each newer file in its place, or in that folder, and the next
attempt does the rest. All names are looked up and made with the rights of the session's
user, below the session's root, and following no link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.checkpoint.files.open_files import JOURNALS
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import (
    found_at,
    open_beneath,
    open_made_folder,
    root_of,
)
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint

    Read = Callable[[str], Iterable[bytes | bytearray | memoryview]]

_SUFFIXES: Final = (*JOURNALS, b"-shm")
_NOREPLACE: Final = 1
#: Folders that are tried, of one moment.
_MOST_FOLDERS: Final = 100
_MODE: Final = 0o777
#: Bytes of a newer file that may be copied.
_MOST_COPIED: Final = 1 << 30
_BLOCK: Final = 1 << 20
#: What a shared folder gives to those in it: anything, and that they keep their own.
_SHARED: Final = 0o1777
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Group(NamedTuple):
    """Files that belong together: a database with its journals, or one file."""

    folder: bytes
    files: list[FileFingerprint]  #: that are put back
    others: list[bytes]  #: names that may have come since, and are only moved


class _Made(NamedTuple):
    name: bytes
    descriptor: int
    hidden: bytes  #: its name until then; empty: it has none


class _Ready(NamedTuple):
    group: _Group
    folder: int
    files: list[_Made]


def put_back(
    init_pid: int,
    changed: Iterable[FileFingerprint],
    opened: Sequence[FileFingerprint],
    who: Credentials,
    *,
    moment: float,
    read: Read,
) -> list[str]:
    """Put files back as they were; the folders in which the newer ones lie.

    ``moment`` is when they were as they come back; ``read`` gives the contents of a
    kept file by its name in the checkpoint.

    Raises:
        RestoreFailed: another program has one of them open (``file_in_use``), or it
            cannot be put there (``restore_failed``).
    """
    with ExitStack() as stack:
        root = stack.enter_context(root_of(init_pid))
        groups = _groups(changed, opened)
        _refuse_in_use(root, groups)
        ready = []
        for group in groups:
            with _telling(group):
                ready.append(_ready(root, group, who, read, stack))
        _refuse_in_use(root, groups)
        done: list[str] = []
        for one in ready:
            with _telling(one.group):
                beside = run_as(who, partial(_swap, one, who.uid, moment))
                os.fsync(one.folder)
            path = _name(one.group.folder.rstrip(b"/") + b"/" + beside)
            if beside and path not in done:
                done.append(path)
        return done


def incomplete(
    changed: Iterable[FileFingerprint], opened: Iterable[FileFingerprint]
) -> list[FileFingerprint]:
    """What would have to be put back with changed files, and was not kept."""
    bases = {_base(one.path) for one in changed}
    return [
        one
        for one in opened
        if not one.kept and stat.S_ISREG(one.mode) and _base(one.path) in bases
    ]


@contextmanager
def _telling(group: _Group) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        names = ", ".join(_name(one.path) for one in group.files)
        detail = error.strerror or "it cannot be put there"
        why = f"{names} cannot be put back as it was: {detail}"
        raise RestoreFailed(Reason.RESTORE_FAILED, why=why) from None


def _groups(
    changed: Iterable[FileFingerprint], opened: Sequence[FileFingerprint]
) -> list[_Group]:
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
            with suppress(OSError), found_at(root, path) as found:
                status = os.fstat(found)
                if stat.S_ISREG(status.st_mode):
                    files[status.st_dev, status.st_ino] = path
    for pid in procfs.pids():
        for key in files.keys() & _open_in(pid):
            who = f"{procfs.name(pid)} (process {pid})"
            raise RestoreFailed(Reason.FILE_IN_USE, path=_name(files[key]), who=who)


def _open_in(pid: int) -> set[tuple[int, int]]:
    """What a process has open or mapped, by device and inode.

    What serves those files is not asked: that may be a program that never answers.
    """
    found = set()
    for folder in ("fd", "map_files"):
        with suppress(OSError), os.scandir(f"/proc/{pid}/{folder}") as entries:
            for entry in entries:
                with suppress(OSError):
                    status = procfs.cached_status(entry.path)
                    found.add((status.st_dev, status.st_ino))
    return found


def _ready(
    root: int, group: _Group, who: Credentials, read: Read, stack: ExitStack
) -> _Ready:
    def begin() -> _Ready:
        opened = open_made_folder(root, group.folder, _FOLDER, 0o755)
        folder = stack.enter_context(closing(opened))
        ready = _Ready(group, folder, [])
        _there(ready)
        for one in group.files:
            made = _make(folder, one)
            stack.callback(os.close, made.descriptor)
            ready.files.append(made)
        return ready

    ready = run_as(who, begin)
    if any(made.hidden for made in ready.files):
        stack.callback(run_as, who, partial(_forget, ready))
    for one, made in zip(group.files, ready.files, strict=True):
        for block in read(one.kept):
            run_as(who, partial(_write, made.descriptor, bytes(block)))
        now = run_as(who, partial(_status, ready.folder, made.name))
        run_as(who, partial(_give, made.descriptor, one.mode, one.gid, one.mtime_ns))
        # What is another's stays so; root makes nothing another's that was not.
        if now is not None and (now.st_uid, now.st_gid) == (one.uid, one.gid):
            with suppress(OSError):  # as on a file system that trusts no root
                os.fchown(made.descriptor, one.uid, one.gid)
        os.fsync(made.descriptor)
    return ready


def _make(folder: int, one: FileFingerprint) -> _Made:
    """A file in that folder, without a name if it can be; else a hidden one."""
    name = _leaf(one.path)
    with suppress(OSError):
        made = os.open(again(folder), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return _Made(name, made, b"")
    # Nothing of the user's has that name, and an attempt that was cut off has this one.
    hidden = b".back-" + blake3(one.path + one.digest.encode()).hexdigest(16).encode()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        os.unlink(hidden, dir_fd=folder)
    return _Made(name, os.open(hidden, flags, 0o600, dir_fd=folder), hidden)


def _forget(ready: _Ready) -> None:
    for made in ready.files:
        if made.hidden:
            with suppress(OSError):
                os.unlink(made.hidden, dir_fd=ready.folder)


def _write(descriptor: int, block: bytes) -> None:
    """Append; what is empty stays a hole."""
    if not block.strip(b"\0"):
        os.ftruncate(descriptor, os.lseek(descriptor, len(block), os.SEEK_CUR))
        return
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def _give(descriptor: int, mode: int, gid: int, mtime_ns: int) -> None:
    os.fchmod(descriptor, mode & _MODE)
    with suppress(OSError):
        os.fchown(descriptor, -1, gid)
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))


def _swap(ready: _Ready, uid: int, moment: float) -> bytes:
    """Move what is newer aside, and give the others its names; the folder's name.

    Where that fails before anything has its name, all is put as it was.
    """
    folder, moved, shown = ready.folder, [], False
    there = _there(ready)
    beside, target = _folder_beside(folder, there, uid, moment)
    with ExitStack() as stack:
        if target >= 0:
            stack.callback(os.close, target)
        try:
            stay = _copy_beside(ready, target, uid, stack)
            for name in there:
                if name not in stay:
                    _rename(folder, name, target, name)
                moved.append(name)
            if there:
                os.fsync(target)
            for made in ready.files:
                _show(folder, made, stay)
                shown = True
        except OSError:
            for name in reversed([] if shown else moved):
                with suppress(OSError):
                    if name in stay:  # over what has been written in part
                        os.rename(name, name, src_dir_fd=target, dst_dir_fd=folder)
                    else:
                        _rename(target, name, folder, name)
            if beside:
                with suppress(OSError):  # unless there is something in it
                    os.rmdir(beside, dir_fd=folder)
            raise
    return beside


def _copy_beside(
    ready: _Ready, target: int, uid: int, stack: ExitStack
) -> dict[bytes, int]:
    stay = {}
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for one in ready.group.files if target >= 0 else ():
        name = _leaf(one.path)
        with suppress(OSError):  # as where there is no room
            found = os.open(name, flags, dir_fd=ready.folder)
            stack.callback(os.close, found)
            if _is_to_stay(os.fstat(found), one, uid):
                _copy_to(found, target, name)
                stay[name] = found
    return stay


# A file that is still the one that the programs had open stays that one: what is newer
# is copied into the folder, and what it held then is written into it. For SQLite writes
# into no database whose name leads to another file than it has open ("attempt to write
# a readonly database"). It is moved like others where it has a second name, which would
# change with it, is another user's, too large, or there is no room for a copy.
def _is_to_stay(status: os.stat_result, one: FileFingerprint, uid: int) -> bool:
    same = (status.st_dev, status.st_ino) == (one.device, one.inode)
    own = status.st_uid == uid and status.st_nlink == 1
    return same and own and status.st_size <= _MOST_COPIED


def _copy_to(source: int, folder: int, name: bytes) -> None:
    """A copy there, over nothing; none where it is not whole.

    Any other program that has the file open would write on into it.

    Raises:
        OSError: it is not made, or another program has opened the file meanwhile.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with closing(os.open(name, flags, 0o600, dir_fd=folder)) as made:
        try:
            _refuse_opened(source, made)
            _copy(source, made)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise


def _refuse_opened(source: int, made: int) -> None:
    """Let no program open it before it is closed again; those that try wait.

    Where the file just made beside it gets no lease either, as on NFS, that is not to
    be had.

    Raises:
        OSError: a program has it open.
    """
    if _lease(made) and not _lease(source):
        raise OSError(errno.EBUSY, "another program has it open")


def _lease(descriptor: int) -> bool:
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # SIGIO would end us
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    return False


def _copy(source: int, target: int) -> None:
    status, at = os.fstat(source), 0
    while block := os.pread(source, _BLOCK, at):
        _write(target, block)
        at += len(block)
    _give(target, status.st_mode, status.st_gid, status.st_mtime_ns)
    os.fsync(target)


def _there(ready: _Ready) -> list[bytes]:
    """The names that are moved, of those that there are.

    Raises:
        OSError: something else than a file has the name of one that is put back.
    """
    found = []
    for name in (one.path for one in ready.group.files):
        status = _status(ready.folder, _leaf(name))
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, "a folder has its name now")
        if status is not None:
            found.append(_leaf(name))
    for name in ready.group.others:
        status = _status(ready.folder, name)
        if status is not None and stat.S_ISREG(status.st_mode):
            found.append(name)
    return found


def _status(folder: int, name: bytes) -> os.stat_result | None:
    """Of what has that name there; None: nothing.

    Raises:
        OSError: EXDEV for the place of another mount, which is not moved.
    """
    try:
        found = open_beneath(folder, name, os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with closing(found):
        return os.fstat(found)


def _folder_beside(
    folder: int, names: Sequence[bytes], uid: int, moment: float
) -> tuple[bytes, int]:
    """A folder of its user's that has none of these names, made if it must be.

    Who may see the folder that it is in may see it, too. Nothing is made for no names.
    """
    if not names:
        return b"", -1
    clock = time.strftime("%H:%M", time.gmtime(moment))
    day = time.strftime("%Y-%m-%d", time.gmtime(moment))
    words = [f"newer than {clock}", f"newer than {day} {clock}"]
    words += [f"{words[1]} ({number})" for number in range(2, _MOST_FOLDERS)]
    for word in words:
        name, made = word.encode(), False
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
            made = True
        try:
            target = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            continue  # something else has that name
        if made:
            status = os.fstat(folder)
            with suppress(OSError):
                os.fchown(target, -1, status.st_gid)
                os.fchmod(target, status.st_mode & _SHARED)
        own = made or os.fstat(target).st_uid == uid
        if own and all(_status(target, one) is None for one in names):
            return name, target
        os.close(target)
    raise OSError(errno.EEXIST, "there are too many folders of newer files beside it")


def _rename(folder: int, name: bytes, target: int, new: bytes) -> None:
    try:
        checked(libc.renameat2(folder, name, target, new, _NOREPLACE))
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS}:
            raise
        # A file system without that flag, as NFS.
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)


def _show(folder: int, made: _Made, stay: Mapping[bytes, int]) -> None:
    """Give it its name, over nothing; or what it holds to the file that stays."""
    if made.name in stay and _overwritten(folder, made, stay[made.name]):
        return
    if made.hidden:
        _rename(folder, made.hidden, folder, made.name)
    else:
        os.link(again(made.descriptor), made.name, dst_dir_fd=folder)


def _overwritten(folder: int, made: _Made, stays: int) -> bool:
    """Whether that file, whose copy lies beside, could be written; else it is gone."""
    if made.hidden:  # before it is whole, and nobody looks for what is left
        os.unlink(made.hidden, dir_fd=folder)
    try:
        os.ftruncate(stays, 0)
        _copy(made.descriptor, stays)
    except OSError:
        if made.hidden:
            raise
        os.unlink(made.name, dir_fd=folder)  # what is newer lies beside
        return False
    return True
