"""Groups of workers on one checkpoint: those of a capture, and those of a copy.

What several workers share is set up here: a pipe with its token, tickets, counters.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report
from jupyterhub_gpu_reclaim.store.workers import channel, counters, handle
from jupyterhub_gpu_reclaim.store.workers.channel import close_all
from jupyterhub_gpu_reclaim.store.workers.copy_job import share_job
from jupyterhub_gpu_reclaim.store.workers.worker import TICKET_BYTES, TOKEN_BYTES

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Spec
    from jupyterhub_gpu_reclaim.store.packing.dedup_index import Known
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
    from jupyterhub_gpu_reclaim.store.read.memory_restore import Plan, Source
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool


class CaptureCrew:
    """The workers of one capture; they come with the first pipe.

    Args:
        pool: where they come from.
        spec: of the backend.
        recipe: of the checkpoint.
        known: chunks of the last generation.
        first_lane: number of the first worker's pack writer.
    """

    def __init__(
        self,
        pool: Pool,
        spec: Spec,
        recipe: Recipe,
        known: Known | None,
        *,
        first_lane: int,
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._recipe = recipe
        self._known = known
        self._first_lane = first_lane
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[handle.Worker] = []
        self._meter = np.zeros((1, counters.COLUMNS), np.int64)

    def take_pipe(self, file: int, pipe: int, offset: int) -> int:
        """Let all of them read a pipe to its end; one pipe at a time.

        Args:
            file: its number.
            pipe: neither closed nor changed here.
            offset: of what comes out of it in the file, a multiple of a buffer.

        Returns:
            How long the file is.

        Raises:
            StoreError: what went wrong with one of them, or ``CANCELLED``.
        """
        token_out, token_in = os.pipe2(os.O_CLOEXEC)
        try:
            workers = self._ready()
            for worker in workers:
                worker.tell(channel.TakePipe(file), [pipe, token_out, token_in])
            os.write(token_in, offset.to_bytes(TOKEN_BYTES, "little"))
            heard = handle.hear_all(workers, None)
        except StoreError:
            was_called_off = self._closed
            self.stop()
            if was_called_off:
                raise StoreError(Reason.CANCELLED) from None
            raise
        finally:
            close_all([token_out, token_in])
        return max(
            message.total for message, _ in heard if isinstance(message, channel.Taken)
        )

    def counted(self, column: int) -> int:
        """Sum of one of the counters of all pack writers."""
        return int(self._meter[:, column].sum())

    def begin_report(self, seconds: float) -> None:
        """Tell all of them to report, and then to settle within some seconds.

        Raises:
            StoreError: one of them is gone.
        """
        for worker in self._workers:
            worker.tell(channel.Finish(seconds))

    def reports(self, seconds: float) -> list[Report]:
        """What each has written; it settles in the background.

        Raises:
            StoreError: what went wrong with one of them, or ``TIMED_OUT``.
        """
        found = []
        for _, descriptors in handle.hear_all(self._workers, seconds):
            memory = mmap.mmap(descriptors[0], 0, prot=mmap.PROT_READ)
            close_all(descriptors)
            found.append(Report.of_bytes(memoryview(memory)))
        return found

    def settled(self, seconds: float) -> None:
        """Wait until all that was reported is durable and was read back.

        They are gone then.

        Raises:
            StoreError: what went wrong with one of them, or ``TIMED_OUT``.
        """
        handle.hear_all(self._workers, seconds)
        self.stop()

    def call_off(self) -> None:
        """Kill them; never blocks, idempotent. What waits for them gets an error."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()

    def stop(self) -> None:
        """Kill them, and wait until they are gone: nothing is written any more.

        Raises:
            StoreError: one cannot be killed.
        """
        self.call_off()
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()

    def _ready(self) -> list[handle.Worker]:
        with self._lock:
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            if not self._workers:
                self._workers = self._pool.start()
                self._employ()
            return list(self._workers)

    def _employ(self) -> None:
        descriptor, self._meter = counters.make(len(self._workers))
        descriptors = [descriptor]
        try:
            if self._known is not None and len(self._known):
                descriptors.append(self._known.share())
            for row, worker in enumerate(self._workers):
                job = channel.Capture(
                    self._spec, self._recipe, self._first_lane + row, row
                )
                worker.tell(job, descriptors)
        finally:
            close_all(descriptors)


class CopyCrew:
    """The workers of one copy.

    Args:
        pool: where they come from.
        source: of the blocks.
        spec: of its backend.
        planned: what is to be copied.

    Raises:
        StoreError: they do not come.
    """

    def __init__(self, pool: Pool, source: Source, spec: Spec, planned: Plan) -> None:
        count = len(planned.tickets) - 1
        self._workers = pool.start(min(pool.size, count))
        meter, self._meter = counters.make(len(self._workers))
        job = share_job(spec, source.body, source.table, planned)
        tickets_out, tickets_in = os.pipe2(os.O_CLOEXEC)
        try:
            # All of them fit into the pipe: see filling's limit.
            numbers = range(count)
            os.write(
                tickets_in,
                b"".join(one.to_bytes(TICKET_BYTES, "little") for one in numbers),
            )
            for row, worker in enumerate(self._workers):
                worker.tell(channel.Copy(row), [job, meter, tickets_out])
        except BaseException:
            self.end()
            raise
        finally:
            close_all([job, meter, tickets_out, tickets_in])
        self._waiting = list(self._workers)

    def wait(self, seconds: float) -> bool:
        """Whether all is done.

        Raises:
            StoreError: what went wrong with one of them.
        """
        self._waiting = handle.wait_some(self._waiting, seconds)
        return not self._waiting

    def done(self) -> int:
        """Bytes written so far."""
        return int(self._meter[:, 0].sum())

    def end(self) -> None:
        """Kill workers that still work, and wait until none writes any more.

        Raises:
            StoreError: one cannot be killed.
        """
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()
