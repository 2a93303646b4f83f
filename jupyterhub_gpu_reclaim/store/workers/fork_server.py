"""The process from which workers are forked: everything imported, no thread, no secret.

Started as ``python -m …`` with one end of a socket. The agent itself has threads
and must never be forked; this process has none, so a worker is there within
milliseconds and shares its memory. It opens no backend and gets no key: a worker's job
comes over the worker's own channel. When the agent ends, in whatever way, the socket
ends, this process ends, and the kernel kills its workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys

from jupyterhub_gpu_reclaim.store.workers import worker

_PR_SET_PDEATHSIG = 1


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
            _spawn(control, descriptors[0])
            os.close(descriptors[0])


def _spawn(control: socket.socket, descriptor: int) -> None:
    zygote = os.getpid()
    try:
        if os.fork():
            return
    except OSError:
        return  # its channel closes, and the agent sees that
    control.close()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() == zygote:
            worker.main(socket.socket(fileno=descriptor))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
