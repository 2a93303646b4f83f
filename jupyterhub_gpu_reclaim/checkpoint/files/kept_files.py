"""Keeps the files that a tree can write, as they are while it stands.

A save point is memory of a moment, and memory fits the files of that moment alone. They
are copied into memory while the tree stands, and stored when it goes on. So the time
that it stands depends neither on the store nor on hashing; without memory for them
there is no save point.

The session's user may put anything at a path, at any moment. So each file is opened
with that user's rights, below the session's root, following no link, and only if it is
the very file that the tree has open, a regular one, and one that the user may write.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.linux.beneath import found_at, root_of
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.staging import StagedFile, StoreFile

_log = logging.getLogger(__name__)

#: The name of each in the store.
NAME: Final = "kept/{number}"


class KeptFiles:
    """Copies of the files of one save point.

    At most ``limit`` bytes are stored of them; the smallest come first. ``stage``
    begins a file in memory, which holds one after the other.
    """

    def __init__(self, limit: int, stage: Callable[[str], StagedFile]) -> None:
        self._limit = limit
        self._staged = stage("kept")
        self._opened: list[FileFingerprint] = []
        #: Place in that list → bytes that were copied.
        self._copied: dict[int, int] = {}

    def take(
        self, init_pid: int, opened: Sequence[FileFingerprint], who: Credentials
    ) -> None:
        """Copy what the tree, which stands, can write, with the rights of its user.

        Raises:
            OSError: there is no such session.
            ReclaimError: more memory is needed than may be taken.
        """
        self._opened = list(opened)
        skip = open_files.served(read_mounts(init_pid))
        with root_of(init_pid) as root:
            run_as(who, lambda: self._take_all(root, skip))

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
            its = open_files.JOURNALS if one.written and one.device not in skip else ()
            for suffix in its:
                path = one.path + suffix
                with suppress(OSError), found_at(root, path) as name:
                    if path in known or not stat.S_ISREG(os.fstat(name).st_mode):
                        continue
                    found = open_files.of_file(path, name, written=True)
                    self._opened.append(found)

    def _take(self, root: int, number: int, one: FileFingerprint) -> None:
        with found_at(root, one.path) as name:
            status = os.fstat(name)
            same = (status.st_dev, status.st_ino) == (one.device, one.inode)
            if not same or not stat.S_ISREG(status.st_mode):
                return
            if not os.access(again(name), os.W_OK, effective_ids=True):
                return
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with closing(os.open(again(name), flags)) as source:
                # Another session may append to it, and faster than it is read.
                self._copied[number] = self._staged.take_file(source, one.size)

    def deliver(
        self, file: Callable[[str], AbstractContextManager[StoreFile]], cancel: Cancel
    ) -> list[FileFingerprint]:
        """Store the copies; the fingerprints, which say now what each file held.

        ``file`` begins a file in the store, which is complete at the block's end.

        Raises:
            ReclaimError: the store does not take them, or it was cancelled.
        """
        memory = BufferReader(self._staged.parts())
        for number, size in self._copied.items():
            cancel.check()
            name, hasher = NAME.format(number=number), blake3()
            with file(name) as target:
                for block in memory.blocks(size):
                    cancel.check()
                    hasher.update(block)
                    target.write(block)
            self._opened[number] = msgspec.structs.replace(
                self._opened[number],
                digest=f"{open_files.HASH}{hasher.hexdigest()}",
                kept=name,
                size=size,
            )
        return self._opened

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._staged.release()
        self._copied.clear()


def most_bytes(opened: Iterable[FileFingerprint], limit: int) -> int:
    """Bytes of memory that the copies of those files take, at most."""
    return min(limit, sum(one.size for one in opened if one.is_written))
