"""Judges which open files of ``/proc/PID`` a session can have again.

Pure, and asked twice: before a capture, so that a program is named while it still runs,
and at a return. CRIU opens these files by their names, as root, once the processes are
there. The path is the kernel's alone as long as ``/proc`` is. So a file comes back if
root's opening it gives its holder nothing that the holder did not have:

* what shows no more than everybody may know, to be read, also of the init;
* what shows a process to those that have the same rights, to be read by them;
* what a process may set of itself, by that very process: the kernel asks at each
  writing who writes;
* its own memory. A program that was started with other rights (``su``) may have got
  the descriptor from the one that started it. That led to memory which is gone, and
  would lead into its own. So all processes of the session must have the same rights.

Some files, such as ``pagemap``, tell more the more rights their opener had. They come
back where the holder may see all of it. Of a program that has ended nothing comes back:
CRIU would make one of that number for a moment, which is often over too soon.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials

_OF_A_PROCESS: Final = re.compile(rb"/proc/(\d+)(?:/|$| \(deleted\)$)")
#: Shown to everybody. The empty name is that of the folder.
_SHOWN: Final = frozenset(
    {
        *("", "autogroup", "cgroup", "cmdline", "comm", "coredump_filter", "cpuset"),
        *("fd", "fdinfo", "gid_map", "limits", "loginuid", "mountinfo", "mounts"),
        *("mountstats", "net", "ns", "oom_adj", "oom_score", "oom_score_adj"),
        *("projid_map", "sched", "schedstat", "sessionid", "setgroups", "stat"),
        *("statm", "status", "task", "timens_offsets", "timers", "timerslack_ns"),
        *("uid_map", "wchan"),
    }
)
#: Shown to those that have the same rights.
_OWN: Final = _SHOWN | {
    *("attr", "auxv", "environ", "io", "maps", "numa_maps", "personality", "smaps"),
    *("smaps_rollup", "syscall"),
}
#: Of these it counts what rights their opener had.
_BY_OPENER: Final = frozenset({"pagemap", "stack"})
#: Set by the process itself.
_SET: Final = frozenset(
    {
        *("autogroup", "clear_refs", "comm", "coredump_filter", "oom_adj"),
        *("oom_score_adj", "sched", "timerslack_ns"),
    }
)
_MEMORY: Final = "mem"
_INIT: Final = 1
_SEES_ALL: Final = 1 << 21  #: CAP_SYS_ADMIN


class TreeRights(NamedTuple):
    """Rights that decide whether files come back, by the processes' session pids."""

    credentials: Mapping[int, Credentials]
    hidden: Collection[int]  #: whose memory is closed to their own user (prctl(2))
    is_proc: bool  #: whether the kernel's files are at ``/proc``


class HeldFile(NamedTuple):
    """An open file of ``/proc/PID``."""

    path: bytes
    flags: int
    mode: int
    holder: int | None  #: the process that has it; None: not known


def process_of(path: bytes) -> int | None:
    """Pid in a path ``/proc/PID/…``; None for any other path."""
    match = _OF_A_PROCESS.match(path)
    return int(match[1]) if match else None


def refusal(file: HeldFile, tree: TreeRights) -> str:
    """Why a file of ``/proc/PID`` cannot come back; empty when it can."""
    if not tree.is_proc or stat.S_IFMT(file.mode) not in {stat.S_IFREG, stat.S_IFDIR}:
        return "it is not the kernel's"
    name, owner = _name(file.path), process_of(file.path)
    its = tree.credentials.get(owner or 0)
    reads = file.flags & os.O_ACCMODE == os.O_RDONLY or bool(file.flags & os.O_PATH)
    if its is None and owner != _INIT:
        return "it is of a program that has ended"
    if its is None:
        return "" if reads and name in _SHOWN else "it is of the session's init"
    if reads and name != _MEMORY:
        return _refusal_to_read(name, its, _holders(file, tree))
    if file.holder != owner:
        return "it is of another program"
    if name == _MEMORY:
        alike = len({*tree.credentials.values()}) == 1 and owner not in tree.hidden
        return "" if alike else "programs of the session have different rights"
    return "" if name in _SET else "the kernel makes it anew"


def _holders(file: HeldFile, tree: TreeRights) -> set[Credentials | None]:
    if file.holder is None:
        return {*tree.credentials.values()}
    return {tree.credentials.get(file.holder)}


def _refusal_to_read(
    name: str, its: Credentials, holders: set[Credentials | None]
) -> str:
    if holders != {its}:
        return "it is of a program with other rights"
    if name in _BY_OPENER and not its.effective & _SEES_ALL:
        return "root would see more in it"
    return "" if name in _OWN | _BY_OPENER else "the kernel makes it anew"


def _name(path: bytes) -> str:
    """First name in a path below the folder of a process or of one of its threads."""
    parts = path.split(b"/")[3:]
    if parts[:1] == [b"task"] and len(parts) > 2:
        parts = parts[2:]
    return parts[0].decode("ascii", "replace") if parts else ""
