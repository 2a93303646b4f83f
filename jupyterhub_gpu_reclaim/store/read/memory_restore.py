"""Copies areas of a checkpoint straight into stopped processes, in parallel.

The plan lists, block by block, which bytes go where, so that every block is read and
opened once, whatever the order of the addresses. Worker processes carry it out, or the
caller itself what is little. The caller must ensure that the processes are stopped and
that these areas may be filled.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.process_memory import MOST_AREAS, writev
from jupyterhub_gpu_reclaim.store.read.extents import ZEROS, extents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Buffer
    from jupyterhub_gpu_reclaim.store.format.index import ChunkIndex
    from jupyterhub_gpu_reclaim.store.packing.blocks import Blocks

#: Plain bytes of a ticket: what one worker takes at a time.
TICKET_BYTES = 8 << 20
#: Most tickets, because all of them wait in one pipe.
MOST_TICKETS = 8192
_LOOK_SECONDS = 0.1
_VECTOR_BYTES = 16  #: of a struct iovec


class Copiers(Protocol):
    def wait(self, seconds: float) -> bool:
        """Wait that long at most; whether all is done. Raises their errors."""

    def done(self) -> int: ...

    def end(self) -> None:
        """Stop, and wait until none of them writes any more; idempotent."""


class CopyPiece(NamedTuple):
    offset: int  #: in the file
    length: int
    pid: int  #: of a stopped process, as we see it
    address: int  #: in its memory, which is fresh there


class CopyPlan(NamedTuple):
    """Pieces to be copied, sorted by their place in the packs."""

    #: Columns: block, start in the block, length, pid, address.
    rows: NDArray[np.int64]
    #: First rows of the tickets, and the end; a block is never in two tickets.
    tickets: list[int]
    zero_bytes: int  #: that need not be written


def plan(
    index: ChunkIndex, chunk_bytes: int, pieces: Iterable[tuple[int, CopyPiece]]
) -> CopyPlan:
    """With each piece comes the place of its file's first chunk among the refs."""
    tables = [np.empty((5, 0), np.int64)]
    for first, piece in pieces:
        if not piece.length:
            continue
        found = extents(index, first, chunk_bytes, piece.offset, piece.length)
        at = piece.address + np.cumsum(found.lengths) - found.lengths
        pids = np.full(len(at), piece.pid)
        tables.append(np.stack([*found, pids, at]))
    columns = np.concatenate(tables, axis=1)
    zeros = columns[0] == ZEROS
    zero_bytes = int(columns[2][zeros].sum())
    columns = columns[:, ~zeros]
    table = index.blocks
    order = np.lexsort((table["offset"][columns[0]], table["pack"][columns[0]]))
    rows = np.ascontiguousarray(columns[:, order].T)
    return CopyPlan(rows, _tickets(rows, table, chunk_bytes), zero_bytes)


def _tickets(rows: NDArray[np.int64], table: NDArray[Any], chunk: int) -> list[int]:
    if not len(rows):
        return [0]
    new = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
    sizes = table["chunks"][rows[new, 0]].astype(np.int64) * chunk
    ends = np.cumsum(sizes)
    step = max(TICKET_BYTES, -(-int(ends[-1]) // MOST_TICKETS))
    number = (ends - sizes) // step
    return [*new[np.flatnonzero(np.diff(number, prepend=-1))].tolist(), len(rows)]


def oversee(
    copiers: Copiers,
    planned: CopyPlan,
    cancelled: Callable[[], bool],
    progress: Callable[[int], None],
) -> None:
    """Wait until the workers finish a plan; else stop them all. Raises their errors."""
    progress(planned.zero_bytes)
    told = 0
    try:
        while True:
            # First: a quick machine has done all before the next look.
            if cancelled():
                raise StoreError(Reason.CANCELLED)
            if copiers.wait(_LOOK_SECONDS):
                break
            done = copiers.done()
            progress(done - told)
            told = done
    finally:
        copiers.end()
    progress(copiers.done() - told)


def work(blocks: Blocks, rows: NDArray[np.int64], counters: NDArray[np.int64]) -> None:
    """Do one ticket: open each block once, and write its parts."""
    for pid in np.unique(rows[:, 3]).tolist():
        mine = rows[rows[:, 3] == pid]
        new = np.flatnonzero(np.diff(mine[:, 0], prepend=-1))
        target = MemoryWriter(pid, mine[:, 1], mine[:, 2], mine[:, 4], new)
        for number, block in enumerate(mine[new, 0].tolist()):
            counters[0] += target.write(number, blocks.plain(block))


class CopyHere:
    """Copies in the calling thread, a ticket at a time."""

    def __init__(self, blocks: Blocks, planned: CopyPlan) -> None:
        self._blocks = blocks
        self._rows = planned.rows
        self._tickets = itertools.pairwise(planned.tickets)
        self._counters = np.zeros(1, np.int64)

    def wait(self, seconds: float) -> bool:
        del seconds
        for ticket in self._tickets:
            work(self._blocks, self._rows[slice(*ticket)], self._counters)
            return False
        return True

    def done(self) -> int:
        return int(self._counters[0])

    def end(self) -> None: ...


class MemoryWriter:
    """Writes into the memory of one process, block by block (process_vm_writev).

    Thousands of blocks are written in a second, so all that can be is prepared here.
    ``starts`` and ``lengths`` are of pieces of blocks; ``firsts`` has the first piece
    of each block, in rising order, beginning with 0.
    """

    def __init__(
        self,
        pid: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        addresses: NDArray[np.int64],
        firsts: NDArray[np.int64],
    ) -> None:
        self._pid = pid
        self._cuts = [*firsts.tolist(), len(starts)]
        self._needs = np.maximum.reduceat(starts + lengths, firsts).tolist()
        self._sizes = np.add.reduceat(lengths, firsts).tolist()
        self._from = np.stack([starts, lengths], 1).astype(np.uint64)
        self._to = np.stack([addresses, lengths], 1).astype(np.uint64)
        self._to_at: int = self._to.ctypes.data
        #: Vectors given to the kernel: as above, with addresses of ours.
        self._given = np.empty((MOST_AREAS, 2), np.uint64)
        self._given_at: int = self._given.ctypes.data

    def write(self, number: int, data: Buffer) -> int:
        """Write the pieces of a block; return their bytes.

        Raises:
            StoreError: ``RESTORE_FAILED``, the process is gone or has no memory there
                that it could write to itself; or a piece is beyond the block.
        """
        if self._needs[number] > len(data):
            why = "a piece is beyond its block"
            raise StoreError(Reason.CHECKPOINT_DAMAGED, why=why)
        base = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        size: int = self._sizes[number]
        done = 0
        begin, end = self._cuts[number : number + 2]
        for at in range(begin, end, MOST_AREAS):
            count = min(end - at, MOST_AREAS)
            given = self._given[:count]
            given[:] = self._from[at : at + count]
            given[:, 0] += np.uint64(base)
            there = self._to_at + at * _VECTOR_BYTES
            wrote = writev(self._pid, self._given_at, count, there, count, 0)
            if wrote < 0:
                _fail(self._pid, ctypes.get_errno())
            done += wrote
        if done != size:
            _fail(self._pid, errno.EFAULT)
        return size


def _fail(pid: int, number: int) -> NoReturn:
    raise StoreError(
        Reason.RESTORE_FAILED,
        why="a process did not take its memory",
        detail=f"process {pid}: {os.strerror(number)}",
    )
