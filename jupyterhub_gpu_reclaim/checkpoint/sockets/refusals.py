"""Finds in advance what sockets hold that can neither be saved nor be left out.

CRIU fails on most of it, in words of its own and when the session is frozen already;
what protects (keys, an eBPF program) would come back without. Each socket is looked at
through a copy of its descriptor; nothing is taken from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.sockets import datagrams, options
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root
from jupyterhub_gpu_reclaim.linux.descriptors import (
    borrow_from,
    file_of_socket,
    unread_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.sock_diag import UnixSocket

#: SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD: what comes with a message then is not saved.
_PASSES: Final = (16, 34, 76)
_ACCEPTS, _FILTER = 30, 26  # SO_ACCEPTCONN, SO_GET_FILTER
_UDP_CORK, _TCP_ULP = 1, 31
#: SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, and room for more groups than there are.
_NETLINK, _MEMBERSHIPS, _GROUP_BYTES = 270, 9, 64
_SIOCOUTQ: Final = 0x5411
_MOST_INSTRUCTIONS: Final = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def unsavable(end: socket.socket, root: int) -> Iterator[str]:
    """Say in words what a socket holds that cannot be saved.

    Args:
        end: the socket.
        root: of the session, where names are looked up.
    """
    if _has_program(end):
        yield "a socket with an eBPF program"
    family, kind, protocol = options.kind_of(end)
    if family == socket.AF_UNIX and (words := _misnamed(end, kind, root)):
        yield words
    if family == socket.AF_NETLINK:
        groups = end.getsockopt(_NETLINK, _MEMBERSHIPS, _GROUP_BYTES)
        if any(groups[4:]):
            yield "a netlink socket that listens to a group above the 32nd"
        elif any(groups) and not end.getsockname()[0]:
            yield "a netlink socket that listens to a group and is not bound"
    if family in {socket.AF_INET, socket.AF_INET6}:
        is_tcp = kind == socket.SOCK_STREAM and protocol == socket.IPPROTO_TCP
        if is_tcp and _option(end, socket.IPPROTO_TCP, _TCP_ULP):
            yield "a TCP connection that the kernel encrypts"


def waiting(end: socket.socket) -> Iterator[str]:
    """Say in words what waits in a socket and cannot be saved until it is taken."""
    family, kind, protocol = options.kind_of(end)
    if protocol == socket.IPPROTO_TCP and _is_ready(end, select.POLLPRI):
        yield "a TCP connection with an urgent byte (MSG_OOB)"
    if family == socket.AF_NETLINK and _is_ready(end, select.POLLIN):
        yield "a netlink socket"
    if protocol == socket.IPPROTO_UDP and _option(end, protocol, _UDP_CORK):
        yield "a UDP socket that holds data back (UDP_CORK)"
    if family != socket.AF_UNIX or end.getsockopt(socket.SOL_SOCKET, _ACCEPTS):
        return
    if not unread_bytes(end.fileno()):
        return
    if any(_option(end, socket.SOL_SOCKET, one) for one in _PASSES):
        yield "a UNIX socket whose messages carry credentials"
    has_path = datagrams.name_of(end)[:1] not in {b"", b"\0"}
    if kind == socket.SOCK_DGRAM and has_path and datagrams.carries_files(end):
        yield "a UNIX socket whose messages carry open files"


def waiting_at(
    listener: UnixSocket, clients: Iterable[tuple[int, int]]
) -> Iterator[str]:
    """Say in words what UNIX connections hold that were not accepted yet.

    Args:
        listener: in the tree.
        clients: those of them that are in the tree, as (pid, descriptor).
    """
    if 0 in listener.waiting:
        yield f"the UNIX socket {listener.name}, from a program that has ended"
    if any(_has_sent(pid, fd) for pid, fd in clients):
        yield f"the UNIX socket {listener.name}, on a connection to be accepted"


def _has_sent(pid: int, fd: int) -> bool:
    with contextlib.suppress(OSError), borrow_from(pid, fd) as end:
        answer = fcntl.ioctl(end.fileno(), _SIOCOUTQ, bytes(4))
        return any(answer)
    return False


def of_process(
    pid: int, numbers: Iterable[int], root: int
) -> tuple[set[str], set[str]]:
    """Contents of a process's sockets: :func:`unsavable`, and :func:`waiting`."""
    never: set[str] = set()
    later: set[str] = set()
    for fd in numbers:
        with contextlib.suppress(OSError), borrow_from(pid, fd) as end:
            never.update(unsavable(end, root))
            later.update(waiting(end))
    return never, later


def _misnamed(end: socket.socket, kind: int, root: int) -> str:
    """What is wrong with the name of a UNIX socket, in words; empty for nothing.

    It is made again by the name that it was given first, so its file would be another
    one than that where others look for it. Nothing is wrong where that is deleted.
    """
    name = datagrams.name_of(end)
    if name[:1] in {b"", b"\0"}:
        return ""
    try:
        file = file_of_socket(end.fileno())
    except OSError:
        return ""
    try:
        links = os.fstat(file).st_nlink
        found = os.readlink(f"/proc/self/fd/{file}".encode())  # noqa: PTH115 - any bytes
        leads = not name.startswith(b"/") or _leads_to(file, name, root)
    finally:
        os.close(file)
    if links == 0:
        return ""
    shown = name.decode("utf-8", "backslashreplace")
    # Nobody looks for another one by its name.
    if end.getsockopt(socket.SOL_SOCKET, _ACCEPTS) or kind == socket.SOCK_DGRAM:
        if links > 1 or found.rpartition(b"/")[2] != name.rpartition(b"/")[2]:
            return f"a UNIX socket whose file was renamed or linked ({shown})"
        if not leads:
            return f"a UNIX socket whose name does not lead to its file ({shown})"
    # CRIU takes the name off the file's path, to have the folder that it begins at.
    if not name.startswith(b"/") and not found.endswith(b"/" + _plain(name)):
        return f"a UNIX socket whose relative name is not the end of its path ({shown})"
    return ""


def _plain(name: bytes) -> bytes:
    """A relative name without ``./`` in front."""
    while name.startswith(b"./"):
        name = name[2:].lstrip(b"/")
    return name


def _leads_to(file: int, name: bytes, root: int) -> bool:
    """Whether a name leads to that file, as a return will look; or cannot be judged."""
    try:
        there = open_in_root(root, name, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        return error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
    try:
        return os.path.sameopenfile(there, file)
    finally:
        os.close(there)


def _option(end: socket.socket, level: int, name: int) -> bool:
    """Whether it is there, and not zero."""
    with contextlib.suppress(OSError):
        return any(end.getsockopt(level, name, 16))
    return False


def _has_program(end: socket.socket) -> bool:
    """Whether it has a filter that cannot be read: one that is no classic BPF."""
    buffer = ctypes.create_string_buffer(8 * _MOST_INSTRUCTIONS)
    room = ctypes.c_uint(_MOST_INSTRUCTIONS)  # the kernel counts instructions
    number, length = end.fileno(), ctypes.byref(room)
    done = _libc.getsockopt(number, socket.SOL_SOCKET, _FILTER, buffer, length)
    return bool(done and ctypes.get_errno() == errno.EACCES)


def _is_ready(end: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(end, event)
    return any(events & event for _, events in poll.poll(0))
