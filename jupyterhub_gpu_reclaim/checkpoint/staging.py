"""Holds the files of a checkpoint in memory until a store has taken them.

So a tree stands still for a copy in memory, however slow the store is: it goes on, and
:meth:`Staging.deliver` hands everything over behind it, piece by piece.

Nearly all of the time of such a copy is spent by the kernel on finding fresh pages: 1.0
to 1.5 s for 1 GiB, against 0.22 s into pages that are there (two cores, Linux 6.18). So
they are taken before the tree is stopped, and as huge ones where the kernel has them,
which takes 0.1 s. For a tree that has grown since, ``grant`` is asked bit by bit, and
may refuse, which ends the copy.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory

#: Bytes that a file gets at once: what is large takes as many of them as it begins.
PIECE: Final = 4 << 20
#: Pieces that are handed over at once, at most.
_ROW: Final = 16
#: Bytes that are taken from the machine at once, at most, and beyond what was expected.
_TAKEN: Final = 128 << 20
_MORE: Final = 32 << 20
#: One read or write of a pipe at most.
_BLOCK: Final = 1 << 20
#: Threads that read memory: more do not help.
_READERS: Final = 8
#: madvise(2): have the pages now (Linux 5.14).
_POPULATE_WRITE: Final = 23


class StoreFile(Protocol):
    """A file of a store that is being written (``store.write.writer.FileWriter``)."""

    def write(self, data: memoryview, /) -> object:
        """Take these bytes; the buffer is used again after the return."""


class _Piece(NamedTuple):
    memory: mmap.mmap
    start: int

    def view(self, length: int = PIECE) -> memoryview:
        return memoryview(self.memory)[self.start : self.start + length]

    def follows(self, other: _Piece) -> bool:
        return self.memory is other.memory and self.start == other.start + PIECE

    def give_back(self) -> None:
        """Give the pages back to the machine; what is in them is gone."""
        self.memory.madvise(mmap.MADV_DONTNEED, self.start, PIECE)


class Staging:
    """The files of one checkpoint; each is written by one thread.

    ``grant`` is asked, from any thread, to take whatever is needed beyond the bytes
    that are expected; what it raises is raised by the writer.

    Raises:
        OSError: there is no memory.
    """

    parts = None  #: no file is composed of such

    def __init__(
        self,
        expected: int,
        grant: Callable[[int, Callable[[], list[_Piece]]], list[_Piece]],
    ) -> None:
        self._lock = threading.Lock()
        self._free: list[_Piece] = []
        self._grant = grant
        self._files: dict[str, StagedFile] = {}
        while left := expected // PIECE - len(self._free):
            self._free += _take(min(_TAKEN, left * PIECE))

    @property
    def logical_bytes(self) -> int:
        return sum(file.length for file in list(self._files.values()))

    def file(self, name: str) -> StagedFile:
        file = self._files[name] = self.stage(name)
        return file

    def stage(self, name: str) -> StagedFile:
        """Begin a file that its caller hands over, and releases."""
        return StagedFile(name, self._piece)

    def add(self, name: str, data: bytes) -> None:
        with self.file(name) as file:
            file.write(data)

    def deliver(
        self,
        file: Callable[[str], AbstractContextManager[StoreFile]],
        cancel: Cancel,
    ) -> None:
        """Hand every file over, one after the other, and forget its contents.

        ``file`` begins a file in the store, which is complete at the block's end.

        Raises:
            ReclaimError: the store does not take it, it was cancelled, or a file was
                not completed.
        """
        self._give_back_free()
        for name, staged in list(self._files.items()):
            cancel.check()
            with file(name) as target:
                staged.deliver(target, cancel)

    def release(self) -> None:
        """Give all of its memory back, once nothing writes any more. Idempotent.

        What refers to it still, as an error does by its traceback, keeps none. What a
        delivery that was called off still hands over is void.
        """
        self._give_back_free()
        for staged in self._files.values():
            staged.release()
        self._files.clear()

    def _give_back_free(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for piece in free:
            piece.give_back()

    def _piece(self) -> _Piece:
        with self._lock:
            if not self._free:
                self._free = self._grant(_MORE, lambda: _take(_MORE))
            return self._free.pop()


def _take(count: int) -> list[_Piece]:
    memory = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
        with contextlib.suppress(OSError):  # an older kernel: it only takes longer
            memory.madvise(advice)
    # The last one is used first.
    return [_Piece(memory, start) for start in reversed(range(0, count, PIECE))]


class StagedFile:
    """One file in memory; a ``Sink`` of ``criu.stream``, and a context manager."""

    def __init__(self, name: str, piece: Callable[[], _Piece]) -> None:
        self._name = name
        self._piece = piece
        self._pieces: list[_Piece] = []
        self._small = bytearray()  #: what does not fill a piece
        self._cancel = Cancel()
        self._whole = False
        self.length = 0  #: bytes so far

    def write(self, data: memoryview | bytes, /) -> None:
        """Append.

        Raises:
            ReclaimError: more memory is needed than may be taken.
        """
        view = memoryview(data)
        self.length += len(view)
        while (begun := len(self._small)) + len(view) >= PIECE:
            piece = self._piece()
            room = piece.view()
            room[:begun] = self._small
            room[begun:] = view[: PIECE - begun]
            view = view[PIECE - begun :]
            self._small.clear()
            self._pieces.append(piece)
        self._small += view

    def take_memory(self, memory: ProcessMemory, /) -> None:
        """Take memory of a process as the whole file, on all processors.

        Raises:
            OSError: the process has ended.
            ReclaimError: it was cancelled, or more memory is needed than may be taken.
        """

        def take(offset: int) -> None:
            self._cancel.check()
            piece = self._pieces[offset // PIECE]
            view = piece.view(min(PIECE, memory.length - offset))
            memory.read_into(offset, view)

        offsets = range(0, memory.length, PIECE)
        self._pieces = [self._piece() for _ in offsets]
        readers = min(len(offsets), len(os.sched_getaffinity(0)), _READERS)
        if readers < 2:
            for offset in offsets:
                take(offset)
        else:
            with ThreadPoolExecutor(readers, "staged") as pool:
                deque(pool.map(take, offsets), maxlen=0)
        self.length = memory.length

    def cancel(self) -> None:
        self._cancel.set()

    def close(self) -> None:
        self._whole = True

    def take_file(self, descriptor: int, most: int, /) -> int:
        """Append what is in a regular file, up to so many bytes; return how many.

        What is read of a file that fails in the middle is as if it had not been.

        Raises:
            OSError: it cannot be read.
            ReclaimError: more memory is needed than may be taken.
        """
        begin, taken = self.length, 0
        while taken < most:
            number, at = divmod(begin + taken, PIECE)
            if number == len(self._pieces):
                self._pieces.append(self._piece())
            room = self._pieces[number].view()[at : at + min(_BLOCK, most - taken)]
            count = os.preadv(descriptor, [room], taken)
            if not count:
                break
            taken += count
        self.length += taken
        return taken

    def deliver(self, target: StoreFile, cancel: Cancel) -> None:
        """Write all of it into a store's file; its memory is given back meanwhile.

        Raises:
            ReclaimError: the store does not take it, it was cancelled, or the file was
                not completed.
        """
        if not self._whole:
            raise ReclaimError(Reason.INTERNAL, detail=f"{self._name} is not whole")
        for part in self.parts():
            cancel.check()
            target.write(part)

    def parts(self) -> Iterator[memoryview]:
        """Yield the whole file; what was taken is given back."""
        left = self.length - len(self._small)
        pieces = deque(self._pieces)
        while pieces:
            # As much as lies in a row, for many to share it.
            row = [pieces.popleft()]
            while pieces and len(row) < _ROW and pieces[0].follows(row[-1]):
                row.append(pieces.popleft())
            data = row[0].view(min(left, len(row) * PIECE))
            left -= len(data)
            yield data
            for piece in row:
                piece.give_back()
        yield memoryview(self._small)

    def release(self) -> None:
        for piece in self._pieces:
            piece.give_back()
        self._pieces, self._small = [], bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            self.close()
