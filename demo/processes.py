"""Which processes belong to a stack: found by a word in their environment.

Used by ``demo/stack.py`` to end what it started, also what an earlier run that was
killed has left behind. It never looks at a name alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

MARK = "GPU_RECLAIM_DEMO"
LOCK = "lock"


def mark(folder: Path) -> dict[str, str]:
    """What every process of the stack in that folder has in its environment."""
    return {MARK: str(folder)}


def of(folder: Path, program: str = "") -> list[int]:
    """Processes of that stack, all or those with this word in their command line."""
    word, found = f"{MARK}={folder}", []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        words = _read(entry / "environ").split("\0")
        if word in words and program in _read(entry / "cmdline"):
            found.append(int(entry.name))
    return found


def end_all(folder: Path, *, seconds: float = 20) -> list[int]:
    """Kill every process of that stack; returns those that would not die."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in of(folder) if alive(pid)]) and (
        time.monotonic() < until
    ):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return left


def alive(pid: int) -> bool:
    """Whether that process runs; a dead one that nobody has reaped does not."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    return bool(stat) and stat.rpartition(")")[2].split()[0] not in "ZX"


def claim(folder: Path) -> int | None:
    """Take a folder for this process, and clear away what an earlier run left.

    Returns:
        The lock, held until this process ends; None when a living one has it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    end_all(folder)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    return lock


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
