"""Leaves out of a dump what is saved already: memory of processes that stood since.

A process that was stopped when it was saved, and has not been on a processor since, has
the memory that it had: its pages are taken over from that checkpoint, and are neither
read nor compared. CRIU hands them over all the same, by reference (vmsplice(2)), and
here they are dropped unread. Memory that is shared with other processes is written to
images of its own, and is always saved.

That it has not run is known to the nanosecond (proc(5), schedstat): to be continued and
stopped again takes time, and so does CRIU's own work in a process, so that a dump which
was given up leaves nothing to build upon. Which pages there are is compared as well,
area by area; where they differ after all, the pages are read from the process, which
still stands.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import BLOCK, PAGES
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_PAGEMAP: Final = "pagemap-"
#: splice(2)
_SPLICE_MOVE, _SPLICE_NONBLOCK = 1, 2


class Carrying(Protocol):
    """A checkpoint that is being written (``store.write.writer.CheckpointWriter``)."""

    def file(self, name: str) -> Sink:
        """Begin a file."""

    def carry(self, name: str, former: str) -> int:
        """Take a file over from the former checkpoint; return its length."""


class StandingMemory:
    """The sinks of a dump of which some processes are saved already.

    Args:
        target: where everything goes.
        prefix: of the names of CRIU's images there.
        ran: how long each thread of those processes had run when they were saved, by
            their pids in the session (:func:`processes.times_run`).
        pagemaps: their pagemap images in the former checkpoint, likewise.
    """

    def __init__(
        self,
        target: Carrying,
        prefix: str,
        ran: Mapping[int, list[int]],
        pagemaps: Mapping[int, bytes],
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._ran = ran
        self._former = {pid: images.read_pagemap(pagemaps[pid]) for pid in pagemaps}
        self._standing: dict[int, Process] = {}
        self._last = ""
        self._left_out: dict[int, tuple[str, _LeftOut]] = {}

    def look(self, tree: Snapshot) -> None:
        """See who has not run; the tree stands, and nothing was done to it yet."""
        self._standing = {
            one.ns_pid: one
            for one in tree.processes
            if one.ns_pid in self._former
            and self._ran.get(one.ns_pid)
            and processes.times_run(one) == self._ran[one.ns_pid]
        }

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``: a pagemap comes right before its pages."""
        if name.startswith(_PAGEMAP):
            self._last = name.removeprefix(_PAGEMAP).removesuffix(".img")
        elif name.startswith(PAGES):
            last, self._last = self._last, ""
            if last.isdecimal() and int(last) in self._standing:
                left_out = _LeftOut()
                self._left_out[int(last)] = name, left_out
                return left_out
        return self._target.file(self._prefix + name)

    def carry(self, kept: Mapping[str, bytes | bytearray]) -> int:
        """Take over what was left out; the tree still stands.

        Args:
            kept: the images of this dump, at least the pagemaps.

        Returns:
            How many bytes were taken over.

        Raises:
            OSError: memory of a process cannot be read.
            ReclaimError: the store does not take it.
        """
        carried = 0
        for pid, (name, left_out) in self._left_out.items():
            number, areas = images.read_pagemap(bytes(kept[f"{_PAGEMAP}{pid}.img"]))
            if name != f"{PAGES}{number}.img":
                detail = f"{name} does not belong to process {pid}"
                raise ReclaimError(Reason.INTERNAL, detail=detail)
            former, before = self._former[pid]
            if areas == before and left_out.length == _length(areas):
                carried += self._target.carry(
                    self._prefix + name, f"{self._prefix}{PAGES}{former}.img"
                )
            else:
                self._read(name, self._standing[pid].pid, areas)
        return carried

    def _read(self, name: str, pid: int, areas: list[Area]) -> None:
        """Save its pages after all."""
        sink = self._target.file(self._prefix + name)
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for area in areas:
                if not area.flags & images.PRESENT:
                    continue
                end = area.address + area.pages * PAGE
                for at in range(area.address, end, BLOCK):
                    length = min(BLOCK, end - at)
                    data = os.pread(memory.fileno(), length, at)
                    sink.write(memoryview(data.ljust(length, b"\0")))
        sink.close()


def _length(areas: list[Area]) -> int:
    """Bytes of the pages image of such a pagemap."""
    return sum(area.pages * PAGE for area in areas if area.flags & images.PRESENT)


class _LeftOut:
    """A ``PipeSink`` that drops what comes, and counts it."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.length = 0

    def write(self, data: memoryview, /) -> None:
        self.length += len(data)

    def take_pipe(self, pipe: int, /) -> int:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while True:
                if any(ready == self._wake for ready, _ in poll.poll()):
                    raise ReclaimError(Reason.CANCELLED)
                flags = _SPLICE_MOVE | _SPLICE_NONBLOCK
                try:
                    count = os.splice(pipe, nowhere, BLOCK, flags=flags)
                except BlockingIOError:
                    continue
                if not count:
                    return self.length
                self.length += count
        finally:
            os.close(nowhere)

    def cancel(self) -> None:
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Nothing is written."""

    def __del__(self) -> None:
        os.close(self._wake)
