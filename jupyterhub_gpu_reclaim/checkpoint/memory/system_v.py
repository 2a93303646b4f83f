"""Looks at the System V objects and POSIX message queues of a session.

Semaphores, message queues and segments of shared memory belong to an IPC namespace, not
to a process, and outlive whoever made them. A session has such a namespace of its own
(a pod's belongs to its sandbox), so all that is in there is saved with it
(``system_v_images``). Nothing here changes any of it.

What cannot be saved is refused: messages of POSIX queues can only be read by taking
them out, and where the namespace is the machine's own, others' objects are in it, too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.libc import checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_CLONE_NEWIPC: Final = 0x08000000
#: Looking takes a millisecond; a thread that takes longer has been forgotten.
_SECONDS: Final = 10.0
# The same numbers on every architecture (<asm-generic/unistd.h>, <linux/mount.h>).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CONFIG_CREATE: Final = 6
_CLOEXEC: Final = 1

#: Of each kind; the kernel's own limit for segments, which few programs come near.
MOST_OBJECTS: Final = 4096
#: In all sets together.
MOST_SEMAPHORES: Final = 1 << 20
#: In all queues together.
MOST_MESSAGE_BYTES: Final = 64 << 20

#: How a mapping of a segment is called in /proc/PID/maps.
MAPPED: Final = "/SYSV"


class Part(NamedTuple):
    """A piece of a segment in a process's memory."""

    start: int
    end: int
    offset: int  #: in the segment


class Objects(NamedTuple):
    """System V objects and POSIX message queues of an IPC namespace."""

    tables: dict[str, list[dict[str, int]]]  #: ``sem``, ``msg``, ``shm``: /proc/sysvipc
    queues: list[str]  #: names of POSIX message queues
    is_shared: bool  #: whether the namespace is the machine's, or the agent's

    @property
    def segments(self) -> dict[int, int]:
        """Bytes of each segment by its id."""
        return {one["shmid"]: one["size"] for one in self.tables["shm"]}

    @property
    def any(self) -> bool:
        """Whether there is something to be saved."""
        return any(self.tables.values())

    def problems(self, uids: Collection[int]) -> Iterator[str]:
        """Say in words what keeps a session of these users from being saved."""
        if self.is_shared:
            everything = [one for table in self.tables.values() for one in table]
            if any({one["uid"], one["cuid"]} & {*uids} for one in everything):
                yield "System V objects in an IPC namespace that it shares with others"
            return  # whose other queues are, is not told
        for name in self.queues[:1]:
            yield f"the POSIX message queue /{name}"
        if any(len(table) > MOST_OBJECTS for table in self.tables.values()):
            yield f"more than {MOST_OBJECTS} System V objects"
        if sum(one["nsems"] for one in self.tables["sem"]) > MOST_SEMAPHORES:
            yield f"more than {MOST_SEMAPHORES} System V semaphores"
        if sum(one["cbytes"] for one in self.tables["msg"]) > MOST_MESSAGE_BYTES:
            yield f"more than {MOST_MESSAGE_BYTES >> 20} MiB in System V message queues"


def look(init_pid: int) -> Objects:
    """List the objects in the IPC namespace of a process.

    ``setns`` holds for one thread, so it is entered by a thread that ends at once.

    Raises:
        OSError: there is no such process, or its namespace may not be entered.
    """
    there = Path(f"/proc/{init_pid}/ns/ipc")
    namespace = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
    found: list[Objects | OSError] = []

    def work() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            checked(libc.setns(namespace, _CLONE_NEWIPC))
            tables = {kind: _table(kind) for kind in ("sem", "msg", "shm")}
            found.append(Objects(tables, _queues(libc), _is_shared(namespace)))
        except OSError as error:
            found.append(error)

    try:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_SECONDS)
    finally:
        os.close(namespace)
    result = found[0] if found else OSError(0, "no answer")
    if isinstance(result, OSError):
        raise result
    return result


def refuse(objects: Objects, uids: Collection[int]) -> None:
    """Judge a tree that stands, so that nothing is made any more.

    Raises:
        ReclaimError: it has what cannot be saved (``ipc_unsupported``).
    """
    for kind in objects.problems(uids):
        raise ReclaimError(Reason.IPC_UNSUPPORTED, kind=kind)


def attached(parts: Iterable[Part], size: int) -> dict[int, list[Part]]:
    """Addresses where a process has attached a segment, and its parts there. Pure.

    Args:
        parts: its mappings of that segment.
        size: of the segment.

    Raises:
        ValueError: a part has been unmapped: it cannot be attached again like that.
    """
    whole = -(-size // os.sysconf("SC_PAGESIZE")) * os.sysconf("SC_PAGESIZE")
    found: dict[int, list[Part]] = {}
    for one in sorted(parts):
        found.setdefault(one.start - one.offset, []).append(one)
    for base, pieces in found.items():
        end = base
        for one in pieces:
            if one.start != end:
                raise ValueError("a hole")
            end = one.end
        if end != base + whole:
            raise ValueError("a part")
    return found


def is_whole(mappings: Iterable[procfs.Mapping], segments: dict[int, int]) -> bool:
    """Whether all that is attached can be attached again."""
    parts: dict[int, list[Part]] = {}
    for one in mappings:
        if one.path.startswith(MAPPED):
            part = Part(one.start, one.end, one.offset)
            parts.setdefault(one.inode, []).append(part)
    try:
        for number, pieces in parts.items():
            attached(pieces, segments[number])
    except (KeyError, ValueError):
        return False
    return True


def _table(kind: str) -> list[dict[str, int]]:
    """A table of /proc/sysvipc: the reader's own namespace is shown."""
    head, *lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
    names = head.split()
    return [dict(zip(names, map(int, line.split()), strict=True)) for line in lines]


def _queues(libc: ctypes.CDLL) -> list[str]:
    """Names of the POSIX queues; /dev/mqueue need not be mounted for them."""
    try:
        context = checked(libc.syscall(_FSOPEN, b"mqueue", _CLOEXEC))
    except OSError:
        return []  # a kernel without them
    try:
        checked(libc.syscall(_FSCONFIG, context, _CONFIG_CREATE, None, None, 0))
        mount = checked(libc.syscall(_FSMOUNT, context, _CLOEXEC, 0))
    finally:
        os.close(context)
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mount)
    finally:
        os.close(mount)
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - by its descriptor
    finally:
        os.close(folder)


def _is_shared(namespace: int) -> bool:
    """Whether it is the machine's own, or that of the agent."""
    here = procfs.link(os.getpid(), f"fd/{namespace}")
    return here in {procfs.link(os.getpid(), "ns/ipc"), procfs.link(1, "ns/ipc")}
