"""Watches descriptors of other processes for new input, without holding them.

A copy of a descriptor (``descriptors.copied``) is registered and may be closed at once:
epoll(7) watches the open file behind it, for as long as any process has that open. So a
program that ends really closes its sockets, and the next one finds its ports free.
Edge-triggered: input is reported once when it comes, and again when more comes.
"""

from __future__ import annotations

import contextlib
import select
import struct
from typing import Final

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

_ADD: Final = 1
_EVENTS: Final = select.EPOLLIN | select.EPOLLET


#: ``struct epoll_event``: events, number.
_EVENT: Final = struct.Struct("=IQ")


class EdgeSet:
    """Open files by numbers of the caller's choice; closed by :meth:`close`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Readable while :meth:`take` would return something."""
        return self._epoll.fileno()

    def add(self, descriptor: int, number: int) -> None:
        """Watch the open file behind a descriptor of ours, by a number below 2**31.

        Idempotent. It may be closed afterwards, if another process has it open.

        Raises:
            OSError: it cannot be watched (a file on a disk).
        """
        # select.epoll tells of each by its descriptor, which will be another's.
        event = _EVENT.pack(_EVENTS, number)
        added = libc.epoll_ctl(self.fileno(), _ADD, descriptor, event)
        with contextlib.suppress(FileExistsError):
            checked(added, "epoll_ctl")

    def take(self, most: int) -> list[int]:
        """The numbers of those with new input, at most so many; never waits."""
        return [number for number, _ in self._epoll.poll(0, most)]

    def close(self) -> None:
        self._epoll.close()
