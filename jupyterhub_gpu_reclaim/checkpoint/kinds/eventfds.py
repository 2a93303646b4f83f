"""Eventfds that CRIU would make otherwise: semaphores, and large counters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common import codec

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return

#: Which descriptors are semaphores; CRIU has no image of that name.
IMAGE: Final = "semaphores.json"
_TARGET: Final = "anon_inode:[eventfd]"
_MOST_AT_ONCE: Final = (1 << 32) - 1
#: The kernel can count one further, which no program can write, and would wait for.
_MOST: Final = (1 << 64) - 2


class Eventfds(Kind):
    """Eventfds that are semaphores, or count to 2³² and further.

    They are made here and handed over, since CRIU (4.2: ``eventfd.c``) loses part. It
    does not save EFD_SEMAPHORE, which only a new eventfd can be given, and eventfd(2)
    takes no more than the low 32 bits of a counter.
    """

    def save(self, dump: Dump) -> None:
        found = [
            (one.process.ns_pid, each.fd)
            for one in dump.programs
            for each in one.descriptors
            if each.target == _TARGET
            and one.facts(each.fd).get("eventfd-semaphore") == "1"
        ]
        dump.images.replace(IMAGE, codec.encode(found))

    def rewrite(self, back: Return) -> None:
        semaphores = set()
        for each in back.images.decoded(IMAGE, list[tuple[int, int]]):
            one = back.saved.descriptors.get(each, (0, 0))
            if one[0] != images.TYPE_EVENTFD:
                raise images.damaged("a semaphore is something else")
            semaphores.add(one[1])
        for number, entry in back.saved.entries.items():
            is_large = entry.efd.counter > _MOST_AT_ONCE
            if entry.type == images.TYPE_EVENTFD and (is_large or number in semaphores):
                extra = os.EFD_SEMAPHORE if number in semaphores else 0
                flags = entry.efd.flags & os.O_NONBLOCK | os.EFD_CLOEXEC | extra
                back.hand_over(number, _made(entry.efd.counter, flags))


def _made(value: int, flags: int) -> int:
    made = os.eventfd(min(value, _MOST_AT_ONCE), flags)
    if value > _MOST_AT_ONCE:
        os.eventfd_write(made, min(value, _MOST) - _MOST_AT_ONCE)
    return made
