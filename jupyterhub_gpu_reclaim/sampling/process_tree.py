"""Measures the processes of one session: memory, processor time, terminals.

Call it in a thread, because reading ``/proc`` of large processes takes milliseconds. A
process that ends meanwhile is left out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress

_TICKS = os.sysconf("SC_CLK_TCK")
#: Major numbers of the slaves of Unix98 terminals (Linux: admin-guide/devices.txt).
_PTS_MAJORS = range(136, 144)


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Resources that a tree has used up to now; those of ended children included."""

    memory: int  #: Resident bytes, but what is shared.
    cpu_server: float  #: Processor seconds of the first program itself.
    cpu_work: float  #: Processor seconds of all others.
    written: int  #: Bytes to files, pipes and terminals, and to sockets by some.
    started: float  #: Of the first program, seconds since the epoch.
    typed: list[float]  #: Last inputs to its terminals, in their numbers' order.
    #: The newest input to any other terminal: of a program that the server shows (VS
    #: Code, RStudio), of tmux, of ssh into the session.
    typed_elsewhere: float | None = None


class _Stat(NamedTuple):
    parent: int
    session: int
    terminal: int
    own: float
    children: float
    started: float


def measure(init_pid: int, root_pid: int, pids: Sequence[int]) -> TreeUsage:
    """Raise OSError when the init or the first program has ended."""
    root = _stat(root_pid)
    work = root.children + _stat(init_pid).children
    memory = procfs.private_bytes(root_pid)
    written = _bytes_written(init_pid) + _bytes_written(root_pid)
    own, others = dict[int, int](), dict[int, int]()
    for pid in pids:
        if pid == root_pid:
            continue
        try:
            stat = _stat(pid)
            memory += procfs.private_bytes(pid)
            written += _bytes_written(pid)
        except OSError:
            continue
        work += stat.own + stat.children
        number = _terminal_number(stat.terminal)
        if stat.session == pid and number is not None:
            (own if stat.parent == root_pid else others)[number] = pid
    typed = [_last_input(init_pid, number) for number in sorted(own)]
    elsewhere = [_last_input(pid, n) for n, pid in others.items() if n not in own]
    return TreeUsage(
        memory,
        root.own,
        work,
        written,
        root.started,
        [at for at in typed if at is not None],
        max((at for at in elsewhere if at is not None), default=None),
    )


def _stat(pid: int) -> _Stat:
    fields = procfs.read(pid, "stat").rpartition(b")")[2].split()
    since_boot = int(fields[19]) / _TICKS
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return _Stat(
        parent=int(fields[1]),
        session=int(fields[3]),
        terminal=int(fields[4]),
        own=(int(fields[11]) + int(fields[12])) / _TICKS,
        children=(int(fields[13]) + int(fields[14])) / _TICKS,
        started=booted + since_boot,
    )


def _bytes_written(pid: int) -> int:
    return int(procfs.fields(procfs.read(pid, "io").decode()).get("wchar", 0))


def _terminal_number(device: int) -> int | None:
    major, minor = os.major(device), os.minor(device)
    if major not in _PTS_MAJORS:
        return None
    return (major - _PTS_MAJORS.start) * 256 + minor


def _last_input(pid: int, number: int) -> float | None:
    """Time of the last input to a terminal: its slave's access time in that process."""
    # The kernel sets it when the program reads what was typed, in steps of eight
    # seconds; output of a program changes the modification time only.
    try:
        return Path(f"/proc/{pid}/root/dev/pts/{number}").stat().st_atime
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class SampleTarget:
    """A running session to sample; all pids are the host's."""

    incarnation: str
    key: SessionKey
    init_pid: int
    root_pid: int
    pids: list[int]
    address: ServerAddress | None
    stopped: bool = False
    pod: str = ""
    kernels: Collection[int] = ()  #: of those pids
