"""All pack writers of one checkpoint: those of our own threads, and those of workers.

Safe to call from many threads. A thread takes an idle pack writer, gives it a buffer,
and returns it; a pipe goes to the workers, where there are any.
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
from jupyterhub_gpu_reclaim.store.packing.pack_writer import (
    KNOWN,
    LOGICAL,
    SLOT_BYTES,
    STORED,
    Lane,
    Recipe,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.packing.dedup_index import Known
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report
    from jupyterhub_gpu_reclaim.store.workers.group import CaptureCrew

#: Pack writers of our own threads, which take turns. Those of workers come after.
OWN = 8
#: A buffer is written in less, unless the backend hangs.
_LET_GO_SECONDS = 20.0
#: So long a pack that is being synced is waited for; later it is remains for a sweep.
_SETTLE_SECONDS = 1.0


class Lanes:
    """All pack writers of a checkpoint.

    Args:
        backend: where to.
        recipe: of the checkpoint.
        known: chunks of the last generation.
        crew: group of workers for pipes; None: our own threads take them.
    """

    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        known: Known | None,
        crew: CaptureCrew | None,
    ) -> None:
        self._backend = backend
        self._recipe = recipe
        self._known = known
        self._crew = crew
        self._turn = threading.Condition()
        self._idle: list[Lane] = []
        self._busy = 0
        self._made: list[Lane] = []
        self._closed = False
        self._meter = np.zeros((OWN, 3), np.int64)
        #: Of the threads that wait for a pipe: written to, to cancel them.
        self._wakes: set[int] = set()
        #: Held by the pipe that the workers take; another is taken by its own thread.
        self._crew_turn = threading.Lock()

    def put(self, file: int, first: int, data: memoryview, length: int) -> None:
        """Pass a buffer to a pack writer; see :meth:`Lane.put`.

        Raises:
            StoreError: no room, no store, or cancelled.
        """
        with self._lane() as lane:
            lane.put(file, first, data, length)

    def take_pipe(self, file: int, pipe: int) -> int:
        """Take all that comes out of a pipe as one file; return its length.

        Raises:
            StoreError: no room, no store, or cancelled.
        """
        chunk = self._recipe.chunk_bytes
        slot = memoryview(bytearray(SLOT_BYTES))
        total = 0
        with self._waking() as wake:
            while (filled := buffers.fill(pipe, wake, slot)) == SLOT_BYTES:
                self.put(file, total // chunk, slot, filled)
                total += filled
                # Most processes are small; only what is not is worth the workers.
                if self._crew is not None and self._crew_turn.acquire(blocking=False):
                    try:
                        return self._crew.take_pipe(file, pipe, total)
                    finally:
                        self._crew_turn.release()
            if filled:
                whole = filled + -filled % chunk
                slot[filled:whole] = bytes(whole - filled)
                self.put(file, total // chunk, slot[:whole], filled)
        return total + filled

    @property
    def logical(self) -> int:
        """Plain bytes taken so far."""
        return self._sum(LOGICAL)

    @property
    def stored(self) -> int:
        """Bytes written for them so far."""
        return self._sum(STORED)

    @property
    def known_bytes(self) -> int:
        """Plain bytes that stood there already."""
        return self._sum(KNOWN)

    def reports(self, timeout: float) -> list[Report]:
        """What all pack writers have written; no thread may be writing.

        It settles in the background from now on; see :meth:`settled`.

        Args:
            timeout: seconds to wait for the disk.

        Raises:
            StoreError: no room, or no store.
        """
        with self._turn:
            self._closed = True
        crew = self._crew
        if crew is not None:
            crew.begin_report(timeout)
        reports = [lane.report() for lane in self._made]
        if crew is not None:
            reports += crew.reports(timeout)
        return reports

    def settled(self, timeout: float) -> None:
        """Wait until all that was reported is durable, and was read back.

        Args:
            timeout: seconds to wait for the disk.

        Raises:
            StoreError: something is not durable, or reads back differently.
        """
        until = time.monotonic() + timeout
        for lane in self._made:
            lane.settled(_left(until))
        if self._crew is not None:
            self._crew.settled(_left(until))

    def call_off(self) -> None:
        """Make every thread in these calls return soon; idempotent, never blocks."""
        with self._turn:
            self._closed = True
            for wake in self._wakes:
                os.eventfd_write(wake, 1)
            self._turn.notify_all()
        if self._crew is not None:
            self._crew.call_off()

    def abandon(self) -> None:
        """Release everything; when it returns nothing new appears in the backend.

        Idempotent. It waits for the buffers that are being written, and the packs that
        are being synced, but not for ever.
        """
        self.call_off()
        if self._crew is not None:
            self._crew.stop()
        with self._turn:
            self._turn.wait_for(lambda: not self._busy, _LET_GO_SECONDS)
        for lane in self._made:
            lane.abandon()
        until = time.monotonic() + _SETTLE_SECONDS
        for lane in self._made:
            lane.let_end(_left(until))

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
    def _lane(self) -> Iterator[Lane]:
        lane = self._take()
        try:
            yield lane
        except BaseException:
            with self._turn:
                self._busy -= 1
                self._turn.notify_all()
            lane.abandon()
            raise
        with self._turn:
            self._busy -= 1
            self._idle.append(lane)
            self._turn.notify_all()

    def _take(self) -> Lane:
        with self._turn:
            self._turn.wait_for(
                lambda: self._closed or self._idle or len(self._made) < OWN
            )
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            if not self._idle:
                number = len(self._made)
                lane = Lane(
                    self._backend,
                    self._recipe,
                    number,
                    self._known,
                    self._meter[number],
                )
                self._made.append(lane)
                self._idle.append(lane)
            self._busy += 1
            return self._idle.pop()

    def _sum(self, column: int) -> int:
        own = int(self._meter[:, column].sum())
        return own + (self._crew.counted(column) if self._crew is not None else 0)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
