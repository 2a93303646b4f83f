"""Cuts bytes and pipes of any length into the buffers that a pack writer takes.

It copies only what does not fill a buffer by itself, and knows nothing of what becomes
of one.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.pack_writer import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.store.backend import Buffer


class Slots:
    """Cuts its input into buffers and passes each to ``emit``.

    Args:
        emit: is given the buffer, filled up to whole chunks with zeros, and how many of
            its bytes are the file's; the view is valid only until it returns.
        chunk_bytes: size of the chunks.
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
            if not self._rest and len(view) >= SLOT_BYTES:
                self._emit(view[:SLOT_BYTES], SLOT_BYTES)
                view = view[SLOT_BYTES:]
                continue
            take = SLOT_BYTES - len(self._rest)
            self._rest += view[:take]
            view = view[take:]
            if len(self._rest) == SLOT_BYTES:
                self.flush()

    def flush(self) -> None:
        """Emit what is left, a buffer that is shorter than the others."""
        rest, self._rest = self._rest, bytearray()
        if rest:
            length = len(rest)
            rest.extend(bytes(-length % self._chunk))
            self._emit(memoryview(rest), length)


def fill(pipe: int, wake: int, slot: memoryview) -> int:
    """Read until a buffer is full or the pipe has ended; return how many bytes came.

    Raises:
        StoreError: ``CANCELLED``, ``wake`` became readable.
    """
    filled = 0
    while filled < len(slot):
        wait(pipe, wake)
        try:
            count = os.readv(pipe, [slot[filled:]])
        except BlockingIOError:
            continue  # another reader was first
        if not count:
            break
        filled += count
    return filled


def wait(descriptor: int, wake: int) -> None:
    """Wait until there is something to read, or an end.

    Raises:
        StoreError: ``CANCELLED``, ``wake`` became readable.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(wake, select.POLLIN)
    if any(ready == wake for ready, _ in poll.poll()):
        raise StoreError(Reason.CANCELLED)
