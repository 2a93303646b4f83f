"""Keeps the files that a tree can write, as they are while it stands.

A save point is memory of a moment, and memory fits the files of that moment alone. They
are copied while the tree stands, and stored when it goes on: as a reflink where their
file system has it, or into memory. So the time that it stands depends neither on the
store nor on hashing; without memory for them there is no save point.

The session's user may put anything at a path, at any moment. So each file is opened
with that user's rights, below the session's root, following no link, and only if it is
the very file that the tree has open, a regular one, and one that the user may write.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from blake3 import blake3

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.checkpoint.staging import hand_over
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.staging import StagedFile, StoreFile

_log = logging.getLogger(__name__)

#: The name of each in the store.
NAME: Final = "kept/{number}"
#: ioctl_ficlone(2)
FICLONE: Final = 0x40049409
_BLOCK: Final = 1 << 20
#: What belongs to an SQLite database, open or not.
COMPANIONS: Final = (b"-journal", b"-wal")


class _Copy(NamedTuple):
    number: int  #: its place in the list of fingerprints
    size: int
    clone: int = -1  #: a reflink without a name; -1: it is in memory


class KeptFiles:
    """Copies of the files of one save point.

    At most ``limit`` bytes are stored of them; the smallest come first. ``stage``
    begins a file in memory, which holds one after the other; None: none is copied into
    memory.
    """

    def __init__(
        self, limit: int, stage: Callable[[str], StagedFile] | None = None
    ) -> None:
        self._limit = limit
        self._stage = stage
        self._staged: StagedFile | None = None
        self._opened: list[FileFingerprint] = []
        self._copies: list[_Copy] = []
        self._without: set[int] = set()  # devices that have no reflinks
        self._stack = ExitStack()

    def take(
        self, init_pid: int, opened: Sequence[FileFingerprint], who: Credentials
    ) -> None:
        """Copy what the tree, which stands, can write, with the rights of its user.

        Raises:
            OSError: there is no such session.
            ReclaimError: more memory is needed than may be taken.
        """
        root = self._stack.enter_context(closing(open_root(f"/proc/{init_pid}/root")))
        self._opened = list(opened)
        skip = open_files.served(read_mounts(init_pid))
        run_as(who, lambda: self._take_all(root, skip))

    @property
    def in_memory(self) -> int:
        return sum(copy.size for copy in self._copies if copy.clone < 0)

    def _take_all(self, root: int, skip: Collection[int]) -> None:
        self._add_companions(root, skip)
        left = self._limit
        written = [
            pair
            for pair in enumerate(self._opened)
            if pair[1].is_written and pair[1].device not in skip
        ]
        for number, one in sorted(written, key=lambda pair: pair[1].size):
            left -= one.size
            if left < 0:
                break
            try:
                self._take(root, number, one)
            except OSError as error:
                left += one.size
                _log.info("%s is not kept: %s", one.path, error)

    def _add_companions(self, root: int, skip: Collection[int]) -> None:
        known = {one.path for one in self._opened}
        for one in list(self._opened):
            its = COMPANIONS if one.written and one.device not in skip else ()
            for suffix in its:
                path = one.path + suffix
                with suppress(OSError), ExitStack() as stack:
                    name = open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW)
                    stack.callback(os.close, name)
                    if path in known or not stat.S_ISREG(os.fstat(name).st_mode):
                        continue
                    found = open_files.of_file(path, name, written=True)
                    self._opened.append(found)

    def _take(self, root: int, number: int, one: FileFingerprint) -> None:
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
            clone = self._clone(root, one, source)
            if clone >= 0:
                self._stack.callback(os.close, clone)
                size = os.fstat(clone).st_size
            else:
                size = self._copy(source, one.size)
            self._copies.append(_Copy(number, size, clone))

    def _clone(self, root: int, one: FileFingerprint, source: int) -> int:
        if one.device in self._without:
            return -1
        with ExitStack() as stack:
            try:
                folder = one.path.rpartition(b"/")[0] or b"/"
                clone = open_in_root(root, folder, os.O_TMPFILE | os.O_RDWR)
                stack.callback(os.close, clone)
                fcntl.ioctl(clone, FICLONE, source)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    self._without.add(one.device)
                return -1
            stack.pop_all()
        return clone

    def _copy(self, source: int, most: int) -> int:
        """Copy it into memory, behind the others; how long that was.

        Another session may append to it, and faster than it is read.
        """
        if self._stage is None:
            return most
        if self._staged is None:
            self._staged = self._stage("kept")
            self._stack.callback(self._staged.release)
        return self._staged.take_file(source, most)

    def deliver(
        self, file: Callable[[str], AbstractContextManager[StoreFile]], cancel: Cancel
    ) -> list[FileFingerprint]:
        """Store the copies; the fingerprints, which say now what each file held.

        ``file`` begins a file in the store, which is complete at the block's end.

        Raises:
            ReclaimError: the store does not take them, or it was cancelled.
        """
        memory = BufferReader(
            self._staged.parts() if self._staged is not None else iter(())
        )
        for copy in self._copies:
            cancel.check()
            name, hasher = NAME.format(number=copy.number), blake3()
            blocks = (
                memory.blocks(copy.size) if copy.clone < 0 else blocks_of(copy.clone)
            )
            with file(name) as target:
                if copy.size <= _BLOCK:
                    for block in _hashed(blocks, hasher):
                        target.write(block)
                else:
                    hand_over(target, _hashed(blocks, hasher), cancel)
            self._opened[copy.number] = msgspec.structs.replace(
                self._opened[copy.number],
                digest=f"{open_files.HASH}{hasher.hexdigest()}",
                kept=name,
                size=copy.size,
            )
        return self._opened

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._stack.close()
        self._copies.clear()


# A reflink is of what is on the disk, and waits until all of the file is: 240 MB that
# were written just now have held the tree for a quarter of a second, and more on a slow
# disk. So each is made once while the tree runs, and thrown away.
def prepare(
    init_pid: int, opened: Sequence[FileFingerprint], who: Credentials, limit: int
) -> int:
    """Have the disks take what a reflink would wait for, while the tree runs.

    Returns:
        How many bytes of memory the files take that have no reflinks.

    Raises:
        OSError: there is no such session.
    """
    trial = KeptFiles(limit)
    try:
        trial.take(init_pid, opened, who)
        return trial.in_memory
    finally:
        trial.close()


def blocks_of(descriptor: int) -> Iterator[memoryview]:
    at = 0
    while block := os.pread(descriptor, _BLOCK, at):
        yield memoryview(block)
        at += len(block)


def _hashed(blocks: Iterable[memoryview], hasher: blake3) -> Iterator[memoryview]:
    for block in blocks:
        hasher.update(block)
        yield block
