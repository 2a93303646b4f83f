"""Finds the inputs of a stopped program, and how much of them is unread.

Only data from others counts: connections, listeners, the ends of pipes and the terminal
that the program reads from. A program's talk with itself (both ends of a pipe or of a
pair of sockets) is left out, and so are timers, watched folders and kernel events.

A file system of its user's own may block any access to a file of it. So nothing is
opened by a path, no file's status is read, and a copy is used only once its own name in
/proc is checked. One case is left: a program that shares its descriptors with another
may change one in that very moment, and the copy's close may wait. So callers do all of
this in threads, with a limit of time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import as_socket, copied, unread_bytes
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.node.jupyter.connection import find_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.jupyter.connection import ConnectionFile

#: Pipes, sockets and terminals of all programs of a session together, each counted once
#: however often it was duplicated; a kernel has some forty.
MOST_DESCRIPTORS: Final = 4096
#: Descriptors of one program that are looked through for them.
_MOST_OPEN: Final = 1 << 18
#: No more of a channel is looked at. It is less than the kernel takes in for a program
#: that does not read: behind a queue that is full, what wakes could not arrive.
PEEK_BYTES: Final = 32 << 10
#: Unread by nobody: the other end of a pipe was closed.
ENDED: Final = -1

_UCRED: Final = struct.Struct("3i")
_PTMX: Final = ("/dev/ptmx", "/dev/pts/ptmx")
_READ_FROM: Final = ("pipe:[", "socket:[", "/dev/pts/")


class TooManyError(Exception):
    """The programs have more descriptors open than are looked at."""


class InputKind(StrEnum):
    """What of it may wake a program, in a few words for the log."""

    CHANNEL = "a message to a kernel"
    LISTENER = "a new connection"
    DATA = "data on a connection"
    DATAGRAM = "a datagram"
    PIPE = "data in a pipe"
    TERMINAL = "keys in its terminal"


#: Of datagrams the kernel tells the size of the first one, of a listener nothing.
_UNCOUNTED: Final = frozenset({InputKind.LISTENER, InputKind.DATAGRAM})


@dataclass(frozen=True, slots=True)
class Input:
    process: Process
    fd: int
    target: str  #: what its link in /proc/<pid>/fd reads
    kind: InputKind
    mount: int = 0  #: of a terminal: which mount it is opened on

    @property
    def name(self) -> str:
        return f"{self.process.ns_pid}/{self.fd}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """A copy of the descriptor inside the block; None: it is another now."""
        with processes.held(self.process) as pidfd, contextlib.ExitStack() as stack:
            copy = None
            if pidfd is not None:
                with contextlib.suppress(OSError):
                    copy = copied(pidfd, self.fd)
                    stack.callback(os.close, copy)
            yield None if copy is None or not self._is(copy) else copy

    def _is(self, copy: int) -> bool:
        if self.kind is InputKind.TERMINAL:
            return _mount_of(os.getpid(), copy) == self.mount
        return procfs.link(os.getpid(), f"fd/{copy}") == self.target


def find_inputs(init_pid: int, programs: Iterable[Process]) -> list[Input]:
    """The inputs of programs, by their descriptors; TooManyError: too many of them."""
    found: list[Input] = []
    left = MOST_DESCRIPTORS
    for process in programs:
        descriptors, written = _descriptors(process.pid, left)
        left -= len(descriptors)
        found += _inputs_of(init_pid, process, descriptors, written)
    return found


def unread(there: Input, copy: int) -> int:
    """Bytes that have come and were not read; of a listener with requests 1."""
    # 0 also at the end of a connection; ``ENDED`` at the end of a pipe.
    poll = select.poll()
    poll.register(copy, select.POLLIN)
    ((_, events),) = poll.poll(0) or [(copy, 0)]
    if there.kind is InputKind.LISTENER:
        return int(bool(events & select.POLLIN))
    count = 0
    if events & select.POLLIN:
        with contextlib.suppress(OSError):
            count = unread_bytes(copy)
    if there.kind is InputKind.PIPE and not count and events & select.POLLHUP:
        return ENDED
    return count


def all_unread(inputs: Iterable[Input]) -> dict[str, int]:
    """Amount unread of each input, by its name; those without any are left out."""
    # So are those whose number would not show that more has come.
    found = {}
    for one in inputs:
        if one.kind in _UNCOUNTED:
            continue
        with one.opened() as copy:
            if copy is not None and (count := unread(one, copy)):
                found[one.name] = count
    return found


class Unread:
    """Unread input of programs that run now; TooManyError: they have too many."""

    def __init__(self, find: Callable[[], list[Input]]) -> None:
        self._find = find
        self._inputs = find()
        self._before = all_unread(self._inputs)
        self._held: set[tuple[str, str]] = set()

    def standing(self) -> dict[str, int]:
        """Unread input that has not changed; everything since was to be read."""
        # The programs are held, so that they open nothing any more.
        # With more than are looked at now, it is those of before.
        with contextlib.suppress(TooManyError):
            self._inputs = self._find()
        self._held = {(one.name, one.target) for one in self._inputs}
        now = all_unread(self._inputs)
        return {
            name: count
            for name, count in now.items()
            if self._before.get(name) == count
        }

    def left_by_driver(self) -> dict[str, int]:
        """Unread amounts of inputs that the programs did not have when held."""
        # The driver's own thread has closed one end of a pipe of its own in them, and
        # is stopped with them before it closes the other.
        with contextlib.suppress(TooManyError):
            self._inputs = self._find()
        return all_unread(
            one for one in self._inputs if (one.name, one.target) not in self._held
        )


def peek(copy: int) -> bytes:
    """The unread bytes of a connection, which stay there; at most ``PEEK_BYTES``."""
    with as_socket(os.dup(copy)) as end, contextlib.suppress(OSError):
        return end.recv(PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return b""


def _descriptors(pid: int, most: int) -> tuple[list[procfs.Descriptor], set[str]]:
    """A process's inputs, each by its first descriptor, and its pipes for writing."""
    found: dict[str, procfs.Descriptor] = {}
    written: set[str] = set()
    for number, one in enumerate(procfs.descriptors(pid)):
        if one.target.startswith(_READ_FROM):
            found.setdefault(one.target, one)
        if one.target.startswith("pipe:[") and _is_for_writing(pid, one.fd):
            written.add(one.target)
        if len(found) > most or number >= _MOST_OPEN:
            raise TooManyError
    return sorted(found.values()), written


def _is_for_writing(pid: int, fd: int) -> bool:
    """Whether a descriptor can be written to, by its link's own mode (proc(5))."""
    try:
        link = procfs.PROC / str(pid) / "fd" / str(fd)
        return bool(link.lstat().st_mode & stat.S_IWUSR)
    except OSError:
        return False  # closed meanwhile


def _inputs_of(
    init_pid: int,
    process: Process,
    descriptors: list[procfs.Descriptor],
    written: Collection[str],
) -> Iterator[Input]:
    connection = find_connection(init_pid, process.pid)
    terminals = {m.id for m in read_mounts(process.pid) if m.kind == "devpts"}
    for fd, target in descriptors:
        kind, mount = None, 0
        if target.startswith("pipe:[") and target not in written:
            kind = InputKind.PIPE
        elif target.startswith("/dev/pts/") and target not in _PTMX:
            # A file of its user's may stand there: the mount tells.
            mount = _mount_of(process.pid, fd)
            kind = InputKind.TERMINAL if mount in terminals else None
        elif target.startswith("socket:["):
            with Input(process, fd, target, InputKind.DATA).opened() as copy:
                if copy is not None:
                    kind = _socket_kind(copy, process.pid, connection)
        if kind is not None:
            yield Input(process, fd, target, kind, mount)


def _mount_of(pid: int, fd: int) -> int:
    text = procfs.fdinfo(pid, fd).get("mnt_id", "")
    return int(text) if text.isdecimal() else 0


def _socket_kind(
    copy: int, pid: int, connection: ConnectionFile | None
) -> InputKind | None:
    with as_socket(os.dup(copy)) as end:
        inet = end.family in {socket.AF_INET, socket.AF_INET6}
        if not inet and end.family != socket.AF_UNIX:
            return None
        listens = end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if inet and connection is not None:
            port = end.getsockname()[1]
            if port in {connection.hb_port, connection.iopub_port}:
                return None  # asked whether it lives, and who listens: by no person
            talked = {
                connection.shell_port,
                connection.control_port,
                connection.stdin_port,
            }
            if port in talked and not listens:
                return InputKind.CHANNEL
        if listens:
            return InputKind.LISTENER
        if not inet and _peer(end) == pid:
            return None
        return InputKind.DATAGRAM if end.type == socket.SOCK_DGRAM else InputKind.DATA


def _peer(end: socket.socket) -> int:
    """The host pid of a UNIX socket's other end; 0 if there is none."""
    try:
        raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return 0
    return int(_UCRED.unpack(raw)[0])
