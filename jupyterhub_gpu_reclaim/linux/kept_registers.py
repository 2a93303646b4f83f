"""Keeps a thread's state before it is made to call, in case we are killed meanwhile.

The kernel then lets such a thread go as it is: with the registers of a call that is
not its own, and deaf to signals. It would end as soon as it ran. One whose process a
signal has stopped does not run yet, so its state is restored (``ptrace.give_back``)
before it is continued. A running process is stopped for the calls, which is noted, too
(``continuing.stopped``).
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux.processes import start_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD: Final = struct.Struct("=QQ")
_RUNS: Final = ".runs"  #: after the pid of a process that is to be continued


class Kept(NamedTuple):
    """One thread's state."""

    tid: int
    mask: int  #: the signals that it blocked
    registers: bytes


class KeptRegisters:
    """A file for each thread that is being made to call; none without a folder.

    Other files are left alone.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None

    def use(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder

    def keep(self, kept: Kept) -> None:
        """Write it down, before anything of the thread is changed.

        Raises:
            OSError: it cannot be written.
        """
        # One write: who is killed in it has changed nothing yet.
        self._write(str(kept.tid), kept.tid, kept.mask, kept.registers)

    def drop(self, tid: int) -> None:
        self._remove(str(tid))

    def keep_running(self, pid: int) -> None:
        """Write down that a process runs, before a signal of ours stops it.

        Raises:
            OSError: it cannot be written.
        """
        self._write(f"{pid}{_RUNS}", pid, 0, b"")

    def drop_running(self, pid: int) -> None:
        self._remove(f"{pid}{_RUNS}")

    def left(self) -> Iterator[Kept]:
        """What former agents have kept and not dropped, of threads that still exist."""
        for tid, mask, registers in self._left(""):
            if registers:
                yield Kept(tid, mask, registers)
            else:
                self.drop(tid)

    def left_running(self) -> Iterator[int]:
        """The processes that former agents have stopped and not continued."""
        for pid, _, _ in self._left(_RUNS):
            yield pid

    def _left(self, suffix: str) -> Iterator[tuple[int, int, bytes]]:
        for path in list(self._folder.iterdir()) if self._folder is not None else ():
            number = path.name.removesuffix(suffix)
            if path.name != number + suffix or not number.isdecimal():
                continue
            data = path.read_bytes()
            if len(data) >= _HEAD.size:
                start, mask = _HEAD.unpack_from(data)
                if start == start_time(int(number)):
                    yield int(number), mask, data[_HEAD.size :]
                    continue
            self._remove(path.name)

    def _write(self, name: str, tid: int, mask: int, more: bytes) -> None:
        if self._folder is not None:
            data = _HEAD.pack(start_time(tid) or 0, mask) + more
            (self._folder / name).write_bytes(data)

    def _remove(self, name: str) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
