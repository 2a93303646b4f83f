"""A backend around another one: each call through a function, or repeated.

Only ``Unavailable`` is repeated, up to a time limit: after any other error it is not
known what the call has written.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

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
