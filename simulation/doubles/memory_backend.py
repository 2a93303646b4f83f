"""A backend that keeps its objects in memory, for tests and simulations.

It passes the contract suite of the real backends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry, ObjectExists, ObjectMissing

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Buffer, Spec


class MemoryBackend:
    """Named bytes in a dictionary.

    Args:
        capacity: bytes that fit, None for no limit.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        #: Open to tests, which damage what stands here.
        self.objects: dict[str, bytearray] = {}

    def create(self, name: str) -> _MemoryWriter:
        with self._lock:
            if name in self.objects:
                raise ObjectExists(name)
        return _MemoryWriter(self, name)

    def publish(self, name: str, data: bytes) -> None:
        with self._lock:
            if name in self.objects:
                raise ObjectExists(name)
            self._make_room(len(data))
            self.objects[name] = bytearray(data)

    def replace(self, name: str, data: bytes) -> None:
        with self._lock:
            self._make_room(len(data) - len(self._find(name)))
            self.objects[name] = bytearray(data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._lock:
            return bytes(self._find(name)[offset : offset + length])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        data = self.read(name, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def length(self, name: str) -> int:
        with self._lock:
            return len(self._find(name))

    def list(self, prefix: str) -> list[Entry]:
        with self._lock:
            return sorted(
                Entry(name, len(data))
                for name, data in self.objects.items()
                if name.startswith(prefix)
            )

    def mend(self, name: str, offset: int, data: bytes) -> None:
        with self._lock:
            self._find(name)[offset : offset + len(data)] = data

    def delete(self, name: str) -> None:
        with self._lock:
            self.objects.pop(name, None)

    def free_bytes(self) -> int | None:
        with self._lock:
            return None if self._capacity is None else self._free()

    def spec(self) -> Spec:
        """No other process can open it."""
        return {"kind": "memory"}

    def append(self, unfinished: bytearray, data: Buffer) -> None:
        with self._lock:
            self._make_room(len(data) + len(unfinished))
            unfinished.extend(data)

    def place(self, name: str, data: bytearray) -> None:
        with self._lock:
            if name in self.objects:
                raise ObjectExists(name)
            self._make_room(len(data))
            self.objects[name] = data

    def _find(self, name: str) -> bytearray:
        if name not in self.objects:
            raise ObjectMissing(name)
        return self.objects[name]

    def _free(self) -> int:
        assert self._capacity is not None
        return self._capacity - sum(len(data) for data in self.objects.values())

    def _make_room(self, needed: int) -> None:
        if self._capacity is not None and needed > self._free():
            raise StoreError(
                Reason.STORE_FULL,
                needed=text.size(needed),
                free=text.size(self._free()),
            )


class _MemoryWriter:
    """One object that is being written; see :class:`~.backend.ObjectWriter`."""

    def __init__(self, backend: MemoryBackend, name: str) -> None:
        self._backend = backend
        self._name = name
        self._data = bytearray()

    def write(self, data: Buffer) -> None:
        self._backend.append(self._data, memoryview(data).cast("B"))

    def read_back(self, offset: int, buffer: memoryview) -> None:
        """Readable only once it is finished."""

    def finish(self) -> None:
        self._backend.place(self._name, self._data)

    def abandon(self) -> None:
        """Nothing is held."""
