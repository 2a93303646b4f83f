"""What a stack leaves behind: counted before the sessions of a run and after them.

The count before comes after one cycle, since programs start helpers and load libraries
with the first: the agent the process that forks its workers, the service the resolver
of names.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo import processes
from jupyterhub_gpu_reclaim.linux.processes import start_time
from jupyterhub_gpu_reclaim.session_init import launcher

if TYPE_CHECKING:
    from demo.stack import Stack

PROC = Path("/proc")
#: Words of the command lines of our programs.
PROGRAMS = {
    "agent": "jupyterhub-gpu-reclaim-agent",
    "hub": "bin/jupyterhub",
    "service": "jupyterhub_gpu_reclaim.service",
    "proxy": "configurable-http-proxy",
}
_NAMESPACES = ("pid", "mnt", "ipc", "uts")
#: Groups below which the demo's sessions get their own (``hub/local/spawner.py``).
_GROUPS = "jupyterhub-gpu-reclaim"
#: Seconds after which a group that nobody is in is not about to be joined.
_GROUP_AGE = 10.0
#: Cycles after which a program has loaded what it needs for them.
_WARM = 4


def count(stack: Stack) -> dict[str, int]:
    """Everything of a stack that may leak, by name."""
    pids = processes.of(stack.folder)
    spaces = {
        _link(PROC / str(pid) / "ns" / kind) for pid in pids for kind in _NAMESPACES
    }
    return {
        "processes": len(pids),
        "dead processes not reaped": _unreaped(pids),
        "descriptors": sum(len(_fds(pid)) for pid in pids),
        "inotify instances": sum(_count_fds(pid, "inotify") for pid in pids),
        "namespaces": len(spaces - {""}),
        "mounts of this machine": len(_lines(PROC / "self" / "mountinfo")),
        "mounts seen by our programs": sum(
            len(_lines(PROC / str(pid) / "mountinfo")) for pid in pids
        ),
        "control groups": _control_groups(),
        "files in /dev/shm": _files(Path("/dev/shm"), "*"),
        "files of the agent": _files(stack.folder / "agent")
        - _files(stack.folder / "agent", "*.lock")
        - _records(stack),
        "records of sessions, kept for an hour": _records(stack),
        "held ports": _held_ports(stack),
        "bytes of the store": _bytes(stack.folder / "store"),
        "manifests of the store": _files(stack.folder / "store" / "manifests"),
    }


def wait_until_collected(stack: Stack, seconds: float = 120) -> None:
    """Wait until no process and no checkpoint of a session is left, or so long."""
    until = time.monotonic() + seconds * stack.patience
    manifests = stack.folder / "store" / "manifests"
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if not stack.trees() and not _files(manifests):
                return
        time.sleep(0.5)


class Growth:
    """Memory and descriptors of our programs while they live, one line a process.

    A process is its pid and its start: a run lasts for hours, and pids come again.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._seen: dict[tuple[int, int], dict[str, Any]] = {}

    def look(self, cycles: int) -> None:
        """Take note of each program, now that there were so many cycles."""
        for name, word in PROGRAMS.items():
            for pid in processes.of(self._stack.folder, word):
                now = {
                    "cycles": cycles,
                    "rss": _rss(pid),
                    "descriptors": len(_fds(pid)),
                    "threads": _tasks(pid),
                }
                who = (pid, start_time(pid) or 0)
                seen = self._seen.setdefault(who, {"program": name, "since": cycles})
                if cycles - seen["since"] <= _WARM:
                    seen["first"] = now
                seen["last"] = now

    def longest(self) -> list[dict[str, Any]]:
        """Of each program, the process that has seen most cycles."""
        found: dict[str, dict[str, Any]] = {}
        for one in self._seen.values():
            served = one["last"]["cycles"] - one["first"]["cycles"]
            before = found.get(one["program"])
            if before is None or served > before["served"]:
                found[one["program"]] = {**one, "served": served}
        return list(found.values())


def _fds(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((PROC / str(pid) / "fd").iterdir())
    return []


def _count_fds(pid: int, word: str) -> int:
    return sum(word in _link(fd) for fd in _fds(pid))


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return str(path.readlink())
    return ""


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()
    return []


def _tasks(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list((PROC / str(pid) / "task").iterdir()))
    return 0


def _rss(pid: int) -> int:
    for line in _lines(PROC / str(pid) / "status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _unreaped(pids: list[int]) -> int:
    """Children of our programs that have ended and that nobody has waited for."""
    parents = {str(pid) for pid in pids}
    dead = 0
    for entry in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            dead += state == "Z" and parent in parents
    return dead


def _records(stack: Stack) -> int:
    return _files(stack.folder / "agent" / "records")


def _control_groups() -> int:
    """Those of sessions that nobody is in, and that cannot be removed either.

    The next start of a session removes what ended ones have left; here none comes.
    """
    launcher.sweep_cgroups(_GROUPS, age=_GROUP_AGE)
    before = time.time() - _GROUP_AGE
    return sum(
        group.is_dir()
        and group.stat().st_ctime < before
        and not _lines(group / "cgroup.procs")
        for mount, _ in launcher.hierarchies()
        for group in (mount / _GROUPS).glob("*")
    )


def _files(folder: Path, names: str = "**/*") -> int:
    return sum(path.is_file() for path in folder.glob(names))


def _bytes(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def _held_ports(stack: Stack) -> int:
    with contextlib.suppress(OSError):
        known = json.loads((stack.folder / "agent" / "ports.json").read_bytes())
        return sum(len(needs["ports"]) for needs in known["held"].values())
    return 0
