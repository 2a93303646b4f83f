"""Datagrams that wait in UNIX sockets: read at a capture, sent again after a restore.

CRIU saves such a queue, but without the names of the senders, and only up to the first
empty message; and a socket with a name in the file system is not CRIU's to restore
(``kinds.unix_names``). So the queue is read here, and sent again once all sockets are
there: by the socket that had the sender's name, where there is one.

A message that carries open files cannot be given back by us. CRIU can for its own
sockets, whose queue is left to it then.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import closing, file_of_socket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PEEK_OFF: Final = 42
_SNDBUFFORCE, _BUF_LOCK = 32, 72
#: More than a message can have but by force, with what comes with it.
_ROOM, _CONTROL = 1 << 18, 4096
#: The largest buffer that the kernel takes; it doubles what it is told.
_MOST: Final = (1 << 30) - 1


class Datagram(NamedTuple):
    """A message, and the name of its sender; empty where that had none."""

    data: bytes
    sender: bytes


def read(end: socket.socket) -> list[Datagram] | None:
    """Read what waits, and leave it; None where more than bytes does, such as files.

    For a socket whose programs are all stopped. Linux shows an empty message once to
    those that only look: a second save of a queue is without it.
    """
    before = end.getsockopt(socket.SOL_SOCKET, _PEEK_OFF)
    found: list[Datagram] = []
    end.setsockopt(socket.SOL_SOCKET, _PEEK_OFF, 0)
    try:
        while True:
            flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
            try:
                data, control, told, sender = end.recvmsg(_ROOM, _CONTROL, flags)
            except BlockingIOError:
                return found
            except ConnectionError:
                continue  # that its peer has ended is told once, before the messages
            if control or told & socket.MSG_TRUNC:
                _close(control)
                return None
            found.append(Datagram(data, os.fsencode(sender or b"")))
    finally:
        end.setsockopt(socket.SOL_SOCKET, _PEEK_OFF, before)


def carries_files(end: socket.socket) -> bool:
    """Whether the next message has more with it than bytes; takes nothing."""
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    try:
        _, control, _, _ = end.recvmsg(1, _CONTROL, flags)
    except OSError:
        return False
    _close(control)
    return bool(control)


def send(
    to: socket.socket, queue: Iterable[Datagram], senders: Iterable[socket.socket]
) -> None:
    """Send those messages to that socket.

    Raises:
        RestoreFailed: the kernel does not take one.
    """
    by_name = {name_of(one): one for one in senders}
    *_, fallback = by_name.values()
    with _address(to) as address:
        for message in queue:
            by = by_name.get(message.sender, fallback)
            with enlarged(by):
                _send(by, message.data, address)


def name_of(end: socket.socket) -> bytes:
    name = end.getsockname()
    return os.fsencode(name or b"")


@contextlib.contextmanager
def _address(to: socket.socket) -> Iterator[bytes | str]:
    """Address to send to: by the file, which may have lost its name; or ``""``."""
    name = name_of(to)
    if not name or name.startswith(b"\0"):
        yield name
        return
    try:
        descriptor = file_of_socket(to.fileno())
    except OSError as error:
        raise _failed(OSError(error.errno, "its file is gone")) from None
    with closing(descriptor):
        yield f"/proc/self/fd/{descriptor}"


def _send(by: socket.socket, data: bytes, address: bytes | str) -> None:
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    try:
        if address:
            by.sendto(data, flags, address)
        else:
            by.send(data, flags)
    except OSError as error:
        raise _failed(error) from error


@contextlib.contextmanager
def enlarged(end: socket.socket) -> Iterator[None]:
    """Inside the block, what is sent by it need not wait for room."""
    size = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    lock = end.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
    end.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _MOST)
    try:
        yield
    finally:
        end.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, size // 2)
        end.setsockopt(socket.SOL_SOCKET, _BUF_LOCK, lock)


def _close(control: list[tuple[int, int, bytes]]) -> None:
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            for number in numbers:
                os.close(number)


def _failed(error: OSError) -> RestoreFailed:
    why = "a message that waited in a UNIX socket could not be sent again"
    return RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=str(error))
