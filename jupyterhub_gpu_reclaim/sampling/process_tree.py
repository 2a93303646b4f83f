"""Measures the processes of one session: number, memory, processor time, terminals.

Call it in a thread, because reading ``/proc`` of large processes takes milliseconds. It
reads only; a process that ends meanwhile is left out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Sequence

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Above this a process's exact share costs the kernel a long walk; resident will do.
_EXACT_BELOW_BYTES = 2 * 1024**3
#: Major numbers of the slaves of Unix98 terminals (Linux: admin-guide/devices.txt).
_PTS_MAJORS = range(136, 144)


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What a tree has used up to now.

    Attributes:
        memory: resident bytes, shared pages counted in proportion.
        cpu_server: processor seconds of the first program itself.
        cpu_work: processor seconds of all others, ended children included.
        started: when the first program was started, seconds since the epoch.
        typed: time of the last input to each terminal of the first program, in the
            order of the terminals' numbers.
    """

    processes: int
    memory: int
    cpu_server: float
    cpu_work: float
    started: float
    typed: list[float]


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of ``/proc/<pid>/stat`` that we need (proc(5))."""

    parent: int
    session: int
    terminal: int
    own: float
    children: float
    started: float


def measure(init_pid: int, root_pid: int, pids: Sequence[int]) -> TreeUsage:
    """Measure the tree.

    Args:
        init_pid: host pid of the session's init, which has reaped orphans.
        root_pid: host pid of its first program, the server.
        pids: host pids of all its processes but the init.

    Raises:
        OSError: the init or the first program has ended.
    """
    root = _stat(root_pid)
    work = root.children + _stat(init_pid).children
    memory = _memory(root_pid)
    count, typed = 1, dict[int, float]()
    for pid in pids:
        if pid == root_pid:
            continue
        try:
            stat = _stat(pid)
            memory += _memory(pid)
        except OSError:
            continue
        count += 1
        work += stat.own + stat.children
        if stat.parent == root_pid and stat.session == pid and stat.terminal:
            _add_typed(typed, init_pid, stat.terminal)
    in_order = [typed[number] for number in sorted(typed)]
    return TreeUsage(count, memory, root.own, work, root.started, in_order)


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


def _memory(pid: int) -> int:
    """Proportional set size where it is cheap to ask for, else the resident size."""
    resident = int(procfs.read(pid, "statm").split()[1]) * _PAGE
    if resident == 0 or resident >= _EXACT_BELOW_BYTES:
        return resident
    for line in procfs.read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident


def _add_typed(typed: dict[int, float], init_pid: int, device: int) -> None:
    """Look up a terminal's last input: its slave's access time.

    The kernel sets it when the program inside reads what was typed, in steps of eight
    seconds; what a program prints changes the modification time alone.
    """
    major, minor = os.major(device), os.minor(device)
    if major not in _PTS_MAJORS:
        return
    number = (major - _PTS_MAJORS.start) * 256 + minor
    try:
        typed[number] = Path(f"/proc/{init_pid}/root/dev/pts/{number}").stat().st_atime
    except OSError:
        return
