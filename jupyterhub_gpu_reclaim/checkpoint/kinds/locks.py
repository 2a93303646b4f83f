"""Locks on files (flock(2), fcntl(2)), and leases."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind, Program
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return, Session
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

IMAGE: Final = "filelocks.img"
# CRIU's FL_POSIX, FL_FLOCK and FL_OFD.
_POSIX, _FLOCK, _OFD = 1, 2, 4
_KINDS: Final = {"READ": 0, "WRITE": 1}  # F_RDLCK, F_WRLCK
#: ``struct flock`` of fcntl(2), on 64 bits.
_RANGE: Final = struct.Struct("hhqqi4x")
_WRITE_LEASE: Final = re.compile(r"^lock:.* LEASE .* WRITE ", re.MULTILINE)
#: A lock that is held, in ``/proc/locks`` and, behind its word, in ``fdinfo``.
_LOCK: Final = re.compile(
    r"\d+: POSIX +\w+ +(READ|WRITE) +(\d+) +\S+ +(\d+) +(\d+|EOF)$", re.MULTILINE
)


class Locks(Kind):
    """Locks on files (flock, fcntl), and leases."""

    def __init__(self) -> None:
        self._posix: dict[int, list[Any]] = {}  #: by pid in the session

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for each in one.descriptors:
                # CRIU opens the file, and would wait for the stopped holder.
                is_path = each.target.startswith("/")
                if is_path and _WRITE_LEASE.search(one.info(each.fd)):
                    yield one.holds(f"a write lease (F_SETLEASE) on {each.target}")

    def save(self, dump: Dump) -> None:
        # Of an inherited file CRIU (4.2) saves only the first holder's POSIX locks:
        # where an open file has been saved for another process already, it drops what
        # it has read of locks. To set one again that is there changes nothing.
        holders = {int(pid) for _, pid, _, _ in _LOCK.findall(procfs.text("", "locks"))}
        saved = _saved(dump.images)
        known = {images.serialize(lock) for lock in saved}
        for one in dump.programs:
            for lock in _locks_of(one) if one.pid in holders else ():
                if images.serialize(lock) not in known:
                    saved.append(lock)

    def rewrite(self, back: Return) -> None:
        for lock in _saved(back.images):
            if lock.flag & _POSIX:
                self._posix.setdefault(lock.pid, []).append(lock)
            # CRIU waits for a lock that another has taken meanwhile, however long that
            # is. It sets those of an open file once more with the same open files.
            _, number = back.saved.descriptors.get((lock.pid, lock.fd), (0, -1))
            given = back.descriptors.get(number)
            if back.trial is None and given is not None and _is_taken(given, lock):
                raise refused(Reason.FILE_LOCKED, back.saved.entries[number].reg.name)

    def after_restore(self, back: Return) -> None:
        # CRIU sets locks first and maps files then, and closes each file that it has
        # mapped: with that the process loses the POSIX locks that it had on the file,
        # as SQLite and LMDB have them on what they share.
        for process in back.tree.processes:
            locks = self._posix.get(process.ns_pid)
            if not locks:
                continue
            there = {_identity(lock) for lock in _locks_of(Program(process))}
            lost = [lock for lock in locks if _identity(lock) not in there]
            if not lost:
                continue
            with ptrace.stopped(process.pid) as traced:
                for lock in lost:
                    if not _set(traced, lock):
                        _, number = back.saved.descriptors[lock.pid, lock.fd]
                        path = back.saved.entries[number].reg.name
                        raise refused(Reason.FILE_LOCKED, path)


def _saved(saved: SavedImages) -> list[Any]:
    return saved.entries(IMAGE, images.LOCKS_MAGIC, "file_lock_entry")


def _locks_of(one: Program) -> Iterator[Any]:
    for each in one.descriptors:
        if not each.target.startswith("/"):
            continue
        if not (found := _LOCK.findall(one.info(each.fd))):
            continue
        flags = one.flags(each.fd)
        cannot = {os.O_RDONLY: "WRITE", os.O_WRONLY: "READ"}
        for kind, _, start, end in found:
            if flags & os.O_PATH or cannot.get(flags & os.O_ACCMODE) == kind:
                continue
            entry = images.parse("file_lock_entry", b"")
            entry.flag, entry.type = _POSIX, _KINDS[kind]
            entry.pid, entry.fd = one.process.ns_pid, each.fd
            entry.start = int(start)
            entry.len = 0 if end == "EOF" else int(end) + 1 - entry.start
            yield entry


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


def _identity(lock: Any) -> tuple[int, ...]:
    return lock.type, lock.fd, lock.start, lock.len


def _set(traced: Traced, lock: Any) -> bool:
    wanted = _RANGE.pack(lock.type, os.SEEK_SET, lock.start, lock.len, 0)
    with traced.text(wanted) as address:
        try:
            traced.call("fcntl", lock.fd, fcntl.F_SETLK, address)
        except TraceFailed as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
    return True
