"""The pool's side of one fork server: requests workers, gives up when it hangs.

The caller must serialise the calls. What a worker does is not known here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

from jupyterhub_gpu_reclaim.store.workers import channel
from jupyterhub_gpu_reclaim.store.workers.handle import Worker

#: One that has forked before does it within milliseconds; a new one has to import.
_FORK_SECONDS, _BEGIN_SECONDS = 5.0, 30.0
_END_SECONDS = 30.0
_ENV = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Zygote:
    """A process that forks workers (:mod:`.fork_server`), started here.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_FORK_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m"),
                    "jupyterhub_gpu_reclaim.store.workers.fork_server",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENV},
            )
        self._workers: list[Worker] = []
        self._patience = _BEGIN_SECONDS

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended; it may hang."""
        return self._process.poll() is None

    @property
    def is_needed(self) -> bool:
        """Whether some worker of it is at work, which would die with it."""
        self._workers = [worker for worker in self._workers if not worker.ended]
        return bool(self._workers)

    @property
    def patience(self) -> float:
        """Seconds in which a worker that was asked for must be there."""
        return self._patience

    def answered(self) -> None:
        """A worker has come: it has imported all that it needs."""
        self._patience = _FORK_SECONDS

    def ask(self) -> Worker:
        """A worker that is about to come; see :meth:`Worker.greet`.

        Raises:
            OSError: it cannot be asked.
        """
        ours, theirs = channel.pair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        worker = Worker(ours)
        self._workers.append(worker)
        return worker

    def kill(self) -> None:
        """End it and its workers now, whatever it does."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self.end()

    def end(self) -> None:
        """Let it end; its workers end with it."""
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
