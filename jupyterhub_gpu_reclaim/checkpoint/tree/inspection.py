"""Verifies, before a restored tree continues, that it holds what was opened for it.

The second line of defence behind ``kinds.named_files``. The tree is stopped. Every
descriptor, folder, program and mapping of a file of each of its processes is compared,
by device, inode, type and flags, with the descriptor that was opened and judged. So
nothing comes back by a way that was not foreseen. Terminals, pipes, sockets and other
objects of the kernel must be of the kind that was saved.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import FileIdentity
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import FLAGS, process_of
from jupyterhub_gpu_reclaim.checkpoint.kinds.closed_memory import device_of_proc
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import TOP
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: fd_types of CRIU's fdinfo.proto → what the link in /proc/PID/fd looks like.
_LINKS: Final = {
    2: re.compile(r"pipe:\["),
    4: re.compile(r"socket:\["),
    5: re.compile(r"socket:\["),
    6: re.compile(r"anon_inode:\[eventfd\]"),
    7: re.compile(r"anon_inode:\[eventpoll\]"),
    8: re.compile(r"anon_inode:inotify"),
    9: re.compile(r"anon_inode:\[signalfd\]"),
    13: re.compile(r"socket:\["),
    14: re.compile(r"[a-z_]+:\["),
    16: re.compile(r"(?!/)"),
    17: re.compile(r"anon_inode:\[timerfd\]"),
    18: re.compile(r"/memfd:"),
    20: re.compile(r"anon_inode:\[pidfd\]|pidfd:\["),
}
#: Memory that the kernel shows as a file: shared, System V's, of a memfd.
_MEMORY: Final = ("/dev/zero", "/SYSV", "/memfd:", "/anon_hugepage", "anon_inode:")
#: The ring of a context of kernel AIO (io_setup(2)).
_AIO_RING: Final = "/[aio] (deleted)"
_TERMINALS: Final = frozenset({5, *range(128, 144)})
#: Not told by every kind of file, or set by the kernel itself.
_COMPARED: Final = FLAGS & ~(os.O_NOFOLLOW | os.O_DIRECTORY | os.O_SYNC)


def refuse_others(back: Return) -> None:
    """Compare everything that the tree has with what was opened for it.

    Raises:
        RestoreFailed: it has something else (``file_swapped``), or lacks something.
    """
    pids = {process.ns_pid: process.pid for process in back.tree.processes}
    inspector = _Inspector(back, pids)
    for number in back.saved.credentials:
        if number not in pids:
            why = f"process {number} is not there"
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
    for ns_pid, pid in pids.items():
        inspector.descriptors(ns_pid, pid)
        inspector.mappings(ns_pid, pid)
    inspector.folders()


def _entry_of(areas: list[tuple[int, int, int]], start: int, end: int) -> int | None:
    """The one entry that all these addresses were of; the kernel joins neighbours."""
    found = set()
    for first, last, number in areas[bisect.bisect(areas, (start, TOP, 0)) - 1 :]:
        if start >= end or not first <= start < last:
            break
        found.add(number)
        start = last
    return found.pop() if start >= end and len(found) == 1 else None


def _is_memory(pid: int, one: procfs.Mapping) -> bool:
    if one.path != _AIO_RING:
        return one.path.startswith(_MEMORY)
    # A file can have that name, too; what the ring has is of no type at all.
    status = procfs.target_status(pid, one.link)
    return status is not None and stat.S_IFMT(status.st_mode) == 0


class _Inspector:
    def __init__(self, back: Return, pids: dict[int, int]) -> None:
        self._back = back
        self._saved = back.saved
        self._pids = pids
        self._proc_device = device_of_proc(back.tree.init.pid)
        self._areas = self._expected_areas()
        self._descriptors: dict[int, dict[int, tuple[int, int]]] = {}
        for (owner, fd), kind in self._saved.descriptors.items():
            self._descriptors.setdefault(owner, {})[fd] = kind

    def descriptors(self, ns_pid: int, pid: int) -> None:
        """Check those of one process: none missing, none besides."""
        wanted = self._descriptors.pop(ns_pid, {})
        for fd, target in procfs.descriptors(pid):
            kind, number = wanted.pop(fd, (-1, -1))
            if not self._fits(pid, fd, target, kind, number):
                raise refused(Reason.FILE_SWAPPED, os.fsencode(target))
        if wanted and ns_pid in self._saved.credentials:
            why = f"process {ns_pid} lacks descriptor {min(wanted)}"
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why)

    def folders(self) -> None:
        for use in self._saved.uses:
            if use.where.startswith("map_files/"):
                continue
            status = procfs.target_status(self._pids[use.pid], use.where)
            self._compare(use.id, status)

    def mappings(self, ns_pid: int, pid: int) -> None:
        """Every mapping of a file: the one that was opened for these addresses."""
        areas = self._areas.get(ns_pid, [])
        seen: set[tuple[object, ...]] = set()
        for one in procfs.mappings(pid):
            expected = _entry_of(areas, one.start, one.end)
            key = (one.device, one.inode, one.path, one.mode[3], expected)
            if key in seen:
                continue
            seen.add(key)
            if expected is None:
                if not _is_memory(pid, one):
                    raise refused(Reason.FILE_SWAPPED, os.fsencode(one.path))
                continue
            self._compare(expected, procfs.target_status(pid, one.link))

    def _expected_areas(self) -> dict[int, list[tuple[int, int, int]]]:
        found: dict[int, list[tuple[int, int, int]]] = {}
        for use in self._saved.uses:
            kind, _, area = use.where.partition("/")
            if kind == "map_files":
                start, _, end = area.partition("-")
                one = (int(start, 16), int(end, 16), use.id)
                found.setdefault(use.pid, []).append(one)
        for areas in found.values():
            areas.sort()
        return found

    def _fits(self, pid: int, fd: int, target: str, kind: int, number: int) -> bool:
        if kind in _LINKS:
            return _LINKS[kind].match(target) is not None
        status = procfs.target_status(pid, f"fd/{fd}")
        if status is None:
            return False
        major = os.major(status.st_rdev)
        if kind == images.TYPE_TTY:
            return stat.S_ISCHR(status.st_mode) and major in _TERMINALS
        entry = self._saved.entries.get(number)
        if kind == images.TYPE_FIFO and entry is not None:
            number = entry.fifo.regf_id
        elif kind != images.TYPE_REG:
            return False
        self._compare(number, status)
        flags = int(procfs.fdinfo(pid, fd).get("flags", "0"), 8)
        saved: int = self._saved.entries[number].reg.flags
        compared = _COMPARED
        if number in self._back.stood_for:
            compared &= ~os.O_DIRECT  # which not every stand-in can have
        return flags & compared == saved & compared

    def _compare(self, number: int, status: os.stat_result | None) -> None:
        entry = self._saved.entries[number]
        path: bytes = entry.reg.name
        expected = self._back.identities.get(number)
        if status is not None and expected is not None:
            is_same = FileIdentity(status.st_dev, status.st_ino) == expected
        else:
            is_kernels = status is not None and status.st_dev == self._proc_device
            is_same = is_kernels and process_of(path) is not None
        if not is_same:
            raise refused(Reason.FILE_SWAPPED, path)
