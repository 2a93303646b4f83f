"""Copies areas of a checkpoint straight into stopped processes, in parallel.

The plan lists, block by block, which bytes go where, so that every block is read and
opened once, whatever the order of the addresses is. Worker processes carry it out, or
threads where there are none.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.packs import BlockOpener
from jupyterhub_gpu_reclaim.store.read.blocks import Blocks
from jupyterhub_gpu_reclaim.store.read.extents import ZEROS, runs
from jupyterhub_gpu_reclaim.store.read.memory_writer import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.index import Index
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

#: Plain bytes of a ticket: what one hand takes at a time.
TICKET_BYTES = 8 << 20
#: Most tickets, because all of them wait in one pipe.
_MOST_TICKETS = 8192
_THREADS = 2
_LOOK_SECONDS = 0.1


class Cancel(Protocol):
    """A request to stop, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether it is wished."""


class Hands(Protocol):
    """The workers that carry out a plan."""

    def wait(self, seconds: float) -> bool:
        """Wait that long at most; whether all is done.

        Raises:
            StoreError: see :meth:`Checkpoint.copy_to`.
        """

    def done(self) -> int:
        """Bytes written so far."""

    def end(self) -> None:
        """Stop, and wait until none of them writes any more; idempotent."""


class Piece(NamedTuple):
    """A part of a file and where it belongs."""

    offset: int  #: in the file
    length: int
    pid: int  #: of a stopped process, as we see it
    address: int  #: in its memory, which is fresh there


class Source(NamedTuple):
    """Where the blocks come from."""

    backend: Backend
    body: Body
    table: NDArray[Any]

    def blocks(self) -> Blocks:
        """A reader of them."""
        body = self.body
        return Blocks(
            self.backend, self.table, body.packs, body.origins, body.chunk_bytes
        )


class Plan(NamedTuple):
    """What is to be copied, sorted by where it stands in the packs."""

    #: Columns: block, start in the block, length, pid, address.
    rows: NDArray[np.int64]
    #: First rows of the tickets, and the end; a block is never in two tickets.
    tickets: list[int]
    zero_bytes: int  #: that need not be written


def plan(index: Index, first: int, chunk_bytes: int, pieces: Iterable[Piece]) -> Plan:
    """Turn parts of a file into a plan.

    Args:
        index: of the checkpoint.
        first: place of the file's first chunk among the refs.
        chunk_bytes: size of the chunks.
        pieces: that lie within the file.
    """
    tables = [np.empty((5, 0), np.int64)]
    for piece in pieces:
        if not piece.length:
            continue
        found = runs(index, first, chunk_bytes, piece.offset, piece.length)
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
    return Plan(rows, _tickets(rows, table, chunk_bytes), zero_bytes)


def _tickets(rows: NDArray[np.int64], table: NDArray[Any], chunk: int) -> list[int]:
    if not len(rows):
        return [0]
    new = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
    sizes = table["chunks"][rows[new, 0]].astype(np.int64) * chunk
    ends = np.cumsum(sizes)
    step = max(TICKET_BYTES, -(-int(ends[-1]) // _MOST_TICKETS))
    number = (ends - sizes) // step
    return [*new[np.flatnonzero(np.diff(number, prepend=-1))].tolist(), len(rows)]


def oversee(
    hands: Hands,
    planned: Plan,
    cancel: Cancel | None,
    progress: Callable[[int], None] | None,
) -> None:
    """Wait until the workers finish a plan; else stop them all.

    Raises:
        StoreError: see :meth:`Checkpoint.copy_to`.
    """
    tell = progress or (lambda _: None)
    tell(planned.zero_bytes)
    told = 0
    try:
        while not hands.wait(_LOOK_SECONDS):
            if cancel is not None and cancel.is_set():
                raise StoreError(Reason.CANCELLED)
            done = hands.done()
            tell(done - told)
            told = done
    finally:
        hands.end()
    tell(hands.done() - told)


def work(
    blocks: Blocks,
    opener: BlockOpener,
    rows: NDArray[np.int64],
    meter: NDArray[np.int64],
) -> None:
    """One ticket: open each block once, and write its parts.

    Args:
        blocks: to read.
        opener: of this thread.
        rows: of the plan, of whole blocks; at least one.
        meter: one counter of bytes written, of which this is the only writer.

    Raises:
        StoreError: see :meth:`Checkpoint.copy_to`.
    """
    for pid in np.unique(rows[:, 3]).tolist():
        mine = rows[rows[:, 3] == pid]
        new = np.flatnonzero(np.diff(mine[:, 0], prepend=-1))
        target = Target(pid, mine[:, 1], mine[:, 2], mine[:, 4], new)
        for number, block in enumerate(mine[new, 0].tolist()):
            meter[0] += target.poke(number, blocks.plain(block, opener))


class Threads:
    """Hands of our own, where there are no workers."""

    def __init__(self, source: Source, planned: Plan) -> None:
        self._source = source
        self._rows = planned.rows
        self._tickets = iter(list(itertools.pairwise(planned.tickets)))
        self._lock = threading.Lock()
        self._meter = np.zeros((_THREADS, 1), np.int64)
        self._stop = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store-copy")
        self._futures = [
            self._threads.submit(self._run, meter) for meter in self._meter
        ]

    def wait(self, seconds: float) -> bool:
        """Whether all is done.

        Raises:
            StoreError: see :meth:`Checkpoint.copy_to`.
        """
        for future in self._futures:
            try:
                future.result(seconds)
            except TimeoutError:
                return False
        return True

    def done(self) -> int:
        """Bytes written so far."""
        return int(self._meter.sum())

    def end(self) -> None:
        """Stop, and wait until no thread writes any more."""
        self._stop = True
        self._threads.shutdown()

    def _run(self, meter: NDArray[np.int64]) -> None:
        blocks, opener = self._source.blocks(), BlockOpener(self._source.backend)
        while not self._stop:
            with self._lock:
                ticket = next(self._tickets, None)
            if ticket is None:
                return
            work(blocks, opener, self._rows[slice(*ticket)], meter)
