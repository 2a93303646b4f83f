"""Reads the environment and the command line with which a program was started.

Both files of ``/proc`` are memory of the program itself: reading them takes the lock of
its address space, which it can keep for as long as it likes, and they are as long as it
likes. So each is read in a thread of its own, with a limit of time and of size, and a
process is never read a second time while a first reader hangs in it. Nothing here logs
or keeps what was read.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Literal

#: Seconds that an honest process never needs.
SECONDS = 2.0
#: What Linux lets arguments and environment have together (fs/exec.c, 3/4 of 8 MiB).
MAX_BYTES = 6 << 20

File = Literal["environ", "cmdline"]


class _Read:
    """One reading of one file, by a thread that may never come back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.monotonic()
        self._done = threading.Event()
        self._data = b""
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            self._data = _read_at_most(self._path, MAX_BYTES)
        except OSError as error:
            self._error = error
        finally:
            self._done.set()

    def result(self, seconds: float) -> bytes:
        left = self._begun + seconds - time.monotonic()
        if not self._done.wait(max(0.0, left)):
            raise TimeoutError(f"{self._path} does not come")
        if self._error is not None:
            raise self._error
        return self._data


#: Those under way, by their process (pid and start time) and file.
_reads: dict[tuple[Path, str], _Read] = {}
_lock = threading.Lock()


def words(
    pid: int, file: File, *, seconds: float = SECONDS, proc: Path = Path("/proc")
) -> list[bytes]:
    """The words of ``/proc/<pid>/environ`` or ``cmdline``; blocks for so long at most.

    Args:
        pid: whose.
        file: which of the two.
        seconds: how long it may take; a reading that hangs since longer is not awaited.
        proc: where processes are found.

    Raises:
        OSError: the process has ended or may not be read, or there is more than the
            limit.
        TimeoutError: (an OSError) it does not come in time.
    """
    path = proc / str(pid) / file
    start = _start(proc, pid)
    data = _begin(path, start).result(seconds)
    if _start(proc, pid) != start:
        raise ProcessLookupError(f"process {pid} has ended")
    return data.removesuffix(b"\0").split(b"\0")


def _begin(path: Path, start: str) -> _Read:
    """The reading under way, or a new one."""
    key = (path, start)
    with _lock:
        read = _reads.get(key)
        if read is None:
            read = _reads[key] = _Read(path)
            # A daemon: our own end does not wait for it.
            threading.Thread(target=_run, args=(key, read), daemon=True).start()
        return read


def _run(key: tuple[Path, str], read: _Read) -> None:
    read.run()
    with _lock:
        del _reads[key]


def _start(proc: Path, pid: int) -> str:
    """Its start time as ``stat`` has it: with the pid it names one process."""
    stat = (proc / str(pid) / "stat").read_text(errors="replace")
    return stat.rpartition(")")[2].split()[19]


def _read_at_most(path: Path, most: int) -> bytes:
    """All of a file that has an end soon enough."""
    pieces, size = [], 0
    with path.open("rb", buffering=0) as file:
        while piece := os.read(file.fileno(), 1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise OSError(f"{path} has more than {most} bytes")
    return b"".join(pieces)
