"""Leaves the memory of programs that stand anyway, as in a nap, out of a dump.

CRIU hands their pages over by reference (vmsplice(2)), and here they are dropped
unread. They are saved behind the dump instead, when the rest of the session goes on
again: a page has the contents that it had as long as its program has not been on a
processor.

That it has not run is known to the nanosecond (proc(5), schedstat). Memory that is
shared with other processes is written to images of its own, and is always saved at
once.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import BLOCK, PAGES
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE
from jupyterhub_gpu_reclaim.checkpoint.staging import hand_over
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.checkpoint.staging import StoreFile
    from jupyterhub_gpu_reclaim.linux.processes import Process

_PAGEMAP: Final = "pagemap-"


class StandingMemory:
    """The sinks of a dump without the memory of programs that stand."""

    def __init__(
        self, sinks: Callable[[str], Sink], programs: Iterable[Process]
    ) -> None:
        self._sinks = sinks
        self._standing = {one.ns_pid: one for one in programs}
        self._last = ""
        self._left_out: dict[int, tuple[str, _LeftOut]] = {}
        self._mark: dict[int, list[int]] = {}

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
        return self._sinks(name)

    def mark(self) -> None:
        """The dump has ended, and all of the tree stands.

        From here on no program whose memory was left out may run until
        :meth:`deliver` has ended.
        """
        self._mark = {
            pid: processes.times_stopped(self._standing[pid]) for pid in self._left_out
        }

    @property
    def logical_bytes(self) -> int:
        return sum(left_out.length for _, left_out in self._left_out.values())

    def deliver(
        self,
        begin: Callable[[str], AbstractContextManager[StoreFile]],
        prefix: str,
        kept: Mapping[str, bytes | bytearray],
        cancel: Cancel,
    ) -> None:
        """Save what was left out.

        ``begin`` begins a file of the checkpoint, complete at the block's end;
        ``prefix`` is that of CRIU's images there; ``kept`` are images of this dump, at
        least the pagemaps.

        Raises:
            OSError: memory of a program cannot be read: it has ended.
            ReclaimError: the store does not take it, it was cancelled, or a program has
                run meanwhile.
        """
        for pid, (name, left_out) in self._left_out.items():
            number, areas = images.read_pagemap(bytes(kept[f"{_PAGEMAP}{pid}.img"]))
            length = _length(areas)
            if (name, left_out.length) != (f"{PAGES}{number}.img", length):
                detail = f"{name} does not belong to process {pid}"
                raise ReclaimError(Reason.INTERNAL, detail=detail)
            process = self._standing[pid]
            with begin(prefix + name) as file:
                try:
                    hand_over(file, _pages(process.pid, areas), cancel)
                except OSError:
                    # What has gone on may have given memory back.
                    if processes.times_run(process):
                        self._check_stands(process)
                    raise
                self._check_stands(process)

    def _check_stands(self, process: Process) -> None:
        if processes.times_run(process) != self._mark[process.ns_pid]:
            why = f"{process.name} has gone on, which stood"
            raise RolledBack(Reason.CAPTURE_FAILED, why=why)


def _pages(pid: int, areas: list[Area]) -> Iterator[memoryview]:
    """Yield the present pages of a stopped process; each part is void with the next."""
    buffer = memoryview(bytearray(BLOCK))
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for area in areas:
            if not area.flags & images.PRESENT:
                continue
            end = area.address + area.pages * PAGE
            for at in range(area.address, end, BLOCK):
                part = buffer[: min(BLOCK, end - at)]
                if os.preadv(memory.fileno(), [part], at) != len(part):
                    raise ProcessLookupError(errno.ESRCH, "it has ended", pid)
                yield part


def _length(areas: list[Area]) -> int:
    return sum(area.pages * PAGE for area in areas if area.flags & images.PRESENT)


class _LeftOut:
    length = 0

    def write(self, data: memoryview, /) -> None:
        self.length += len(data)

    def take_pipe(self, pipe: int, /) -> int:
        os.set_blocking(pipe, True)
        with closing(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)) as nowhere:
            while count := os.splice(pipe, nowhere, BLOCK):
                self.length += count
        return self.length

    def cancel(self) -> None: ...

    def close(self) -> None: ...
