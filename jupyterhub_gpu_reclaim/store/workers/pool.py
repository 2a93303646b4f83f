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
#: A new server has to import everything before it forks.
BEGIN_SECONDS = 30.0


class Pool:
    """``workers``: on one capture or restore; None: the cores, at most MOST_WORKERS."""

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0))
        self.size = min(workers or cores, MOST_WORKERS)
        self._lock = threading.Lock()
        self._server: ForkServer | None = None

    def warm(self) -> None:
        """Begin what workers are forked from, which takes a while, without waiting."""
        try:
            with self._lock:
                self._living()
        except OSError as error:
            raise _cannot(error) from error

    def start(self, count: int | None = None) -> list[WorkerHandle]:
        """New workers, which wait for their first message; None: as many as it has."""
        workers: list[WorkerHandle] = []
        server: ForkServer | None = None
        try:
            with self._lock:
                server = self._living()
                workers.extend(server.fork() for _ in range(count or self.size))
            until = time.monotonic() + BEGIN_SECONDS
            for worker in workers:
                worker.greet(max(0.01, until - time.monotonic()))
        except OSError as error:
            for worker in workers:
                worker.end()
            if server is not None and isinstance(error, TimeoutError):
                # It hangs: the next capture or restore has another one.
                with self._lock:
                    server.kill()
            raise _cannot(error) from error
        return workers

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.kill()

    def _living(self) -> ForkServer:
        """The caller holds the lock."""
        if self._server is None or not self._server.lives:
            if self._server is not None:
                self._server.kill()
            self._server = ForkServer()
        return self._server


def _cannot(error: Exception) -> StoreError:
    return StoreError(
        Reason.STORE_FAILED, why="no worker can be started", detail=str(error)
    )
