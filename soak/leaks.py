"""What a stack leaves behind: counted before the first session and after the last."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo import processes

if TYPE_CHECKING:
    from demo.stack import Stack

PROC = Path("/proc")
#: Words of the command lines of our programs.
PROGRAMS = {
    "agent": "jupyterhub-gpu-reclaim-agent",
    "hub": "bin/jupyterhub",
    "service": "gpu_reclaim.service.app",
    "supervisor": "gpu-reclaim-service",
    "proxy": "configurable-http-proxy",
}
_NAMESPACES = ("pid", "mnt", "ipc", "uts")


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
        "files in /dev/shm": _files(Path("/dev/shm")),
        "files of the agent": _files(stack.folder / "agent"),
        "reserved ports": len(_reserved_ports()),
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
    """Memory and descriptors of our programs while they live, one line a process."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._seen: dict[int, dict[str, Any]] = {}

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
                first = self._seen.setdefault(pid, {"program": name, "first": now})
                first["last"] = now

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


def _control_groups() -> int:
    return sum(1 for _ in Path("/sys/fs/cgroup").rglob("*reclaim*"))


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _bytes(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def _reserved_ports() -> list[str]:
    text = "".join(_lines(PROC / "sys/net/ipv4/ip_local_reserved_ports"))
    return [word for word in text.split(",") if word]
