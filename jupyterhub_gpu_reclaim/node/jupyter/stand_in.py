"""Speaks for Jupyter kernels that come back napping, so that no culler ends them.

A culler inside the server compares the wall clock with the last message that it has had
from a kernel (``wake_up`` says more). A kernel that naps cannot send one, and whoever
connects to it wakes it. But its connections are there, stopped with it: what is written
into its end of them comes to the server as its own word. So each server's connection to
the kernel's output (iopub) gets one message, signed with the kernel's key, that says
nothing: an ``is_complete_reply``, which that channel does not know. Jupyter counts it
as use, its pages pass over it, and no state of a kernel is changed by it.

It is said while all stand still, and only where nothing is unread or unsent between the
two: a message within another one would break the connection. Where that is not so, or
the kernel's messages are not in plain, nobody can speak for it, and the caller has to
let it answer itself. A kernel that no server listens to needs nobody to.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import socket
import sys
import termios
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import borrow, unread_bytes
from jupyterhub_gpu_reclaim.node.jupyter.connection import (
    find_connection,
    may_be_kernel,
)
from jupyterhub_gpu_reclaim.node.jupyter.wake_up import signed_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.jupyter.connection import ConnectionFile

#: A kernel's topic does not matter: a server has subscribed to all.
_SAID: Final = "is_complete_reply"
#: More descriptors of a process are not looked at.
_MOST_DESCRIPTORS: Final = 4096
_PAUSE: Final = 0.002

_Address = tuple[str, int]


class Link(NamedTuple):
    """The connection over which a server hears a kernel."""

    kernel: Process
    kernel_fd: int
    server: Process
    server_fd: int


def speak_for(
    init_pid: int, server: Process | None, programs: Iterable[Process]
) -> list[Link] | None:
    """Say for each kernel among those programs that it was used just now.

    Args:
        init_pid: of the session, of which nothing runs.
        server: of the session; None: it has none.
        programs: that stay stopped.

    Returns:
        Where it was said; None: one of them cannot be spoken for.
    """
    if server is None:
        return []
    heard = dict(_connections(server))
    said: list[Link] = []
    for process in programs:
        if not may_be_kernel(process.pid):
            continue
        connection = find_connection(init_pid, process.pid)
        if connection is None or connection.curve_publickey:
            return None
        links = [
            Link(process, fd, server, heard[there, here])
            for (here, there), fd in _connections(process)
            if here[1] == connection.iopub_port and (there, here) in heard
        ]
        if not links or not all(_say(link, connection) for link in links):
            return None
        said += links
    return said


def is_heard(links: Sequence[Link], seconds: float) -> bool:
    """Wait until the server has taken it in; return whether it has."""
    deadline = time.monotonic() + seconds
    while any(_unread(link) for link in links):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)  # nothing tells when somebody else has read
    return True


def _connections(process: Process) -> Iterator[tuple[tuple[_Address, _Address], int]]:
    """Both addresses of each TCP connection of a process, and its descriptor."""
    with processes.held(process) as pidfd:
        if pidfd is None:
            return
        there = itertools.islice(procfs.descriptors(process.pid), _MOST_DESCRIPTORS)
        for fd, target in there:
            if not target.startswith("socket:["):
                continue
            with contextlib.suppress(OSError), borrow(pidfd, fd) as end:
                inet = end.family in {socket.AF_INET, socket.AF_INET6}
                if inet and end.type == socket.SOCK_STREAM:
                    yield (end.getsockname()[:2], end.getpeername()[:2]), fd


def _say(link: Link, connection: ConnectionFile) -> bool:
    """Whether it was said: not where that could be in the middle of a message."""
    text = signed_message(connection, _SAID, {"status": "unknown"})
    with contextlib.suppress(OSError), processes.held(link.kernel) as pidfd:
        if pidfd is None or _unread(link):
            return False
        with borrow(pidfd, link.kernel_fd) as end:
            if _unsent(end.fileno()):
                return False
            return end.send(text, socket.MSG_DONTWAIT) == len(text)
    return False


def _unsent(descriptor: int) -> int:
    """How many bytes of a connection the other side has not got yet."""
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder, signed=True)


def _unread(link: Link) -> int:
    """How many bytes the server has got and not taken in; none where it has ended."""
    with contextlib.suppress(OSError), processes.held(link.server) as pidfd:
        if pidfd is not None:
            with borrow(pidfd, link.server_fd) as end:
                return unread_bytes(end.fileno())
    return 0
