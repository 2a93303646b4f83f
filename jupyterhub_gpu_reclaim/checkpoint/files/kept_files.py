"""Keeps the files that a tree can write, as they are while it stands.

A save point is memory of a moment, and memory fits the files of that moment alone. They
are copied while the tree stands, and stored when it goes on: as a reflink where their
file system has it, which takes no time and no room, or into memory, at the speed of the
page cache. So the time that it stands does not depend on the store, nor on hashing.

The session's user may put anything at a path, at any moment. So each file is opened
with that user's rights, below the session's root, following no link, and only if it is
the very file that the tree has open, a regular one, and one that the user may write.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from blake3 import blake3

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.checkpoint.staging import hand_over
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.staging import StagedFile, StoreFile

_log = logging.getLogger(__name__)

#: The name of each in the store.
NAME: Final = "kept/{number}"
#: ioctl_ficlone(2)
_FICLONE: Final = 0x40049409
_BLOCK: Final = 1 << 20
#: What belongs to an SQLite database, open or not.
COMPANIONS: Final = (b"-journal", b"-wal")


class _Copy(NamedTuple):
    """One file as it was."""

    number: int  #: its place in the list of fingerprints
    staged: StagedFile | None
    clone: int  #: a reflink without a name; -1: none

    def blocks(self) -> Iterator[memoryview]:
        """Its contents; what is in memory is given back meanwhile."""
        if self.staged is not None:
            yield from self.staged.parts()
            return
        at = 0
        while block := os.pread(self.clone, _BLOCK, at):
            yield memoryview(block)
            at += len(block)


class KeptFiles:
    """Copies of the files of one save point; a context manager, which ends them.

    Args:
        limit: bytes that may be stored of them; the smallest come first.
        stage: begins a file in memory.
    """

    def __init__(self, limit: int, stage: Callable[[str], StagedFile]) -> None:
        self._limit = limit
        self._stage = stage
        self._opened: list[FileFingerprint] = []
        self._copies: list[_Copy] = []
        self._stack = ExitStack()

    def take(
        self, init_pid: int, opened: Sequence[FileFingerprint], who: Credentials
    ) -> None:
        """Copy what the tree can write; it stands.

        Args:
            init_pid: of the session; its root is where paths are looked up.
            opened: the fingerprints of the files.
            who: the session's user.

        Raises:
            OSError: there is no such session.
        """
        root = open_root(f"/proc/{init_pid}/root")
        self._stack.callback(os.close, root)
        self._opened = list(opened)
        run_as(who, lambda: self._take_all(root))

    def _take_all(self, root: int) -> None:
        self._add_companions(root)
        left = self._limit
        written = [one for one in self._opened if one.is_written]
        for one in sorted(written, key=lambda one: one.size):
            left -= one.size
            if left < 0:
                break
            try:
                self._take(root, one)
            except OSError as error:
                left += one.size
                _log.info("%s is not kept: %s", one.path, error)

    def _add_companions(self, root: int) -> None:
        """Take in what belongs to a database, although nothing has it open."""
        known = {one.path for one in self._opened}
        for one in list(self._opened):
            for suffix in COMPANIONS if one.written else ():
                path = one.path + suffix
                with suppress(OSError), ExitStack() as stack:
                    name = open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW)
                    stack.callback(os.close, name)
                    if path in known or not stat.S_ISREG(os.fstat(name).st_mode):
                        continue
                    found = open_files.of_file(path, name, written=True)
                    self._opened.append(found)

    def _take(self, root: int, one: FileFingerprint) -> None:
        with ExitStack() as stack:
            name = open_in_root(root, one.path, os.O_PATH | os.O_NOFOLLOW)
            stack.callback(os.close, name)
            status = os.fstat(name)
            same = (status.st_dev, status.st_ino) == (one.device, one.inode)
            if not same or not stat.S_ISREG(status.st_mode):
                return
            if not os.access(again(name), os.W_OK, effective_ids=True):
                return
            source = os.open(again(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, source)
            number = self._opened.index(one)
            clone = _clone(root, one.path, source)
            if clone >= 0:
                self._stack.callback(os.close, clone)
                self._copies.append(_Copy(number, None, clone))
                return
            with self._stage(NAME.format(number=number)) as staged:
                staged.take_file(source)
            self._stack.callback(staged.release)
            self._copies.append(_Copy(number, staged, -1))

    def deliver(
        self, file: Callable[[str], AbstractContextManager[StoreFile]], cancel: Cancel
    ) -> list[FileFingerprint]:
        """Store the copies; the fingerprints, which say now what each file held.

        Args:
            file: begins a file in the store, which is complete at the block's end.
            cancel: ends it.

        Raises:
            ReclaimError: the store does not take them, or it was cancelled.
        """
        for copy in self._copies:
            cancel.check()
            name, hasher = NAME.format(number=copy.number), blake3()
            with file(name) as target:
                hand_over(target, _hashed(copy.blocks(), hasher), cancel)
            self._opened[copy.number] = msgspec.structs.replace(
                self._opened[copy.number],
                digest=f"{open_files.HASH}{hasher.hexdigest()}",
                kept=name,
            )
        return self._opened

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._stack.close()
        self._copies.clear()


def size_of(opened: Iterable[FileFingerprint], limit: int) -> int:
    """How many bytes are kept of these files, at most."""
    left = limit
    for size in sorted(one.size for one in opened if one.is_written):
        if size > left:
            break
        left -= size
    return limit - left


def _hashed(blocks: Iterable[memoryview], hasher: blake3) -> Iterator[memoryview]:
    for block in blocks:
        hasher.update(block)
        yield block


def _clone(root: int, path: bytes, source: int) -> int:
    """A reflink without a name, in the file's folder; -1 where there is none."""
    with ExitStack() as stack:
        try:
            folder = path.rpartition(b"/")[0] or b"/"
            clone = open_in_root(root, folder, os.O_TMPFILE | os.O_RDWR)
            stack.callback(os.close, clone)
            fcntl.ioctl(clone, _FICLONE, source)
        except OSError:
            return -1
        stack.pop_all()
    return clone
