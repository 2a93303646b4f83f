"""Keeps a server from getting new connections for a moment.

A page whose connection is cut connects again within milliseconds. A server that is
about to be frozen must not take that: Jupyter Server would give the page a second set
of ZeroMQ sockets with the identity of the first, and the kernel then listens to neither
(its ROUTER hands the identity over, and the first to be closed takes it away).

A socket filter that lets nothing pass makes a listener deaf: the peer's SYN is dropped,
and sent again after a second. It stays when the agent is killed in between, and
``freeze.thaw`` takes it off (:func:`hear_again`). No server that is known has a filter
of its own at a listener, which would be gone afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import borrow
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process

#: SO_ATTACH_FILTER and SO_DETACH_FILTER (socket(7)).
_FILTER: Final = 26
_NO_FILTER: Final = 27
#: ``struct sock_filter`` (``linux/filter.h``): accept no byte.
_DEAF: Final = struct.pack("=HBBI", 6, 0, 0, 0)


@contextlib.contextmanager
def deaf(init_pid: int, server: Process) -> Iterator[None]:
    """Inside the block no program can connect to that process by TCP.

    A listener that does not let itself be changed stays as it is.

    Raises:
        Refused: the session or the kernel's list of sockets is not there.
    """
    listening = _listening(init_pid, server)
    _change(server, listening, _make_deaf)
    try:
        yield
    finally:
        _change(server, listening, _let_hear)


def hear_again(init_pid: int, process: Process) -> None:
    """End what a :func:`deaf` has left that was never left itself; idempotent.

    Raises:
        Refused: the session or the kernel's list of sockets is not there.
    """
    _change(process, _listening(init_pid, process), _let_hear)


def _listening(init_pid: int, process: Process) -> list[int]:
    held = inet.tree_inodes([process.pid])
    return [
        held[one.inode][1]
        for one in inet.sockets_of(init_pid, held.keys())
        if one.state is TcpState.LISTEN and one.protocol == socket.IPPROTO_TCP
    ]


def _change(
    process: Process,
    descriptors: list[int],
    change: Callable[[socket.socket], None],
) -> None:
    with processes.held(process) as pidfd:
        if pidfd is None:
            return
        for descriptor in descriptors:
            with contextlib.suppress(OSError), borrow(pidfd, descriptor) as listener:
                change(listener)


def _make_deaf(listener: socket.socket) -> None:
    code = ctypes.create_string_buffer(_DEAF, len(_DEAF))
    program = struct.pack("@HP", 1, ctypes.addressof(code))  # struct sock_fprog
    listener.setsockopt(socket.SOL_SOCKET, _FILTER, program)


def _let_hear(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, _NO_FILTER, 0)  # ENOENT: it has none
