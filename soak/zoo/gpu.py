"""Programs that hold GPU memory by the driver's own interface, without a framework."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from soak.zoo.keeper import digest

MIB = 1 << 20
_HOST_ALLOC_PORTABLE = 1


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """Call the driver.

    Raises:
        OSError: it returned an error; the number is its own.
    """
    code = getattr(_library(), name)(*arguments)
    if code:
        raise OSError(code, f"{name} returned {code}")


class Context:
    """The first card's primary context, made current in the thread that asks."""

    def __init__(self) -> None:
        call("cuInit", 0)
        device = ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(device), 0)
        self.handle = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), device)

    def enter(self) -> None:
        call("cuCtxSetCurrent", self.handle)


class Memory:
    """Bytes on the card."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))

    def write(self, data: bytes, at: int = 0) -> None:
        where = ctypes.c_uint64(self.address.value + at)
        call("cuMemcpyHtoD_v2", where, data, ctypes.c_size_t(len(data)))

    def read(self) -> memoryview:
        held = ctypes.create_string_buffer(self.size)
        call("cuMemcpyDtoH_v2", held, self.address, ctypes.c_size_t(self.size))
        return memoryview(held).cast("B")  # as bytes it is compared at once


class DeviceMemory:
    """Many allocations of several sizes."""

    SIZES = (MIB, 16 * MIB, 64 * MIB, 4096, 3 * MIB + 512)

    def __init__(self) -> None:
        self.context = Context()
        self.context.enter()
        self.held = [Memory(size) for size in self.SIZES]
        for memory in self.held:
            memory.write(os.urandom(memory.size))
        self.turn = 0

    def look(self) -> tuple[str, int]:
        self.context.enter()
        return digest(*(memory.read() for memory in self.held), self.turn), 0

    def work(self) -> None:
        self.context.enter()
        self.turn += 1
        self.held[self.turn % len(self.held)].write(os.urandom(4096))


class Streams:
    """Copies on the card, queued in streams and not waited for, and an event."""

    COUNT = 4

    def __init__(self) -> None:
        self.context = Context()
        self.context.enter()
        self.parts = [Memory(8 * MIB) for _ in range(self.COUNT + 1)]
        self.streams = [ctypes.c_void_p() for _ in range(self.COUNT)]
        for stream in self.streams:
            call("cuStreamCreate", ctypes.byref(stream), 0)
        self.event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self.event), 0)
        self.work()

    def look(self) -> tuple[str, int]:
        self.context.enter()
        for stream in self.streams:
            call("cuStreamSynchronize", stream)
        call("cuEventSynchronize", self.event)
        parts = [part.read() for part in self.parts]
        assert all(part == parts[0] for part in parts)
        return digest(parts[0]), 0

    def work(self) -> None:
        self.context.enter()
        first, *others = self.parts
        first.write(os.urandom(first.size))
        size = ctypes.c_size_t(first.size)
        for stream, part in zip(self.streams, others, strict=True):
            call("cuMemcpyDtoDAsync_v2", part.address, first.address, size, stream)
        call("cuEventRecord", self.event, self.streams[-1])


class PinnedMemory:
    """Page-locked host memory that the card knows, and a copy of it on the card."""

    SIZE = 32 * MIB

    def __init__(self) -> None:
        self.context = Context()
        self.context.enter()
        self.pinned = ctypes.c_void_p()
        size = ctypes.c_size_t(self.SIZE)
        call("cuMemHostAlloc", ctypes.byref(self.pinned), size, _HOST_ALLOC_PORTABLE)
        self.card = Memory(self.SIZE)
        self.work()

    def look(self) -> tuple[str, int]:
        self.context.enter()
        held = ctypes.string_at(self.pinned, self.SIZE)
        assert held == self.card.read()
        return digest(held), 0

    def work(self) -> None:
        self.context.enter()
        data = os.urandom(self.SIZE)
        ctypes.memmove(self.pinned, data, self.SIZE)
        self.card.write(data)


#: The second of two: answers each line with a digest of what it has on the card.
_SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
from soak.zoo.gpu import DeviceMemory
held = DeviceMemory()
for line in sys.stdin:
    if line == "work\\n":
        held.work()
    print(held.look()[0], flush=True)
"""


class TwoProcesses:
    """A kernel and a child of it, each with memory of its own on the card."""

    def __init__(self) -> None:
        self.mine = DeviceMemory()
        root = str(Path(__file__).parents[2])
        self.second = subprocess.Popen(
            [sys.executable, "-c", _SECOND, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, word: str) -> str:
        assert self.second.stdin
        assert self.second.stdout
        self.second.stdin.write(word + "\n")
        self.second.stdin.flush()
        return self.second.stdout.readline()

    def look(self) -> tuple[str, int]:
        return digest(self.mine.look(), self._ask("look"), self.second.pid), 0

    def work(self) -> None:
        self.mine.work()
        self._ask("work")
