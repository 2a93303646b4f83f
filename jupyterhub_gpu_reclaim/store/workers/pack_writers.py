"""All pack writers of one checkpoint: those of our own threads, and those of workers.

Thread-safe. A thread takes an idle pack writer, gives it a buffer, and returns it; a
pipe goes to the workers, if there are any. Every call raises ``StoreError`` when there
is no room or no store, or ``CANCELLED``.
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
from jupyterhub_gpu_reclaim.store.packing import buffers
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report
    from jupyterhub_gpu_reclaim.store.workers.group import CaptureGroup

#: Pack writers of our own threads, which take turns. Those of workers come after.
OWN = 8
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
        self._backend = backend
        self._recipe = recipe
        self._base = base
        self._verdicts = base.verdicts() if base is not None else NO_VERDICTS
        self._group = group
        self._turn = threading.Condition()
        self._idle: list[PackWriter] = []
        self._busy = 0
        self._made: list[PackWriter] = []
        self._closed = False
        self._counters = np.zeros((OWN, COUNTERS), np.int64)
        #: Of the threads that wait for a pipe: written to, to cancel them.
        self._wakes: set[int] = set()
        #: Held by the pipe that the workers take; another is taken by its own thread.
        self._group_turn = threading.Lock()

    def put(self, file: int, first: int, data: memoryview, length: int) -> None:
        with self._writer() as writer:
            writer.put(file, first, data, length)

    def take_pipe(self, file: int, pipe: int) -> int:
        """Read a pipe to its end as one file; return its length."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        total = 0
        with self._waking() as wake:
            while filled := buffers.fill(pipe, wake, buffer):
                with self._writer() as writer:
                    writer.put_padded(file, total, buffer, filled)
                total += filled
                if filled < BUFFER_BYTES:
                    break
                # Most processes are small; only what is not is worth the workers.
                if self._group is not None and self._group_turn.acquire(blocking=False):
                    try:
                        return self._group.take_pipe(file, pipe, total)
                    finally:
                        self._group_turn.release()
        return total

    def counted(self, column: int) -> int:
        """``LOGICAL``: plain bytes taken so far; ``STORED`` and ``KNOWN`` of them."""
        own = int(self._counters[:, column].sum())
        return own + (self._group.counted(column) if self._group is not None else 0)

    def verdicts(self) -> NDArray[np.uint8]:
        if self._group is None:
            return self._verdicts
        return np.maximum(self._verdicts, self._group.verdicts())

    def reports(self, timeout: float) -> list[Report]:
        """Of all; no thread may be writing. They settle in the background then."""
        with self._turn:
            self._closed = True
        if self._group is not None:
            self._group.begin_report(timeout)
        reports = [writer.report() for writer in self._made]
        if self._group is not None:
            reports += self._group.reports(timeout)
        return reports

    def settled(self, timeout: float) -> None:
        """Wait until all that was reported is durable, and was read back."""
        until = time.monotonic() + timeout
        for writer in self._made:
            writer.packs.settled(_left(until))
        if self._group is not None:
            self._group.settled(_left(until))

    def cancel(self) -> None:
        """Make every thread in these calls return soon; idempotent, never blocks."""
        with self._turn:
            self._closed = True
            for wake in self._wakes:
                os.eventfd_write(wake, 1)
            self._turn.notify_all()
        if self._group is not None:
            self._group.cancel()

    def abandon(self) -> None:
        """Release everything; when it returns nothing new appears in the backend."""
        # Idempotent. It waits for the buffers that are being written, and the packs
        # that are being synced, but not for ever.
        self.cancel()
        if self._group is not None:
            self._group.stop()
        with self._turn:
            self._turn.wait_for(lambda: not self._busy, _LET_GO_SECONDS)
        for writer in self._made:
            writer.packs.abandon()
        until = time.monotonic() + _SETTLE_SECONDS
        for writer in self._made:
            writer.packs.let_end(_left(until))

    @contextlib.contextmanager
    def _waking(self) -> Iterator[int]:
        wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            with self._turn:
                if self._closed:
                    raise StoreError(Reason.CANCELLED)
                self._wakes.add(wake)
            yield wake
        finally:
            with self._turn:
                self._wakes.discard(wake)
            os.close(wake)

    @contextlib.contextmanager
    def _writer(self) -> Iterator[PackWriter]:
        writer = self._take()
        idle = False
        try:
            yield writer
            idle = True
        finally:
            with self._turn:
                self._busy -= 1
                if idle:
                    self._idle.append(writer)
                self._turn.notify_all()
            if not idle:
                writer.packs.abandon()

    def _take(self) -> PackWriter:
        with self._turn:
            self._turn.wait_for(
                lambda: self._closed or self._idle or len(self._made) < OWN
            )
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            if not self._idle:
                number = len(self._made)
                writer = PackWriter(
                    self._backend,
                    self._recipe,
                    number,
                    self._chunks(),
                    self._counters[number],
                )
                self._made.append(writer)
                self._idle.append(writer)
            self._busy += 1
            return self._idle.pop()

    def _chunks(self) -> BaseChunks | None:
        if self._base is None:
            return None
        return BaseChunks(self._backend, self._base, self._verdicts)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
