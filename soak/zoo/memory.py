"""Much memory, in the shapes in which notebooks have it."""

from __future__ import annotations

import ctypes
import os
import zlib
from pathlib import Path

import numpy as np

from soak.zoo.keeper import digest


class Frame:
    """A pandas table with text, dates and categories."""

    ROWS = 100_000

    def __init__(self) -> None:
        import pandas as pd

        rng = np.random.default_rng(7)
        self.rng = rng
        self.frame = pd.DataFrame(
            rng.normal(size=(self.ROWS, 6)), columns=list("abcdef")
        )
        self.frame["text"] = [f"row {n % 997}" for n in range(self.ROWS)]
        self.frame["day"] = pd.date_range("2026-01-01", periods=self.ROWS, freq="min")
        self.frame["kind"] = pd.Categorical(rng.choice(["x", "y", "z"], self.ROWS))

    def look(self) -> tuple[str, int]:
        import pandas as pd

        rows = pd.util.hash_pandas_object(self.frame).to_numpy()
        sums = self.frame.groupby("kind", observed=True)["a"].sum()
        return digest(rows.tobytes(), sums.tolist()), 0

    def work(self) -> None:
        at = int(self.rng.integers(self.ROWS - 1000))
        self.frame.loc[at : at + 999, "b"] = self.rng.normal(size=1000)


class Model:
    """A random forest that gives the same answers after each return."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.work()

    def look(self) -> tuple[str, int]:
        return digest(self.model.predict_proba(self.rows).tobytes()), 0

    def work(self) -> None:
        from sklearn.ensemble import RandomForestClassifier

        self.rows = self.rng.normal(size=(2000, 8))
        labels = (self.rows.sum(axis=1) > 0).astype(int)
        self.model = RandomForestClassifier(n_estimators=10, random_state=7)
        self.model.fit(self.rows, labels)


class Gigabyte:
    """One gigabyte, a quarter of it random, which neither shrinks nor repeats."""

    BLOCK = 1 << 24
    BLOCKS = 60

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.blocks = [self._block(n) for n in range(self.BLOCKS)]

    def _block(self, number: int) -> np.ndarray:
        if number % 4 == 0:
            return np.frombuffer(self.rng.bytes(self.BLOCK), dtype=np.uint8).copy()
        return (np.arange(self.BLOCK // 8) * (number + 1)).view(np.uint8)

    def look(self) -> tuple[str, int]:
        return digest([zlib.crc32(block) for block in self.blocks]), 0

    def work(self) -> None:
        number = int(self.rng.integers(self.BLOCKS))
        self.blocks[number] = self._block(number)
        self.blocks[number - 1][:4096] = number


class OpenMemory:
    """Its own memory, open to be written through a file, as Julia has it."""

    def __init__(self) -> None:
        self.file = os.open("/proc/self/mem", os.O_RDWR)
        self.held = ctypes.create_string_buffer(1 << 16)
        self.work()

    def look(self) -> tuple[str, int]:
        at = ctypes.addressof(self.held)
        there = os.pread(self.file, len(self.held), at)
        assert there == self.held.raw
        return digest(there), 0

    def work(self) -> None:
        data = os.urandom(len(self.held))
        os.pwrite(self.file, data, ctypes.addressof(self.held))
        assert self.held.raw == data


class Request(ctypes.Structure):
    """``struct iocb`` of <linux/aio_abi.h>."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("more", ctypes.c_uint32),
        ("told", ctypes.c_uint32),
    )


class AsynchronousFile:
    """The kernel's own asynchronous reads and writes, as aiofile and MySQL do them.

    Some have been done, and nobody has asked for their results.
    """

    SIZE, COUNT = 4096, 8
    READ, WRITE = 0, 1
    #: io_setup, io_submit, io_getevents.
    CALLS = (0, 2, 4) if os.uname().machine == "aarch64" else (206, 209, 208)

    def __init__(self) -> None:
        self.file = (Path.home() / "asynchronous").open("w+b")
        self.context = ctypes.c_ulong()
        self._call(self.CALLS[0], 32, ctypes.byref(self.context))
        self.buffers = ctypes.create_string_buffer(self.SIZE * self.COUNT)
        self.read = ctypes.create_string_buffer(self.SIZE * self.COUNT)
        self.turn = self.done = 0
        self._write()

    def _call(self, number: int, *arguments: object) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        result = int(libc.syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"system call {number}")
        return result

    def _submit(self, opcode: int, buffers: ctypes.Array[ctypes.c_char]) -> None:
        at = ctypes.addressof(buffers)
        requests = [
            Request(
                data=number,
                opcode=opcode,
                descriptor=self.file.fileno(),
                buffer=at + number * self.SIZE,
                bytes=self.SIZE,
                offset=number * self.SIZE,
            )
            for number in range(self.COUNT)
        ]
        table = (ctypes.POINTER(Request) * self.COUNT)(*map(ctypes.pointer, requests))
        assert self._call(self.CALLS[1], self.context, self.COUNT, table) == self.COUNT

    def _results(self) -> None:
        """Take the results of what was submitted: four numbers for each."""
        events = (ctypes.c_int64 * (4 * self.COUNT))()
        args = (self.context, self.COUNT, self.COUNT, ctypes.byref(events), None)
        assert self._call(self.CALLS[2], *args) == self.COUNT
        found = sorted(zip(events[0::4], events[2::4], strict=True))
        assert found == [(number, self.SIZE) for number in range(self.COUNT)], found
        self.done += self.COUNT

    def _write(self) -> None:
        self.buffers.raw = os.urandom(len(self.buffers))
        self._submit(self.WRITE, self.buffers)

    def look(self) -> tuple[str, int]:
        self._results()
        self._submit(self.READ, self.read)
        self._results()
        assert self.read.raw == self.buffers.raw
        self._submit(self.WRITE, self.buffers)
        return digest(self.read.raw, self.turn), self.done

    def work(self) -> None:
        self._results()
        self.turn += 1
        self._write()
