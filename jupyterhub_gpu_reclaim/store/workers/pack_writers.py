"""All pack writers of one checkpoint: our own, and those of workers.

Thread-safe. Our threads take turns at one, since the interpreter lets one of them work
at a time anyway; what is large goes to the workers, if there are any. Every call raises
``StoreError`` when there is no room or no store, or ``CANCELLED``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
from jupyterhub_gpu_reclaim.store.packing.base_blocks import (
    NO_VERDICTS,
    BaseBlocks,
    BaseChunks,
)
from jupyterhub_gpu_reclaim.store.packing.pack_writer import (
    BUFFER_BYTES,
    COUNTERS,
    PackWriter,
    Recipe,
)
from jupyterhub_gpu_reclaim.store.workers import channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report
    from jupyterhub_gpu_reclaim.store.workers.group import CaptureGroup

#: What is less is taken by the thread that brings it.
_SHARED_BYTES = 4 << 20
#: A buffer is written in less, unless the backend hangs.
_LET_GO_SECONDS = 20.0
#: So long a pack that is being synced is waited for; later it is remains for a sweep.
_SETTLE_SECONDS = 1.0


class PackWriters:
    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        base: BaseBlocks | None,
        group: CaptureGroup | None,
    ) -> None:
        self._verdicts = base.verdicts() if base is not None else NO_VERDICTS
        known = None if base is None else BaseChunks(backend, base, self._verdicts)
        self._counters = np.zeros(COUNTERS, np.int64)
        self._own = PackWriter(backend, recipe, 0, known, self._counters)
        self._group = group
        #: Held while our own takes a buffer.
        self._turn = threading.Lock()
        self._closed = False
        #: Held by the memory that the workers take.
        self._group_turn = threading.Lock()

    def put(self, file: int, first: int, data: memoryview, length: int) -> None:
        with self._its_turn():
            self._own.put(file, first, data, length)

    def share(self, file: int, begin: int, data: memoryview) -> int:
        """Have workers take what is large; how many bytes of it they have taken."""
        if self._group is None or len(data) < _SHARED_BYTES:
            return 0
        length = len(data) // BUFFER_BYTES * BUFFER_BYTES
        address = np.frombuffer(data, np.uint8).ctypes.data
        areas = np.array([(address, length)], np.int64)
        self.take_memory(file, begin, ProcessMemory(os.getpid(), areas))
        return length

    def take_memory(self, file: int, begin: int, memory: ProcessMemory) -> None:
        """Take the memory of a process that stands; OSError: it has ended."""
        # Most processes are small; only what is not is worth the workers.
        if memory.length > BUFFER_BYTES and self._group is not None:
            with self._group_turn:
                return self._group.take_memory(file, begin, memory)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        for number in range(channel.parts(memory.length)):
            part = channel.part_of(memory.length, number)
            with self._its_turn():
                self._own.put_memory(file, begin, memory, part, buffer)
        return None

    def counted(self, column: int) -> int:
        """``LOGICAL``: plain bytes taken so far; ``STORED`` and ``KNOWN`` of them."""
        own = int(self._counters[column])
        return own + (self._group.counted(column) if self._group is not None else 0)

    def verdicts(self) -> NDArray[np.uint8]:
        if self._group is None:
            return self._verdicts
        return np.maximum(self._verdicts, self._group.verdicts)

    def reports(self, timeout: float) -> list[Report]:
        """Of all; no thread may be writing. They settle in the background then."""
        self._closed = True
        if self._group is not None:
            self._group.begin_report(timeout)
        reports = [self._own.report()]
        if self._group is not None:
            reports += self._group.reports(timeout)
        return reports

    def settled(self, timeout: float) -> None:
        """Wait until all that was reported is durable, and was read back."""
        until = time.monotonic() + timeout
        self._own.packs.settled(timeout)
        if self._group is not None:
            self._group.settled(max(0.0, until - time.monotonic()))

    def cancel(self) -> None:
        """Make every thread in these calls return soon; idempotent, never blocks."""
        self._closed = True
        if self._group is not None:
            self._group.cancel()

    def abandon(self) -> None:
        """Release everything; when it returns nothing new appears in the backend."""
        # Idempotent. It waits for the buffers that are being written, and the packs
        # that are being synced, but not for ever.
        self.cancel()
        if self._group is not None:
            self._group.stop()
        waited = self._turn.acquire(timeout=_LET_GO_SECONDS)
        self._own.packs.abandon()
        if waited:
            self._turn.release()
        self._own.packs.let_end(_SETTLE_SECONDS)

    @contextlib.contextmanager
    def _its_turn(self) -> Iterator[None]:
        with self._turn:
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            yield
