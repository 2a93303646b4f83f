"""Reads the memory of programs behind their dump, while they stand.

CRIU hands their pages over by reference (vmsplice(2)), and here they are dropped
unread: all else that it saves is complete earlier, and the return can be tried while
memory is read. It is read from the programs themselves, by as many readers as there
are processors; a pipe has one. A page has the contents that it had as long as its
program has not been on a processor, and that is known to the nanosecond (proc(5),
schedstat).

Memory that is shared with other processes is written to images of its own, and is
always saved by CRIU. Of large programs most is read already while CRIU is at work
(``memory.ahead``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import numpy as np

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import BLOCK, PAGES
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import present
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.memory.ahead import Piece, ReadAhead, Taken
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_PAGEMAP: Final = "pagemap-"


class MemoryFile(Protocol):
    """A file of a checkpoint that is being written."""

    def take_memory(self, memory: ProcessMemory, /) -> None:
        """Take all of it as the whole file."""

    def cancel(self) -> None:
        """Make ``take_memory`` raise soon, also a part's; from any thread."""


class ComposedFile(MemoryFile, Protocol):
    def compose(self, parts: Sequence[Taken], pieces: Sequence[Piece], /) -> None:
        """Put the whole file together from parts of the same checkpoint."""


class DroppedPages:
    """The pages of one process; a ``PipeSink`` of ``criu.stream``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.length = 0

    def take_pipe(self, pipe: int, /) -> None:
        os.set_blocking(pipe, True)
        with closing(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)) as nowhere:
            while count := os.splice(pipe, nowhere, BLOCK):
                self.length += count


class PageSinks:
    """Tells the pages of processes from other images, by the order of a dump."""

    def __init__(self, ahead: ReadAhead | None) -> None:
        self._ahead = ahead
        self._last = ""
        #: By the process's own pid in the session.
        self.dropped: dict[int, DroppedPages] = {}

    def __call__(self, name: str) -> DroppedPages | None:
        """See ``CaptureServer``: a pagemap comes right before its pages."""
        last, self._last = self._last, ""
        if name.startswith(_PAGEMAP):
            self._last = name.removeprefix(_PAGEMAP).removesuffix(".img")
            if self._ahead is not None and self._last.isdecimal():
                self._ahead.start(int(self._last))
        elif name.startswith(PAGES) and last.isdecimal():
            return self.dropped.setdefault(int(last), DroppedPages(name))
        return None


class _Standing(NamedTuple):
    process: Process
    name: str  #: of the image
    memory: ProcessMemory
    mark: list[int]  #: how long its threads had run
    ahead: ReadAhead | None

    def save(self, file: MemoryFile) -> None:
        if self.ahead is None:
            file.take_memory(self.memory)
        else:
            taken, pieces = self.ahead.save(self.process.ns_pid, self.memory)
            cast("ComposedFile", file).compose(taken, pieces)

    def check(self) -> None:
        same = processes.times_run(self.process) == self.mark
        if not same or not processes.is_stopped(self.process):
            why = f"{self.process.name}, which stood, has gone on or ended"
            raise RolledBack(Reason.CAPTURE_FAILED, why=why)


class StandingMemory:
    """The memory of programs of a tree that stands."""

    def __init__(self, programs: Iterable[_Standing] = ()) -> None:
        self._programs = list(programs)

    @classmethod
    def of(
        cls,
        tree: Snapshot,
        dropped: Mapping[int, DroppedPages],
        kept: Mapping[str, bytes | bytearray],  # images of its dump
        ahead: ReadAhead | None,
    ) -> StandingMemory:
        """What a dump has dropped: from here on no program may run.

        Raises:
            RolledBack: a program has ended (``capture_failed``).
            ReclaimError: the images do not belong to each other (``internal``).
        """
        programs = {one.ns_pid: one for one in tree.processes}
        found = []
        for pid, pages in dropped.items():
            number, areas = images.read_pagemap(bytes(kept[f"{_PAGEMAP}{pid}.img"]))
            table = np.array(present(areas), np.int64).reshape(-1, 2)
            length = int(table[:, 1].sum())
            if (pages.name, pages.length) != (f"{PAGES}{number}.img", length):
                detail = f"{pages.name} does not belong to process {pid}"
                raise ReclaimError(Reason.INTERNAL, detail=detail)
            if pid not in programs:
                why = f"process {pid} has ended"
                raise RolledBack(Reason.CAPTURE_FAILED, why=why)
            process = programs[pid]
            memory = ProcessMemory(process.pid, table)
            mark = processes.times_stopped(process)
            found.append(_Standing(process, pages.name, memory, mark, ahead))
        return cls(found)

    @property
    def logical_bytes(self) -> int:
        return sum(one.memory.length for one in self._programs)

    def split(self, pids: Collection[int]) -> tuple[StandingMemory, StandingMemory]:
        """That of those programs, by their own pids, and that of the others."""
        chosen = [one for one in self._programs if one.process.ns_pid in pids]
        others = [one for one in self._programs if one.process.ns_pid not in pids]
        return StandingMemory(chosen), StandingMemory(others)

    def deliver(
        self,
        begin: Callable[[str], AbstractContextManager[MemoryFile]],
        prefix: str,
        cancel: Cancel,
    ) -> None:
        """Save it.

        ``begin`` begins a file of the checkpoint, complete at the block's end;
        ``prefix`` is that of CRIU's images there.

        Raises:
            RolledBack: a program has run or ended meanwhile (``capture_failed``), or it
                was called off (``cancelled``).
            OSError: memory of a program cannot be read.
            ReclaimError: the store does not take it.
        """
        taking: list[MemoryFile] = []

        def call_off(_: object) -> None:
            for file in taking:
                file.cancel()

        cancel.told.add_done_callback(call_off)
        for one in self._programs:
            with begin(prefix + one.name) as file:
                taking.append(file)
                try:
                    cancel.check()
                    one.save(file)
                except (OSError, ReclaimError):
                    cancel.check()
                    # What has gone on may have given memory back.
                    one.check()
                    raise
                finally:
                    taking.clear()
                one.check()
