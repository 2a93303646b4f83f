"""Small readers of /proc/<pid> for processes that may end at any moment.

A process that has gone reads as nothing, never as an error; nothing is written. All
processes of the machine are read every few seconds, and ``pathlib`` would take four
times as long.
"""

# ruff: noqa: PTH115, PTH116, PTH208

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
#: Field of /proc/<pid>/stat, counted from the state.
_TTY = 4
_READ_SIZE: Final = 1 << 16


class Descriptor(NamedTuple):
    """One open descriptor of a process."""

    fd: int
    target: str  #: what its link in /proc/<pid>/fd reads


class Mapping(NamedTuple):
    """One line of /proc/<pid>/maps that is backed by a file."""

    start: int
    end: int
    mode: str  #: e.g. ``r-xp``; the last letter is p(rivate) or s(hared)
    device: str
    inode: int
    path: str


def pids(proc: Path = PROC) -> list[int]:
    """Every process of the machine, as far as that /proc shows them."""
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]


def read(pid: int, name: str, proc: Path = PROC) -> bytes:
    """A file of /proc/<pid>.

    Raises:
        OSError: the process has ended, or the file may not be read.
    """
    descriptor = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = part = os.read(descriptor, _READ_SIZE)
        while part:
            part = os.read(descriptor, _READ_SIZE)
            content += part
        return content
    finally:
        os.close(descriptor)


def text(pid: int, name: str) -> str:
    """A file of /proc/<pid>, decoded like a path; empty when it is not there."""
    try:
        return os.fsdecode(read(pid, name))
    except OSError:
        return ""


def link(pid: int, name: str) -> str:
    """Where a link of /proc/<pid> points; empty when it is not there."""
    try:
        return os.readlink(f"{PROC}/{pid}/{name}")
    except OSError:
        return ""


def target_status(pid: int, name: str) -> os.stat_result | None:
    """What a link in /proc/<pid> leads to, also when that has lost its name."""
    try:
        return os.stat(f"{PROC}/{pid}/{name}")
    except OSError:
        return None


def status(pid: int, thread: int | None = None) -> dict[str, str]:
    """The fields of /proc/<pid>/status, or of a thread's; empty when it is gone."""
    name = "status" if thread is None else f"task/{thread}/status"
    pairs = (line.partition(":") for line in text(pid, name).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def name(pid: int) -> str:
    """The process' short name; ``?`` when it is gone."""
    return text(pid, "comm").strip() or "?"


def stat(pid: int, thread: int | None = None) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty when it is gone.

    Before them stands the name, which may hold anything.

    Args:
        pid: of the process.
        thread: one of its threads' ids, whose own fields are wanted.
    """
    name = "stat" if thread is None else f"task/{thread}/stat"
    return text(pid, name).rpartition(")")[2].split()


def has_terminal(pid: int) -> bool:
    """Whether a process has a controlling terminal (proc(5), tty_nr)."""
    fields = stat(pid)
    return len(fields) > _TTY and fields[_TTY] != "0"


def descriptors(pid: int) -> Iterator[Descriptor]:
    """The open descriptors of a process."""
    try:
        numbers = [int(name) for name in os.listdir(f"{PROC}/{pid}/fd")]
    except OSError:
        return
    for fd in numbers:
        target = link(pid, f"fd/{fd}")
        if target:
            yield Descriptor(fd, target)


def fdinfo(pid: int, fd: int) -> dict[str, str]:
    """The fields of /proc/<pid>/fdinfo/<fd>; empty when it is closed."""
    pairs = (line.partition(":") for line in text(pid, f"fdinfo/{fd}").splitlines())
    return {field: value.strip() for field, _, value in pairs}


def mappings(pid: int) -> Iterator[Mapping]:
    """The mappings of a process that are backed by a file or by shared memory."""
    for line in text(pid, "maps").split("\n"):
        fields = line.split(maxsplit=5)
        # By its path, not by its inode: the first System V segment has number 0.
        if len(fields) < 6 or fields[5].startswith("["):
            continue
        start, _, end = fields[0].partition("-")
        yield Mapping(
            int(start, 16),
            int(end, 16),
            fields[1],
            fields[3],
            int(fields[4]),
            fields[5].replace("\\012", "\n"),
        )
