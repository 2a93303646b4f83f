"""Keeps what a thread had before it is made to call, for when we are killed meanwhile.

The kernel lets such a thread go then, as it is: with the registers of a call that is
not its own, and deaf to signals. It would end as soon as it ran. One whose process a
signal has stopped does not run yet, so it gets all back (``ptrace.give_back``) before
anybody continues it.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD: Final = struct.Struct("=QQ")
#: Field of /proc/<tid>/stat, counted from the state (proc(5), starttime).
_START: Final = 19


class Kept(NamedTuple):
    """What one thread had."""

    tid: int
    mask: int  #: the signals that it blocked
    registers: bytes


class KeptRegisters:
    """A file for each thread that is just made to call; none without a folder."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def use(self, folder: Path) -> None:
        """Keep them there from now on.

        Raises:
            OSError: it can be neither found nor made.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder

    def keep(self, kept: Kept) -> None:
        """Write it down; nothing of the thread may be changed before.

        Raises:
            OSError: it cannot be written.
        """
        if self._folder is not None:
            # One write: who is killed in it has changed nothing yet.
            head = _HEAD.pack(_started(kept.tid), kept.mask)
            (self._folder / str(kept.tid)).write_bytes(head + kept.registers)

    def drop(self, tid: int) -> None:
        """The thread has all of it again."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / str(tid)).unlink()

    def left(self) -> Iterator[Kept]:
        """What those before us have kept and not dropped, of threads that are there."""
        if self._folder is None:
            return
        for path in list(self._folder.iterdir()):
            data, tid = path.read_bytes(), int(path.name)
            if len(data) > _HEAD.size:
                start, mask = _HEAD.unpack_from(data)
                if start == _started(tid):
                    yield Kept(tid, mask, data[_HEAD.size :])
                    continue
            self.drop(tid)


def _started(tid: int) -> int:
    """When a thread has started (clock ticks since boot); 0 when it has ended."""
    fields = procfs.stat(tid, tid)
    return int(fields[_START]) if len(fields) > _START else 0
