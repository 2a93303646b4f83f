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
    """One thread's state; without registers: a process that ran, as its pid tells."""

    tid: int
    mask: int = 0  #: the signals that it blocked
    registers: bytes = b""

    @property
    def name(self) -> str:
        return str(self.tid) if self.registers else f"{self.tid}{_RUNS}"


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
        """Write it down, before anything of the thread, or process, is changed.

        Raises:
            OSError: it cannot be written.
        """
        # One write: who is killed in it has changed nothing yet.
        if self._folder is not None:
            data = _HEAD.pack(start_time(kept.tid) or 0, kept.mask) + kept.registers
            (self._folder / kept.name).write_bytes(data)

    def drop(self, kept: Kept) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / kept.name).unlink()

    def left(self) -> Iterator[Kept]:
        """What former agents have kept and not dropped, of threads that still exist."""
        for path in list(self._folder.iterdir()) if self._folder is not None else ():
            number = path.name.removesuffix(_RUNS)
            if not number.isdecimal():
                continue
            data = path.read_bytes()
            start, mask = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
            kept = Kept(int(number), mask, data[_HEAD.size :])
            if path.name == kept.name and start == start_time(kept.tid):
                yield kept
            else:
                path.unlink(missing_ok=True)
