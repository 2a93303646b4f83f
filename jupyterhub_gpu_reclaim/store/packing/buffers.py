"""Fills a pack writer's buffers, and copies only what does not fill one itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from typing import TYPE_CHECKING, Self

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.pack_writer import BUFFER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Buffer


class BufferCutter:
    """Cuts its input into buffers and passes each to ``emit``.

    It gets the buffer, filled up to whole chunks with zeros, and how many of its bytes
    are the file's; the view is valid only until it returns.
    """

    def __init__(
        self, emit: Callable[[memoryview, int], None], chunk_bytes: int
    ) -> None:
        self._emit = emit
        self._chunk = chunk_bytes
        # Most files are small: the buffer grows with what comes.
        self._rest = bytearray()

    def feed(self, data: Buffer) -> None:
        """Take all of it, and emit every buffer that is full by now."""
        view = memoryview(data).cast("B")
        while len(view):
            if not self._rest and len(view) >= BUFFER_BYTES:
                self._emit(view[:BUFFER_BYTES], BUFFER_BYTES)
                view = view[BUFFER_BYTES:]
                continue
            take = BUFFER_BYTES - len(self._rest)
            self._rest += view[:take]
            view = view[take:]
            if len(self._rest) == BUFFER_BYTES:
                self.flush()

    def flush(self) -> None:
        """Emit the rest, a shorter buffer."""
        rest, self._rest = self._rest, bytearray()
        if rest:
            length = len(rest)
            rest.extend(bytes(-length % self._chunk))
            self._emit(memoryview(rest), length)


def fill(pipe: int, wake: int, buffer: memoryview) -> int:
    """Read until a buffer is full or the pipe has ended; return the bytes read.

    Raises:
        StoreError: ``CANCELLED``, ``wake`` became readable.
    """
    filled = 0
    while filled < len(buffer):
        wait(pipe, wake)
        try:
            count = os.readv(pipe, [buffer[filled:]])
        except BlockingIOError:
            continue  # another reader was first
        if not count:
            break
        filled += count
    return filled


def wait(descriptor: int, wake: int) -> None:
    """Wait for input, or its end.

    Raises:
        StoreError: ``CANCELLED``, ``wake`` became readable.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(wake, select.POLLIN)
    if any(ready == wake for ready, _ in poll.poll()):
        raise StoreError(Reason.CANCELLED)


class Splicer:
    """Takes buffers from a shared pipe, blocking or not; a context manager."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            # Where it stays smaller, more is copied under the token; nothing is lost.
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, BUFFER_BYTES)
        self._held = 0
        self._copied = 0
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def take(self, buffer: memoryview) -> int:
        """Take the next buffer, full or the pipe's last; the bytes it will have."""
        # ``buffer`` has BUFFER_BYTES; `read` completes it.
        self._copied = self._held = 0
        while (got := self._copied + self._held) < BUFFER_BYTES:
            try:
                count = os.splice(
                    self._pipe,
                    self._in,
                    BUFFER_BYTES - got,
                    flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK,
                )
            except BlockingIOError:
                # Nothing there yet; or our own pipe is full of pages that are not.
                self.read(buffer)
                self._poll.poll()
                continue
            if not count:
                break
            self._held += count
        return self._copied + self._held

    def read(self, buffer: memoryview) -> None:
        """Copy what was only moved so far."""
        while self._held:
            end = self._copied + self._held
            count = os.readv(self._out, [buffer[self._copied : end]])
            self._copied += count
            self._held -= count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._out)
        os.close(self._in)
