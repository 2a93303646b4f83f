"""Waits for descriptors, inspects them, and copies those of other processes.

An agent with many sessions has thousands of descriptors open; select(2) takes none
above 1023, so :func:`readable` polls. :func:`copied` is pidfd_getfd(2), Linux 5.6: the
copy of a socket is the same socket, so an option set on it holds for the other process,
too. The caller needs the right to trace that process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import termios
from typing import TYPE_CHECKING, Final, TypeVar

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import HasFileno


T = TypeVar("T", bound="HasFileno")
_SIOCUNIXFILE: Final = 0x89E0  # <linux/un.h>
#: ``struct epoll_event``: events, number.
_EPOLL_EVENT: Final = struct.Struct("=IQ")
_EPOLL_ADD: Final = 1


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """A descriptor that is closed at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def readable(watched: Iterable[T], seconds: float) -> list[T]:
    """Those that can be read from, or have ended; empty when the time is up."""
    by_number = {one.fileno(): one for one in watched}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    found = poll.poll(max(0.0, seconds) * 1000)
    return [by_number[number] for number, _ in found]


def file_of_socket(number: int) -> int:
    """Open the file that a UNIX socket is bound to, by any name or none (O_PATH).

    Raises:
        OSError: it has none.
    """
    return fcntl.ioctl(number, _SIOCUNIXFILE, 0)


def unread_bytes(descriptor: int) -> int:
    """How many bytes wait to be read from a pipe, a socket or a terminal.

    Raises:
        OSError: such a file has no answer.
    """
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder, signed=True)


_SYS_PIDFD_GETFD: Final = 438  #: the same on all architectures


def copied(pidfd: int, descriptor: int) -> int:
    """A copy of the process's descriptor, which the caller closes.

    Raises:
        OSError: the process has ended, has no such descriptor, or may not be traced.
    """
    copy = libc.syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0)
    return checked(copy, "pidfd_getfd")


def copied_from(pid: int, descriptor: int) -> int:
    """The same by a pid, which may be another process's by now.

    Raises:
        OSError: as :func:`copied`.
    """
    with closing(os.pidfd_open(pid)) as process:
        return copied(process, descriptor)


def as_socket(descriptor: int) -> socket.socket:
    """Make a socket object, which closes the descriptor; so does a failure.

    Raises:
        OSError: it is not a socket.
    """
    try:
        try:
            return socket.socket(fileno=descriptor)
        except OSError:  # Python asks for its name, and some families have none
            return socket.socket(socket.AF_UNSPEC, fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def borrow(pidfd: int, descriptor: int) -> Iterator[socket.socket]:
    """A copy of the process's socket, closed at the end; raises as ``copied``."""
    with as_socket(copied(pidfd, descriptor)) as end:
        yield end


@contextlib.contextmanager
def borrow_from(pid: int, descriptor: int) -> Iterator[socket.socket]:
    """The same by a pid; raises as ``copied_from``."""
    with as_socket(copied_from(pid, descriptor)) as end:
        yield end


def watch_edges(epoll: select.epoll, descriptor: int, number: int) -> None:
    """Watch the open file behind a copy for new input, by a number below 2**31.

    The copy may be closed at once: epoll(7) watches the file for as long as any process
    has it open. So a program that ends really closes its sockets, and the next one
    finds its ports free. Edge-triggered: input is reported once when it comes, and
    again when more comes. Idempotent.

    Raises:
        OSError: it cannot be watched (a file on a disk).
    """
    # select.epoll itself tells of each by its descriptor, which will be another's.
    event = _EPOLL_EVENT.pack(select.EPOLLIN | select.EPOLLET, number)
    added = libc.epoll_ctl(epoll.fileno(), _EPOLL_ADD, descriptor, event)
    with contextlib.suppress(FileExistsError):
        checked(added, "epoll_ctl")
