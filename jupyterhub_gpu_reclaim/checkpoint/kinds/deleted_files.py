"""Deleted open files: refused, or saved by their contents and made again."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from jupyterhub_gpu_reclaim.checkpoint.criu import images, process
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    OVERRIDE,
    again,
    credentials_now,
    run_as,
)
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import ELSEWHERE
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import found_at
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Program, Return, Session
    from jupyterhub_gpu_reclaim.common.models import Finding

_READERS: Final = frozenset({os.O_RDONLY, os.O_RDWR})
#: How memory is called that looks like a deleted file.
_MEMORY: Final = ("/memfd:", "/dev/zero", "/SYSV", "/secretmem", "/anon_")


class DeletedFiles(Kind):
    """Deleted files that are still open.

    **Refused** are those that a process holds without the right to read them: opened
    for writing only, or as a place only (O_PATH), for which the kernel checks no right.
    CRIU would open one again, as root, and copy its contents into the image: a user
    could so hold another's file, wait until it was deleted, and read it once the
    session is back.

    **Made again** are the others. CRIU would make one by its former path, as root, and
    remove that name again. Here it is a file without a name from the beginning
    (O_TMPFILE), made with the rights of its holder in the folder where it was, or in
    ``/tmp`` where that is gone or closed. Where a file system has no such files (NFS),
    a new name is taken for a moment.
    """

    asked_again = True

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            yield from _too_large(one)
            for path in sorted(_unreadable(one)):
                yield one.holds(f"the file {path}, which its user may not read")

    def rewrite(self, back: Return) -> None:
        for wish in back.saved.wishes:
            number = wish.ghost
            if number < 0 or number in back.deleted:
                continue
            name = f"ghost-file-{number:x}.img"
            if back.images.size(name) is None:
                raise images.damaged(f"{name} is missing")
            ghost = Ghost(back.images.stream(name))
            _refuse_unreadable(back, number, ghost.entry)
            owner = _owner(back, number, ghost.entry.uid, wish.path)
            root, path = back.root, wish.path
            if back.trial is not None:
                root, path = back.trial.scratch, b"/" + path.rpartition(b"/")[2]
            made = run_as(owner, functools.partial(ghost.make, root, path))
            back.stack.callback(os.close, made)
            ghost.fill(made)
            back.deleted[number] = made
            finish = functools.partial(ghost.finish, made)
            back.when_open.append(functools.partial(run_as, owner, finish))


def _too_large(one: Program) -> Iterator[Finding]:
    large, limit = {}, process.GHOST_LIMIT_BYTES
    for link, target in one.links.items():
        if not target.startswith("/") or not target.endswith(" (deleted)"):
            continue
        if target.startswith(_MEMORY):
            continue  # which CRIU saves as memory, or another kind refuses
        status = one.target(link)
        if _is_deleted(status) and (size := status.st_blocks * 512) > limit:
            large[target.removesuffix(" (deleted)")] = size
    for path, size in sorted(large.items()):
        facts = {"size": text.size(size), "limit": text.size(limit)}
        yield one.found(Reason.GHOST_TOO_LARGE, path=path, **facts)


def _unreadable(one: Program) -> Iterator[str]:
    for each in one.descriptors:
        if not each.target.startswith("/") or _can_read(one.flags(each.fd)):
            continue
        status = one.target(f"fd/{each.fd}")
        if _is_deleted(status) and not _may_read(one.pid, each.fd, status):
            yield each.target.removesuffix(" (deleted)")


def _is_deleted(status: os.stat_result | None) -> TypeGuard[os.stat_result]:
    return status is not None and stat.S_ISREG(status.st_mode) and not status.st_nlink


def _refuse_unreadable(back: Return, number: int, ghost: Any) -> None:
    """Refuse it to a task that had it open but could not read it.

    Raises:
        RestoreFailed: a task would get one (``file_denied``).
    """
    for wish in back.saved.wishes:
        if wish.ghost != number or wish.is_contents:
            continue
        if _can_read(back.saved.entries[wish.id].reg.flags):
            continue
        holders = back.saved.holders.get(wish.id, {wish.holder})
        if not all(_allows(one, ghost) for one in holders):
            raise refused(Reason.FILE_DENIED, wish.path, "its user may not read it")


def _owner(back: Return, number: int, uid: int, path: bytes) -> Credentials:
    """The owner of a deleted file, among the tasks that hold it.

    Raises:
        RestoreFailed: none of several users owned it: what one of them may change
            from now on, the others would still trust.
    """
    holders = {
        one
        for wish in back.saved.wishes
        if wish.ghost == number
        for one in back.saved.holders.get(wish.id, {wish.holder})
    }
    own = {one for one in holders if one.uid == uid}
    if not own and len({one.uid for one in holders}) > 1:
        raise refused(Reason.FILE_DENIED, path, "several users hold it")
    return min(own or holders, key=lambda one: one.rank)


def _can_read(flags: int) -> bool:
    return not flags & os.O_PATH and flags & os.O_ACCMODE in _READERS


def _allows(who: Credentials, ghost: Any) -> bool:
    if who.uid == ghost.uid or who.effective & OVERRIDE:
        return True
    in_group = ghost.gid in {who.gid, *who.groups}
    return bool(ghost.mode & (stat.S_IRGRP if in_group else stat.S_IROTH))


def _may_read(pid: int, fd: int, status: os.stat_result) -> bool:
    try:
        who = credentials_now(pid)
        found = os.open(procfs.PROC / str(pid) / f"fd/{fd}", os.O_PATH)
    except OSError:
        return True  # it is gone meanwhile, or was closed
    with closing(found):
        return who.uid == status.st_uid or run_as(
            who, lambda: os.access(again(found), os.R_OK, effective_ids=True)
        )


_BLOCK: Final = 1 << 20
#: Of a file system that cannot make files without a name (O_TMPFILE).
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class Ghost:
    """The image of one deleted file.

    Raises:
        RestoreFailed: it is off (``checkpoint_damaged``).
    """

    def __init__(self, buffers: Iterable[bytes | memoryview]) -> None:
        self._entries = images.Entries(buffers, images.GHOST_MAGIC)
        self.entry = self._entries.message("ghost_file_entry")

    def make(self, root: int, path: bytes) -> int:
        """An empty file of that kind, without a name; called inside of ``run_as``.

        Raises:
            RestoreFailed: its holder may make none, or it is of another kind.
        """
        parent = path.rpartition(b"/")[0] or b"/"
        failure = "no folder takes it"
        for place in (parent, ELSEWHERE):
            try:
                with found_at(root, place, os.O_PATH | os.O_DIRECTORY) as folder:
                    return self._make(folder, path)
            except OSError as error:
                failure = error.strerror or failure
        raise refused(Reason.FILE_DENIED, path, failure)

    def fill(self, descriptor: int) -> None:
        if not stat.S_ISREG(self.entry.mode):
            return
        if not self.entry.chunks:
            at = 0
            while block := self._entries.read(_BLOCK):
                at += os.pwrite(descriptor, block, at)
            return
        os.ftruncate(descriptor, self.entry.size)
        while self._entries.has_more():
            chunk = self._entries.message("ghost_chunk_entry")
            at, end = chunk.off, chunk.off + chunk.len
            if end > self.entry.size:
                raise images.damaged("a deleted file is longer than it was")
            while at < end:
                block = self._entries.data(min(_BLOCK, end - at))
                at += os.pwrite(descriptor, block, at)

    def finish(self, descriptor: int) -> None:
        """Set its mode, once it is open everywhere; called inside of ``run_as``."""
        # What its holder may not set is left away, as chmod(2) does it.
        os.chmod(again(descriptor), stat.S_IMODE(self.entry.mode))  # noqa: PTH101

    def _make(self, folder: int, path: bytes) -> int:
        kind = stat.S_IFMT(self.entry.mode)
        if kind == stat.S_IFREG:
            try:
                return os.open(again(folder), os.O_TMPFILE | os.O_RDWR, 0o600)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
        name = b".reclaim-" + secrets.token_hex(8).encode()
        flags = os.O_PATH | os.O_NOFOLLOW
        os.fchdir(folder)  # this thread's own
        if kind == stat.S_IFREG:
            made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        elif kind == stat.S_IFDIR:
            os.mkdir(name, 0o700)  # noqa: PTH102
            made = os.open(name, flags)
            os.rmdir(name)  # noqa: PTH106
            return made
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600)
            made = os.open(name, flags)
        else:
            raise refused(Reason.FILE_DENIED, path, "it was deleted, and is no file")
        os.unlink(name)  # noqa: PTH108
        return made
