"""Reads memory of large programs while CRIU still dumps them.

From when CRIU asks where a program's pages go until it ends, it traces every program of
the tree. Of their code none runs, only CRIU's own, which writes to no memory that is
theirs but for an executable page, where it puts the system calls that it has a program
make. So all other private memory has its last contents by then. Which pages CRIU counts
to a program is known from its pagemap, at the end: until then what is read are parts
without a name, and the file is put together from them and from what is left.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory, private_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.linux.processes import Process

#: A program that has less is read behind its dump.
_LEAST_BYTES: Final = 16 << 20
#: What is looked for, and then read, at once.
_SLICE_BYTES: Final = 512 << 20


class MemoryPart(Protocol):
    """What files of a checkpoint are put together from."""

    def take_memory(self, memory: ProcessMemory, /) -> None:
        """Take all of it, as the whole part."""


class Piece(NamedTuple):
    part: int  #: which one of them
    first: int  #: page of the part
    pages: int


class Taken(NamedTuple):
    part: MemoryPart
    areas: NDArray[np.int64]  #: as in ``ProcessMemory``


class ReadAhead:
    """Of one dump. ``begin`` begins a part, which is complete at the block's end."""

    def __init__(
        self,
        programs: Iterable[Process],
        begin: Callable[[], AbstractContextManager[MemoryPart]],
    ) -> None:
        self._programs = {one.ns_pid: one for one in programs}
        self._begin = begin
        self._reading: dict[int, Future[list[Taken]]] = {}
        self._thread = ThreadPoolExecutor(1, "ahead")

    def start(self, pid: int) -> None:
        """CRIU has come to that program, by its own pid."""
        one = self._programs.get(pid)
        if one is not None and procfs.private_bytes(one.pid) >= _LEAST_BYTES:
            self._reading[pid] = self._thread.submit(self._read, one.pid)

    def end(self) -> None:
        """Begin nothing more, also of what was started; CRIU has ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def save(self, pid: int, memory: ProcessMemory) -> tuple[list[Taken], list[Piece]]:
        """Wait for what is being read of a program, and read the rest of it.

        Raises:
            OSError: its memory cannot be read.
            StoreError: it is not taken, or was called off.
        """
        taken: list[Taken] = []
        reading = self._reading.get(pid)
        if reading is not None and not reading.cancelled():
            taken += reading.result()
        pieces, rest = split(memory.areas, [one.areas for one in taken])
        if len(rest):
            taken.append(self._take(memory.pid, rest))
        return taken, pieces

    def _read(self, pid: int) -> list[Taken]:
        # The next slice is looked for while one is read.
        slices, taken = _slices(pid), []
        with ThreadPoolExecutor(1, "looking") as looking:
            found = looking.submit(next, slices, None)
            while (areas := found.result()) is not None:
                found = looking.submit(next, slices, None)
                taken.append(self._take(pid, areas))
        return taken

    def _take(self, pid: int, areas: NDArray[np.int64]) -> Taken:
        with self._begin() as part:
            part.take_memory(ProcessMemory(pid, areas))
        return Taken(part, areas)


def _slices(pid: int) -> Iterator[NDArray[np.int64]]:
    # An area that is nearly empty would take longer to look through than to read.
    most = 2 * procfs.private_bytes(pid)
    found: list[NDArray[np.int64]] = []
    size = 0
    for begin, end in procfs.data_areas(pid):
        for at in range(begin, end, _SLICE_BYTES) if end - begin <= most else ():
            areas = private_pages(pid, at, min(end, at + _SLICE_BYTES))
            found.append(areas)
            size += int(areas[:, 1].sum())
            if size >= _SLICE_BYTES:
                yield np.concatenate(found)
                found, size = [], 0
    if size:
        yield np.concatenate(found)


def split(
    wanted: NDArray[np.int64], taken: Sequence[NDArray[np.int64]]
) -> tuple[list[Piece], NDArray[np.int64]]:
    """Where the pages of ``wanted`` are in parts that were taken, and what is in none.

    All are areas as in ``ProcessMemory``, in ascending order. The rest counts as one
    part more. The pieces are in the order of the pages.
    """
    nothing = np.empty((0, 2), np.int64)
    areas = np.concatenate([nothing, *taken]) // PAGE
    parts = np.repeat(np.arange(len(taken)), [len(one) for one in taken])
    firsts = _firsts(areas[:, 1])
    if len(taken):
        # Each part is counted from its own beginning.
        begins = np.searchsorted(parts, np.arange(len(taken)))
        firsts -= firsts[begins][parts]
    pages = wanted // PAGE
    edges = [one[:, 0] + step * one[:, 1] for one in (areas, pages) for step in (0, 1)]
    bounds = np.unique(np.concatenate(edges))
    at, counts = bounds[:-1], np.diff(bounds)
    inside = _holder(pages, at) >= 0
    at, counts = at[inside], counts[inside]
    source = _holder(areas, at)
    left = source < 0
    rest = np.stack([at[left], counts[left]], axis=1) * PAGE
    part = np.full(len(at), len(taken))
    first = np.zeros(len(at), np.int64)
    first[left] = _firsts(counts[left])
    found = source[~left]
    part[~left] = parts[found]
    first[~left] = firsts[found] + at[~left] - areas[found, 0]
    columns = (part.tolist(), first.tolist(), counts.tolist())
    return [Piece(*one) for one in zip(*columns, strict=True)], rest


def _firsts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts


def _holder(areas: NDArray[np.int64], pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which area each page is in; -1: in none."""
    if not len(areas):
        return np.full(len(pages), -1)
    place = np.searchsorted(areas[:, 0], pages, "right") - 1
    inside = (place >= 0) & (pages < areas[place].sum(axis=1))
    return np.where(inside, place, -1)
