"""Locks on files (flock(2), fcntl(2)) as CRIU saves and sets them, and what it lacks.

Of an inherited file CRIU (4.2) saves only the first holder's POSIX locks
(``fcntl.lockf``): where an open file has been saved for another process already, it
drops what it has read of locks. The others' are added by :func:`add`. To set a lock
again that is there already changes nothing.

CRIU sets locks first and maps files then, and closes each file that it has mapped: with
that the process loses the POSIX locks that it had on the file, as SQLite and LMDB have
them on what they share. :func:`give_back` sets them again.

CRIU waits for a lock that somebody else has taken meanwhile, however long that is.
:func:`take` refuses such a return before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import SavedFiles
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

IMAGE: Final = "filelocks.img"
# CRIU's FL_POSIX, FL_FLOCK and FL_OFD.
_POSIX, _FLOCK, _OFD = 1, 2, 4
_KINDS: Final = {"READ": 0, "WRITE": 1}  # F_RDLCK, F_WRLCK
#: ``struct flock`` of fcntl(2), on 64 bits.
_RANGE: Final = struct.Struct("hhqqi4x")
#: Seconds in which a process must stand still, and set its locks.
_SECONDS: Final = 10.0
#: A lock that is held, in ``/proc/locks`` and, behind its word, in ``fdinfo``.
_LOCK: Final = re.compile(
    r"\d+: POSIX +\w+ +(READ|WRITE) +(\d+) +\S+ +(\d+) +(\d+|EOF)$", re.MULTILINE
)


def add(tree: Snapshot, kept: dict[str, bytes]) -> None:
    """Add the POSIX locks of a stopped tree to CRIU's image of locks.

    Args:
        tree: the tree.
        kept: name → contents of images; the one of locks is changed, or made.
    """
    holders = {int(pid) for _, pid, _, _ in _LOCK.findall(procfs.text("", "locks"))}
    held = [
        images.serialize(lock)
        for process in tree.processes
        if process.pid in holders
        for lock in _locks_of(process)
    ]
    if held:
        known = images.split(kept[IMAGE], images.LOCKS_MAGIC) if IMAGE in kept else ()
        kept[IMAGE] = images.join(images.LOCKS_MAGIC, dict.fromkeys([*known, *held]))


def _locks_of(process: Process) -> Iterator[Any]:
    """CRIU's entries for every descriptor of a process that can set a lock."""
    for one in procfs.descriptors(process.pid):
        if not one.target.startswith("/"):
            continue
        text = procfs.text(process.pid, f"fdinfo/{one.fd}")
        found = _LOCK.findall(text)
        if not found:
            continue
        flags = int(procfs.fdinfo(process.pid, one.fd)["flags"], 8)
        cannot = {os.O_RDONLY: "WRITE", os.O_WRONLY: "READ"}
        for kind, _, start, end in found:
            if flags & os.O_PATH or cannot.get(flags & os.O_ACCMODE) == kind:
                continue
            entry = images.parse("file_lock_entry", b"")
            entry.flag, entry.type = _POSIX, _KINDS[kind]
            entry.pid, entry.fd = process.ns_pid, one.fd
            entry.start = int(start)
            entry.len = 0 if end == "EOF" else int(end) + 1 - entry.start
            yield entry


def _entries(image: bytes | None) -> Iterator[Any]:
    """The entries of CRIU's image of locks; None: there is none."""
    for payload in images.split(image, images.LOCKS_MAGIC) if image is not None else ():
        yield images.parse("file_lock_entry", payload)


def take(
    image: bytes | None, saved: SavedFiles, descriptors: Mapping[int, int]
) -> None:
    """Take a saved tree's locks, as far as an open file and no process has them.

    CRIU sets them once more with the same open files. The others, POSIX locks, are
    only looked at.

    Args:
        image: CRIU's, of locks; None where there is none.
        saved: the tree's files.
        descriptors: entry → the open file that the tree will have.

    Raises:
        RestoreFailed: somebody has one of them now (``file_locked``).
    """
    for lock in _entries(image):
        _, number = saved.descriptors.get((lock.pid, lock.fd), (0, -1))
        if number in descriptors and _is_taken(descriptors[number], lock):
            raise refused(Reason.FILE_LOCKED, saved.entries[number].reg.name)


def _is_taken(descriptor: int, lock: Any) -> bool:
    """Whether another one has it; takes it where not, if an open file can have it."""
    wanted = _RANGE.pack(lock.type, os.SEEK_SET, lock.start, lock.len, 0)
    try:
        if lock.flag & _FLOCK:
            kind = fcntl.LOCK_EX if lock.type == fcntl.F_WRLCK else fcntl.LOCK_SH
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        elif lock.flag & _OFD:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        elif lock.flag & _POSIX:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted)
            return bool(_RANGE.unpack(found)[0] != fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in {errno.EAGAIN, errno.EACCES}
    return False


def posix(image: bytes | None) -> dict[int, list[Any]]:
    """The POSIX locks of that image of CRIU's, by the process's pid in the session."""
    found: dict[int, list[Any]] = {}
    for lock in _entries(image):
        if lock.flag & _POSIX:
            found.setdefault(lock.pid, []).append(lock)
    return found


def give_back(
    tree: Snapshot, wanted: Mapping[int, list[Any]], saved: SavedFiles
) -> None:
    """Have the processes of a restored tree set those POSIX locks that they lack.

    Args:
        tree: it is stopped, and stays so.
        wanted: what :func:`posix` has found.
        saved: the tree's files.

    Raises:
        RestoreFailed: somebody has one of them now (``file_locked``).
        TraceFailed: a process could not be made to set them.
    """
    for process in tree.processes:
        locks = wanted.get(process.ns_pid)
        if not locks:
            continue
        there = {_identity(lock) for lock in _locks_of(process)}
        lost = [lock for lock in locks if _identity(lock) not in there]
        if not lost:
            continue
        with ptrace.stopped(process.pid, seconds=_SECONDS) as traced:
            for lock in lost:
                if not _set(traced, lock):
                    _, number = saved.descriptors[lock.pid, lock.fd]
                    raise refused(Reason.FILE_LOCKED, saved.entries[number].reg.name)


def _identity(lock: Any) -> tuple[int, ...]:
    return lock.type, lock.fd, lock.start, lock.len


def _set(traced: Traced, lock: Any) -> bool:
    """Have a process set it; whether nobody else has it."""
    wanted = _RANGE.pack(lock.type, os.SEEK_SET, lock.start, lock.len, 0)
    with traced.text(wanted) as address:
        try:
            traced.call("fcntl", lock.fd, fcntl.F_SETLK, address)
        except TraceFailed as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
    return True
