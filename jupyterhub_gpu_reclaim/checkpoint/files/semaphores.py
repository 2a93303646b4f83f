"""Keeps the eventfds that CRIU makes otherwise: semaphores, and large counters.

CRIU (4.2: ``eventfd.c``) does not save EFD_SEMAPHORE, and it can be given only to a new
eventfd. So an image of our own tells which descriptors are semaphores. Its own image
has the whole counter of each eventfd, but eventfd(2) takes only the low 32 bits. At a
return both are made here and handed over like files (``handover``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

IMAGE: Final = "semaphores.img"
_TARGET: Final = "anon_inode:[eventfd]"
_MOST_AT_ONCE: Final = (1 << 32) - 1
#: The kernel can count one further, which no program can write, and would wait for.
_MOST: Final = (1 << 64) - 2


class Counter(NamedTuple):
    """Flags and value from which an eventfd is made again."""

    flags: int
    value: int
    is_semaphore: bool = False

    @property
    def is_large(self) -> bool:
        """Whether CRIU would give back less."""
        return self.value > _MOST_AT_ONCE

    def make(self) -> int:
        """Make the eventfd and return its descriptor."""
        flags = self.flags & os.O_NONBLOCK | os.EFD_CLOEXEC
        if self.is_semaphore:
            flags |= os.EFD_SEMAPHORE
        made = os.eventfd(min(self.value, _MOST_AT_ONCE), flags)
        if self.is_large:
            os.eventfd_write(made, min(self.value, _MOST) - _MOST_AT_ONCE)
        return made


def find(tree: Snapshot) -> bytes:
    """The image: which descriptors of a stopped tree are semaphores; may be empty."""
    lines = [
        f"{process.ns_pid} {one.fd}\n"
        for process in tree.processes
        for one in procfs.descriptors(process.pid)
        if one.target == _TARGET
        and procfs.fdinfo(process.pid, one.fd).get("eventfd-semaphore") == "1"
    ]
    return "".join(lines).encode()


def read(image: bytes | None) -> Iterator[tuple[int, int]]:
    """(Pid in the session, number of the descriptor) of each.

    Raises:
        RestoreFailed: the image is off (``checkpoint_damaged``).
    """
    for line in (image or b"").splitlines():
        pid, _, number = line.partition(b" ")
        if not pid.isdigit() or not number.isdigit():
            raise images.damaged("a semaphore is not told rightly")
        yield int(pid), int(number)
