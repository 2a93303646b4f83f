"""Reads ahead in backends where every request has a high latency, however short it is.

Blocks are read in the order in which they stand in a pack, by one thread or by several
in turns; with a request for each, a store that answers within 30 ms gives a reader
8 MB/s. Packs never change, so a cached range stays valid.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.store.backends.proxy import Around

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend

WINDOW_BYTES = 4 * 1024 * 1024
#: So many windows are kept: 32 MiB.
_WINDOWS = 8
#: So many ends of reads are remembered, to see which read goes on from one.
_ENDS = 64


class _Window(NamedTuple):
    """Bytes of an object that are here, or on their way."""

    name: str
    begin: int
    data: Future[bytes]

    def holds(self, name: str, offset: int, length: int) -> bool:
        """Whether such a read is answered by it."""
        return (
            name == self.name
            and self.begin <= offset
            and offset + length <= self.begin + WINDOW_BYTES
        )


class ReadAhead(Around):
    """A backend that reads a window where a read goes on from the one before.

    Args:
        backend: does the rest.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, lambda work: work())
        #: Held for moments only, never while something is read.
        self._lock = threading.Lock()
        self._windows: list[_Window] = []
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        if not 0 < length < WINDOW_BYTES:
            return super().read(name, offset, length)
        with self._lock:
            goes_on = self._goes_on(name, offset, length)
            window = self._find(name, offset, length) if goes_on else None
            mine = goes_on and window is None
            if mine:
                window = _Window(name, offset, Future())
                self._windows = [*self._windows, window][-_WINDOWS:]
        if window is None:
            return super().read(name, offset, length)
        if mine:
            self._fill(window)
        at = offset - window.begin
        return window.data.result()[at : at + length]

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's."""
        if len(buffer) >= WINDOW_BYTES:
            return super().read_into(name, offset, buffer)
        data = self.read(name, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _goes_on(self, name: str, offset: int, length: int) -> bool:
        """Whether another read has ended, or will end, where this one begins."""
        self._ends[name, offset + length] = None
        while len(self._ends) > _ENDS:
            self._ends.popitem(last=False)
        return (name, offset) in self._ends

    def _find(self, name: str, offset: int, length: int) -> _Window | None:
        for window in self._windows:
            if window.holds(name, offset, length):
                return window
        return None

    def _fill(self, window: _Window) -> None:
        try:
            data = super().read(window.name, window.begin, WINDOW_BYTES)
        except BaseException as error:
            with self._lock:
                self._windows = [each for each in self._windows if each is not window]
            window.data.set_exception(error)
            raise
        window.data.set_result(data)
