"""One worker process as the agent sees it: its channel, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.workers import channel

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

#: A killed process is gone at once, unless the disk holds it.
_DIE_SECONDS = 20.0


class WorkerHandle:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._pidfd = -1

    def greet(self, seconds: float) -> None:
        """Wait until it has started; OSError: it does not come."""
        self._end.settimeout(seconds)
        received = channel.receive(self._end)
        if received is None or not isinstance(received[0], channel.WorkerReady):
            raise OSError("a worker ended at once")
        self._pidfd = os.pidfd_open(received[0].pid)
        self._end.settimeout(None)

    def fileno(self) -> int:
        """Readable when it has sent a message, or is gone."""
        return self._end.fileno()

    def send(self, message: channel.Message, descriptors: Sequence[int] = ()) -> None:
        try:
            channel.send(self._end, message, descriptors)
        except OSError as error:
            _gone(str(error))

    def hear(self) -> list[int]:
        """Wait for ``Done``; its descriptors, ours to close. StoreError: its, gone."""
        try:
            received = channel.receive(self._end)
        except OSError as error:
            _gone(str(error))
        if received is None:
            _gone("")
        if isinstance(received[0], channel.Failed):
            raise received[0].error()
        return received[1]

    def kill(self) -> None:
        """Make it end now; never blocks, idempotent."""
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and wait; idempotent. StoreError: the disk holds it."""
        self.kill()
        gone = True
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            gone = bool(poll.poll(_DIE_SECONDS * 1000))
            os.close(self._pidfd)
            self._pidfd = -1
        self._end.close()
        if not gone:
            raise StoreError(Reason.STORE_FAILED, why="a worker hangs in the store")


def hear_ready(
    waiting: dict[int, WorkerHandle], seconds: float | None
) -> list[list[int]]:
    """Descriptors of those that are done; they leave ``waiting``, by ``fileno``."""
    # The first is waited for that long; None: as long as they live. StoreError: one's.
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    heard: list[list[int]] = []
    try:
        for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000):
            heard.append(waiting.pop(descriptor).hear())
    except BaseException:
        _close(heard)
        raise
    return heard


def hear_all(workers: Iterable[WorkerHandle], seconds: float | None) -> list[list[int]]:
    """Wait for all; their descriptors, in the order in which they come.

    ``seconds`` are for all of them; None: as long as they live.

    Raises:
        StoreError: the error of one, or ``TIMED_OUT``.
    """
    waiting = {worker.fileno(): worker for worker in workers}
    until = None if seconds is None else time.monotonic() + seconds
    heard: list[list[int]] = []
    try:
        while waiting:
            left = None if until is None else max(0.0, until - time.monotonic())
            more = hear_ready(waiting, left)
            heard += more
            if not more:
                break
    except BaseException:
        # Messages of the workers heard before are kept nowhere else.
        _close(heard)
        raise
    if waiting:
        _close(heard)
        raise StoreError(Reason.TIMED_OUT, step="commit", seconds=seconds)
    return heard


def _close(heard: Iterable[list[int]]) -> None:
    for descriptors in heard:
        channel.close_all(descriptors)


def _gone(detail: str) -> NoReturn:
    raise StoreError(
        Reason.STORE_FAILED, why="a worker has ended unexpectedly", detail=detail
    )
