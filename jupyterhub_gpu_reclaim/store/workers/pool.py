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
        #: Servers that hang, while workers of theirs are at work.
        self._given_up: list[ForkServer] = []
        #: Requested, not yet in use.
        self._spare: list[WorkerHandle] = []

    def warm(self) -> None:
        """Request workers that will be wanted soon, without waiting for them."""
        try:
            with self._lock:
                server = self._ready()
                while len(self._spare) < self.size:
                    self._spare.append(server.fork())
        except OSError as error:
            raise _cannot(error) from error

    def start(self, count: int | None = None) -> list[WorkerHandle]:
        """New workers, which wait for their first message; None: as many as it has."""
        wanted = count or self.size
        workers: list[WorkerHandle] = []
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
        with self._lock:
            self._end()
            for server in self._given_up:
                server.kill()
            self._given_up.clear()

    def _fetch(self, workers: list[WorkerHandle], wanted: int) -> None:
        """TimeoutError: it hangs, and is not used again; OSError: they do not come."""
        with self._lock:
            server = self._ready()
            count = wanted - len(workers)
            asked, self._spare = self._spare[:count], self._spare[count:]
        until = time.monotonic() + server.patience
        try:
            while len(workers) < wanted:
                if asked:
                    # One that died while it was spare is no more than one too few.
                    found = _came(asked.pop(), until)
                    workers += [found] if found else []
                    continue
                with self._lock:
                    worker = server.fork()
                asked.append(worker)
                worker.greet(_left(until))
                workers.append(asked.pop())
        except TimeoutError:
            with self._lock:
                self._give_up(server)
            raise
        finally:
            for worker in asked:
                worker.end()
        server.answered()

    def _ready(self) -> ForkServer:
        for server in [each for each in self._given_up if not each.is_needed]:
            self._given_up.remove(server)
            server.kill()
        if self._server is not None and not self._server.lives:
            self._end()
        if self._server is None:
            self._server = ForkServer()
        return self._server

    def _give_up(self, server: ForkServer) -> None:
        if server is self._server:
            self._given_up.append(server)
            self._drop_spare()

    def _end(self) -> None:
        if self._server is not None:
            server = self._server
            self._drop_spare()
            server.end()

    def _drop_spare(self) -> None:
        self._server = None
        spare, self._spare = self._spare, []
        for worker in spare:
            worker.end()


def _came(worker: WorkerHandle, until: float) -> WorkerHandle | None:
    """A spare worker that has started; None, and released, when it has died."""
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
