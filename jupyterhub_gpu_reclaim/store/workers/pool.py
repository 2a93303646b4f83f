"""The pool of worker processes, which start within milliseconds from a fork server.

Safe to call from several threads at once. It provides workers for a capture or a copy,
and knows nothing of what they do. A fork server that does not answer is replaced. Call
:meth:`Pool.close` at the end; without it the kernel ends the processes.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.workers.fork_client import Zygote

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.workers.handle import Worker

#: More do not help: the memory is the limit then.
MOST_WORKERS = 16


class Pool:
    """A source of workers.

    Args:
        workers: how many work on one capture or restore; None: one for each core, but
            no more than :data:`MOST_WORKERS`.
    """

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0))
        self.size = min(workers or cores, MOST_WORKERS)
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        #: Those that hang, while workers of theirs are at work.
        self._given_up: list[Zygote] = []
        #: Requested, not yet in use.
        self._spare: list[Worker] = []

    def warm(self) -> None:
        """Be ready soon: ask for workers that will be wanted, but do not wait for them.

        Raises:
            StoreError: they cannot be asked for.
        """
        try:
            with self._lock:
                zygote = self._ready()
                while len(self._spare) < self.size:
                    self._spare.append(zygote.ask())
        except OSError as error:
            raise _cannot(error) from error

    def start(self, count: int | None = None) -> list[Worker]:
        """New workers, which wait for their first message.

        Args:
            count: how many; None: as many as the pool has.

        Raises:
            StoreError: they do not come.
        """
        wanted = count or self.size
        workers: list[Worker] = []
        try:
            try:
                self._fetch(workers, wanted)
            except TimeoutError:
                # It lives and does not answer: another one is tried, once.
                self._fetch(workers, wanted)
        except OSError as error:
            for worker in workers:
                worker.end()
            raise _cannot(error) from error
        return workers

    def close(self) -> None:
        """End every worker; idempotent."""
        with self._lock:
            self._end()
            for zygote in self._given_up:
                zygote.kill()
            self._given_up.clear()

    def _fetch(self, workers: list[Worker], wanted: int) -> None:
        """Workers of one fork server, until there are as many as wanted.

        Raises:
            TimeoutError: it hangs, and is not used again.
            OSError: they do not come.
        """
        with self._lock:
            zygote = self._ready()
            count = wanted - len(workers)
            asked, self._spare = self._spare[:count], self._spare[count:]
        until = time.monotonic() + zygote.patience
        try:
            while len(workers) < wanted:
                if asked:
                    # One that died while it was spare is no more than one too few.
                    found = _came(asked.pop(), until)
                    workers += [found] if found else []
                    continue
                with self._lock:
                    worker = zygote.ask()
                asked.append(worker)
                worker.greet(_left(until))
                workers.append(asked.pop())
        except TimeoutError:
            with self._lock:
                self._give_up(zygote)
            raise
        finally:
            for worker in asked:
                worker.end()
        zygote.answered()

    def _ready(self) -> Zygote:
        """A live fork server; hung ones are dropped once they are not in use."""
        for zygote in [each for each in self._given_up if not each.is_needed]:
            self._given_up.remove(zygote)
            zygote.kill()
        if self._zygote is not None and not self._zygote.lives:
            self._end()
        if self._zygote is None:
            self._zygote = Zygote()
        return self._zygote

    def _give_up(self, zygote: Zygote) -> None:
        if zygote is self._zygote:
            self._zygote = None
            spare, self._spare = self._spare, []
            for worker in spare:
                worker.end()
            self._given_up.append(zygote)

    def _end(self) -> None:
        zygote, self._zygote = self._zygote, None
        spare, self._spare = self._spare, []
        for worker in spare:
            worker.end()
        if zygote is not None:
            zygote.end()


def _came(worker: Worker, until: float) -> Worker | None:
    """A spare worker that is there; None, and released, when it has died."""
    try:
        worker.greet(_left(until))
    except TimeoutError:
        worker.end()
        raise
    except OSError:
        worker.end()
        return None
    return worker


def _left(until: float) -> float:
    return max(0.01, until - time.monotonic())


def _cannot(error: Exception) -> StoreError:
    return StoreError(
        Reason.STORE_FAILED, why="no worker can be started", detail=str(error)
    )
