"""Groups of workers on one checkpoint: those of a capture, and those of a copy.

Anything that workers share is set up here: tickets, counters.
Each call raises ``StoreError``: a worker's error, that none comes, that one cannot be
killed, ``TIMED_OUT`` or ``CANCELLED``.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format.index import BLOCKS
from jupyterhub_gpu_reclaim.store.packing.base_blocks import NO_VERDICTS
from jupyterhub_gpu_reclaim.store.packing.pack_writer import COUNTERS, Report
from jupyterhub_gpu_reclaim.store.workers import channel
from jupyterhub_gpu_reclaim.store.workers.channel import close_all
from jupyterhub_gpu_reclaim.store.workers.handle import hear_all, hear_ready

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
    from jupyterhub_gpu_reclaim.store.backend import Spec
    from jupyterhub_gpu_reclaim.store.packing.base_blocks import BaseBlocks
    from jupyterhub_gpu_reclaim.store.packing.blocks import BlockSource
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe
    from jupyterhub_gpu_reclaim.store.read.memory_restore import CopyPlan
    from jupyterhub_gpu_reclaim.store.workers.handle import WorkerHandle
    from jupyterhub_gpu_reclaim.store.workers.pool import Pool


class CaptureGroup:
    """The workers of one capture; they begin at once."""

    def __init__(
        self,
        pool: Pool,
        spec: Spec,
        recipe: Recipe,
        base: BaseBlocks | None,
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._recipe = recipe
        self._base = base
        self.verdicts = base.verdicts() if base is not None else NO_VERDICTS
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[WorkerHandle] = []
        self._counters = np.zeros((1, COUNTERS), np.int64)
        # Nobody waits for them here: a session stands still for the rest.
        self._beginning = threading.Thread(
            target=self._begin, name="workers", daemon=True
        )
        self._beginning.start()

    def take_memory(self, file: int, begin: int, memory: ProcessMemory) -> None:
        """Let all read a process's memory, one process at a time."""
        areas = channel.share("memory", memory.pid, memory.areas)
        tickets = channel.tickets(channel.parts(memory.length))
        try:
            workers = self._ready()
            for worker in workers:
                worker.send(channel.TakeMemory(file, begin), [areas, tickets])
            hear_all(workers, None)
        except StoreError:
            was_cancelled = self._closed
            self.stop()
            if was_cancelled:
                raise StoreError(Reason.CANCELLED) from None
            raise
        finally:
            close_all([areas, tickets])

    def counted(self, column: int) -> int:
        return int(self._counters[:, column].sum())

    def begin_report(self, seconds: float) -> None:
        """Tell all of them to report, and then to settle within that time."""
        self._beginning.join()
        for worker in self._workers:
            worker.send(channel.Finish(seconds))

    def reports(self, seconds: float) -> list[Report]:
        """Report of each worker, which then settles in the background."""
        found = []
        for descriptors in hear_all(self._workers, seconds):
            kinds = (BLOCKS, *map(np.dtype, ("<u8", "<i8", "<i8")))
            packs, columns = channel.shared(
                descriptors[0], list[tuple[int, int]], *kinds
            )
            close_all(descriptors)
            found.append(Report(packs, *columns))
        return found

    def settled(self, seconds: float) -> None:
        """Wait until all that was reported is durable and was read back; end them."""
        hear_all(self._workers, seconds)
        self.stop()

    def cancel(self) -> None:
        """Kill them; never blocks, idempotent. Callers that wait get an error."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()

    def stop(self) -> None:
        """Kill them, and wait until they are gone: nothing is written any more."""
        self.cancel()
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        # The shared memory has descriptors.
        self._counters, self.verdicts = self._counters.copy(), self.verdicts.copy()

    def _begin(self) -> None:
        with suppress(StoreError):  # the first order tells
            self._ready()

    def _ready(self) -> list[WorkerHandle]:
        with self._lock:
            if self._closed:
                raise StoreError(Reason.CANCELLED)
            if not self._workers:
                self._workers = self._pool.start()
                self._employ()
            return list(self._workers)

    def _employ(self) -> None:
        # A row for each worker, which is its only writer; they can be read meanwhile.
        count = len(self._workers)
        descriptor, self._counters = channel.make_array(count, np.int64, COUNTERS)
        descriptors = [descriptor]
        try:
            if (base := self._base) is not None and len(base.known):
                ids = base.known.table
                descriptors.append(channel.share("base", base.body, base.table, ids))
                looked, self.verdicts = channel.make_array(len(base.table), np.uint8)
                descriptors.append(looked)
            for row, worker in enumerate(self._workers):
                job = channel.BeginCapture(self._spec, self._recipe, row)
                worker.send(job, descriptors)
        finally:
            close_all(descriptors)


class CopyGroup:
    """The workers of one copy; see :class:`Copiers`."""

    def __init__(self, pool: Pool, source: BlockSource, planned: CopyPlan) -> None:
        count = len(planned.tickets) - 1
        self._workers = pool.start(min(pool.size, count))
        copying = len(self._workers)
        shared, self._counters = channel.make_array(copying, np.int64, COUNTERS)
        spec = source.backend.spec()
        head = channel.CopyJob(spec, source.body, planned.tickets)
        job = channel.share("copy-job", head, source.table, planned.rows)
        tickets = channel.tickets(count)
        try:
            for row, worker in enumerate(self._workers):
                worker.send(channel.BeginCopy(row), [job, shared, tickets])
        except BaseException:
            self.end()
            raise
        finally:
            close_all([job, shared, tickets])
        self._waiting = {worker.fileno(): worker for worker in self._workers}

    def wait(self, seconds: float) -> bool:
        hear_ready(self._waiting, seconds)
        return not self._waiting

    def done(self) -> int:
        return int(self._counters[:, 0].sum())

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()
        self._counters = self._counters.copy()  # the shared memory has a descriptor
