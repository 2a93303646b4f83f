"""The process from which workers are forked: everything imported, no thread, no secret.

The agent has threads and must never fork. The fork server opens no backend and gets no
key; when the agent ends, in whatever way, its socket ends, it ends, and the kernel
kills its workers.

Not ``multiprocessing``'s forkserver (tried, Python 3.11): its workers hold the pipe
that keeps the server alive, so they would go on writing into the store after the agent
was killed; ``Process.start`` beside a stopped server waits for ever; and three workers
came in 300 ms instead of 26 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys

from jupyterhub_gpu_reclaim.store.workers import channel, worker
from jupyterhub_gpu_reclaim.store.workers.handle import WorkerHandle

#: So long it may not take the next request, which waits in its socket.
_FORK_SECONDS = 5.0
_ENV = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """The agent's side; the caller serialises the calls. OSError: it cannot start."""

    def __init__(self) -> None:
        self._control, theirs = channel.pair()
        self._control.settimeout(_FORK_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENV},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        """It may hang."""
        return self._process.poll() is None

    def fork(self) -> WorkerHandle:
        """A worker that will come: :meth:`WorkerHandle.greet`; OSError: server gone."""
        ours, theirs = channel.pair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return WorkerHandle(ours)

    def kill(self) -> None:
        """End it and its workers now, even if it hangs."""
        self._process.kill()
        self._process.wait()
        self._control.close()


def main() -> None:
    """Fork a worker for every socket that comes, until the agent is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # What a terminal sends to a whole group of processes is the agent's business.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the workers
    # A collection would touch every object, and copy every page, in every worker.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                break
            _fork_worker(control, descriptors[0])
            os.close(descriptors[0])


def _fork_worker(control: socket.socket, descriptor: int) -> None:
    server = os.getpid()
    try:
        if os.fork():
            return
    except OSError:
        return  # its channel closes, and the agent sees that
    control.close()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() == server:
            worker.main(socket.socket(fileno=descriptor))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
