"""Backends around another one: each call through a function, retries, read-ahead.

Only ``Unavailable`` is retried, up to a time limit: after any other error it is not
known what the call has written.

Read-ahead is for backends where every request has a high latency: blocks are read in
their order in a pack, by one thread or several in turns, and with a request for each a
store that answers within 30 ms gives a reader 8 MB/s. Packs never change, so a window
may be read twice; but not for long, and not across a publish: a writer that begins a
checkpoint must see what is in a pack now.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from jupyterhub_gpu_reclaim.store.backend import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import (
        Backend,
        Buffer,
        Entry,
        ObjectWriter,
        Spec,
    )

_T = TypeVar("_T")
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
WINDOW_BYTES = 4 * 1024 * 1024
#: So many windows are kept: 32 MiB.
_WINDOWS = 8
_WINDOW_SECONDS = 30.0
#: So many ends of reads are remembered, to see which read goes on from one.
_ENDS = 64


class Caller(Protocol):
    def __call__(self, work: Callable[[], _T], /) -> _T:
        """The answer of ``work``, which may be called several times, or never."""


def _once(work: Callable[[], _T]) -> _T:
    return work()


class BackendProxy:
    """A backend that passes each call through ``call``, which may repeat it."""

    def __init__(self, backend: Backend, call: Caller = _once) -> None:
        self._backend = backend
        self._call = call

    def create(self, name: str) -> ObjectWriter:
        return _WriterProxy(self._call(lambda: self._backend.create(name)), self._call)

    def publish(self, name: str, data: bytes) -> None:
        self._written(name, lambda: self._backend.publish(name, data))

    def replace(self, name: str, data: bytes) -> None:
        self._written(name, lambda: self._backend.replace(name, data))

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._told(name, lambda: self._backend.read(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        return self._told(name, lambda: self._backend.read_into(name, offset, buffer))

    def length(self, name: str) -> int:
        return self._told(name, lambda: self._backend.length(name))

    def list(self, prefix: str) -> list[Entry]:
        return self._told("", lambda: self._backend.list(prefix))

    def delete(self, name: str) -> None:
        self._written(name, lambda: self._backend.delete(name))

    def free_bytes(self) -> int | None:
        return self._told("", self._backend.free_bytes)

    def capacity_bytes(self) -> int | None:
        return self._told("", self._backend.capacity_bytes)

    def _told(self, name: str, work: Callable[[], _T]) -> _T:
        del name
        return self._call(work)

    def _written(self, name: str, work: Callable[[], None]) -> None:
        del name
        self._call(work)

    def spec(self) -> Spec | None:
        # ``address`` adds the proxies again.
        return self._backend.spec()


class _WriterProxy:
    def __init__(self, writer: ObjectWriter, call: Caller) -> None:
        self._writer = writer
        self._call = call

    def write(self, data: Buffer) -> None:
        self._call(lambda: self._writer.write(data))

    def read_back(self, offset: int, buffer: memoryview) -> int | None:
        return self._call(lambda: self._writer.read_back(offset, buffer))

    def finish(self) -> None:
        self._call(self._writer.finish)

    def abandon(self) -> None:
        self._writer.abandon()


def patient(
    seconds: float = 120.0, *, pause: Callable[[float], None] = time.sleep
) -> Caller:
    """Does each call until it works; when the time is up it is ``Unavailable``."""

    def call(work: Callable[[], _T]) -> _T:
        end = time.monotonic() + seconds
        longest = _FIRST_SECONDS
        while True:
            try:
                return work()
            except Unavailable:
                wait = longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
                if time.monotonic() + wait >= end:
                    raise
                pause(wait)
            longest = min(2 * longest, _LONGEST_SECONDS)

    return call


class _Window(NamedTuple):
    """Bytes of an object that have been read, or are being read."""

    name: str
    begin: int
    data: Future[bytes]
    until: float  #: on the clock of the :class:`ReadAhead`

    def holds(self, name: str, offset: int, length: int) -> bool:
        return (
            name == self.name
            and self.begin <= offset
            and offset + length <= self.begin + WINDOW_BYTES
        )


class ReadAhead(BackendProxy):
    """A backend that reads a whole window where reads are consecutive."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        #: Held for moments only, never while something is read.
        self._lock = threading.Lock()
        self._windows: list[_Window] = []
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()

    def publish(self, name: str, data: bytes) -> None:
        super().publish(name, data)
        with self._lock:
            self._windows = []

    def read(self, name: str, offset: int, length: int) -> bytes:
        if not 0 < length < WINDOW_BYTES:
            return super().read(name, offset, length)
        with self._lock:
            goes_on = self._goes_on(name, offset, length)
            window = self._find(name, offset, length) if goes_on else None
            mine = goes_on and window is None
            if mine:
                until = time.monotonic() + _WINDOW_SECONDS
                window = _Window(name, offset, Future(), until)
                self._windows = [*self._windows, window][-_WINDOWS:]
        if window is None:
            return super().read(name, offset, length)
        if mine:
            self._fill(window)
        at = offset - window.begin
        return window.data.result()[at : at + length]

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        if len(buffer) >= WINDOW_BYTES:
            return super().read_into(name, offset, buffer)
        data = self.read(name, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _goes_on(self, name: str, offset: int, length: int) -> bool:
        # Consecutive: another read has ended, or will end, at this offset.
        self._ends[name, offset + length] = None
        while len(self._ends) > _ENDS:
            self._ends.popitem(last=False)
        return (name, offset) in self._ends

    def _find(self, name: str, offset: int, length: int) -> _Window | None:
        now = time.monotonic()
        for window in self._windows:
            if window.holds(name, offset, length) and now < window.until:
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
