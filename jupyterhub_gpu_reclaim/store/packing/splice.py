"""Takes buffers out of a pipe that many workers share, without copying under the token.

While a worker holds the token, it only moves bytes (splice(2)) into a pipe of its own,
which is fast; it copies them after it has passed the token on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
from typing import TYPE_CHECKING, Self

from jupyterhub_gpu_reclaim.store.packing.pack_writer import SLOT_BYTES

if TYPE_CHECKING:
    from types import TracebackType


class Splicer:
    """Takes buffers from a pipe; a context manager.

    Args:
        pipe: shared; blocking or not.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            # Where it stays smaller, more is copied under the token; nothing is lost.
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, SLOT_BYTES)
        self._held = 0
        self._copied = 0
        self._splices = True
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def take(self, slot: memoryview) -> int:
        """Take the next buffer: all of it, or what came before the pipe's end.

        Args:
            slot: of :data:`SLOT_BYTES`; :meth:`read` completes it.

        Returns:
            How many bytes it will have.
        """
        self._copied = self._held = 0
        while (got := self._copied + self._held) < SLOT_BYTES:
            try:
                if self._splices:
                    count = os.splice(
                        self._pipe,
                        self._in,
                        SLOT_BYTES - got,
                        flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK,
                    )
                    self._held += count
                else:
                    count = os.readv(self._pipe, [slot[got:]])
                    self._copied += count
            except BlockingIOError:
                # Nothing there yet; or our own pipe is full of pages that are not.
                self.read(slot)
                self._poll.poll()
                continue
            except OSError as error:
                if error.errno != errno.EINVAL or not self._splices:
                    raise
                self.read(slot)
                self._splices = False
                continue
            if not count:
                break
        return self._copied + self._held

    def read(self, slot: memoryview) -> None:
        """Copy what was only moved so far."""
        while self._held:
            end = self._copied + self._held
            count = os.readv(self._out, [slot[self._copied : end]])
            self._copied += count
            self._held -= count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._out)
        os.close(self._in)
