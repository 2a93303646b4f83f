"""Worker processes: started within milliseconds, from a process that is ready for it.

Made once by the agent (or the command line) and handed to the repository; called from
several threads at once. It hands out workers for a capture or a copy, and knows nothing
of what they do. :meth:`Pool.close` at the end; without it the kernel ends them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store import channel
from jupyterhub_gpu_reclaim.store.hands import Worker

#: More do not help: the memory is the limit then.
MOST_WORKERS = 16
_START_SECONDS = 30.0
_ENV = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


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
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        #: Asked for, not yet wanted by anybody.
        self._spare: list[Worker] = []

    def warm(self) -> None:
        """Be ready soon: ask for workers that will be wanted, but do not wait for them.

        Raises:
            StoreError: they cannot be asked for.
        """
        try:
            with self._lock:
                self._ready()
                while len(self._spare) < self.size:
                    self._spare.append(Worker(self._ask()))
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
            with self._lock:
                self._ready()  # without the spare ones of a zygote that is dead
                spare, self._spare = self._spare[:wanted], self._spare[wanted:]
            workers += [worker for worker in spare if _came(worker)]
            came = len(workers)
            while len(workers) < wanted:
                with self._lock:
                    workers.append(Worker(self._ask()))
            for worker in workers[came:]:
                worker.greet(_START_SECONDS)
        except (OSError, TimeoutError) as error:
            for worker in workers:
                worker.end()
            raise _cannot(error) from error
        return workers

    def close(self) -> None:
        """End every worker; idempotent."""
        with self._lock:
            self._end()

    def _ask(self) -> socket.socket:
        ours, theirs = channel.pair()
        with theirs:
            try:
                socket.send_fds(self._ready(), [b"w"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    def _ready(self) -> socket.socket:
        """The socket of a zygote that lives."""
        if self._control is not None and self._zygote is not None:
            if self._zygote.poll() is None:
                return self._control
            self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._zygote = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m"),
                    "jupyterhub_gpu_reclaim.store.zygote",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENV},
            )
        self._control = ours
        return ours

    def _end(self) -> None:
        control, self._control = self._control, None
        zygote, self._zygote = self._zygote, None
        spare, self._spare = self._spare, []
        for worker in spare:
            worker.end()
        if control is not None:
            control.close()
        if zygote is not None:
            try:
                zygote.wait(_START_SECONDS)
            except subprocess.TimeoutExpired:
                zygote.kill()
                zygote.wait()


def _came(worker: Worker) -> bool:
    """Whether a spare worker is there; one that died meanwhile is let go of."""
    try:
        worker.greet(_START_SECONDS)
    except OSError:
        worker.end()
        return False
    return True


def _cannot(error: Exception) -> StoreError:
    return StoreError(
        Reason.STORE_FAILED, why="no worker can be started", detail=str(error)
    )
