"""The pool of worker processes, which `Pool.close` or the kernel ends. Thread-safe."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.workers.fork_server import ForkServer

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.workers.handle import WorkerHandle

#: More do not help: the memory is the limit then.
MOST_WORKERS = 16


class Pool:
    """``workers``: on one capture or restore; None: the cores, at most MOST_WORKERS."""

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0))
        self.size = min(workers or cores, MOST_WORKERS)
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        #: Requested, not yet in use.
        self._spare: list[WorkerHandle] = []

    def warm(self) -> None:
        """Request workers that will be wanted soon, without waiting for them."""
        try:
            with self._lock:
                self._ask(self.size)
        except OSError as error:
            raise _cannot(error) from error

    def start(self, count: int | None = None) -> list[WorkerHandle]:
        """New workers, which wait for their first message; None: as many as it has."""
        workers: list[WorkerHandle] = []
        try:
            try:
                self._fetch(workers, count or self.size)
            except TimeoutError:
                # The server did not answer, and was ended with them: another one, once.
                workers.clear()
                self._fetch(workers, count or self.size)
        except OSError as error:
            for worker in workers:
                worker.end()
            raise _cannot(error) from error
        return workers

    def close(self) -> None:
        with self._lock:
            self._end()

    def _fetch(self, workers: list[WorkerHandle], wanted: int) -> None:
        """TimeoutError: the server hangs, and was ended with its workers."""
        with self._lock:
            server = self._ask(wanted)
        until, died = time.monotonic() + server.patience, 0
        while len(workers) < wanted:
            with self._lock:
                if not self._spare:
                    server = self._ask(1)
                worker = self._spare.pop(0)
            try:
                worker.greet(max(0.01, until - time.monotonic()))
            except TimeoutError:
                for each in [*workers, worker]:
                    each.end()
                with self._lock:
                    if server is self._server:
                        self._end()
                raise
            except OSError:
                worker.end()  # it died while it was spare; another one is asked for
                died += 1
                if died > self.size:
                    raise
            else:
                workers.append(worker)
        server.answered()

    def _ask(self, count: int) -> ForkServer:
        """Have so many workers on their way; OSError: they cannot be had."""
        if self._server is not None and not self._server.lives:
            self._end()
        if self._server is None:
            self._server = ForkServer()
        while len(self._spare) < count:
            self._spare.append(self._server.fork())
        return self._server

    def _end(self) -> None:
        server, self._server = self._server, None
        spare, self._spare = self._spare, []
        for worker in spare:
            worker.end()
        if server is not None:
            server.kill()


def _cannot(error: Exception) -> StoreError:
    return StoreError(
        Reason.STORE_FAILED, why="no worker can be started", detail=str(error)
    )
