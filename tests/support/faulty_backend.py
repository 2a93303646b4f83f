"""Faults of stores, by name."""

import threading
from collections.abc import Callable
from typing import TypeVar

from jupyterhub_gpu_reclaim.store.backend import Backend, Unavailable
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy

_T = TypeVar("_T")


def turn_bit(backend: Backend, name: str, at: int) -> None:
    """Let one bit of an object rot: its name and its length stay."""
    data = bytearray(backend.read(name, 0, backend.length(name)))
    data[at] ^= 1
    backend.delete(name)
    writer = backend.create(name)
    writer.write(data)
    writer.finish()


class FailsEveryThird(BackendProxy):
    """Every third call, of it or of its writers, is :class:`~.backend.Unavailable`."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, self._fail_or)
        self._lock = threading.Lock()
        self.calls = 0

    def spec(self) -> None:
        return

    def _fail_or(self, work: Callable[[], _T]) -> _T:
        with self._lock:
            self.calls += 1
            number = self.calls
        if number % 3 == 0:
            raise Unavailable(f"call {number} fails, as every third does")
        return work()
