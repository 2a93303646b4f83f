"""Cancels an operation from another thread.

Threads and tasks check it between two steps; a dump or a restore waits for it together
with its other descriptors.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, InvalidStateError

from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason


class Cancel:
    """Set once, never unset; ``fileno()`` is readable from then on."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.told: Future[None] = Future()  #: done once it is set

    def set(self) -> None:
        """Cancel the operation; safe from any thread, any number of times."""
        with contextlib.suppress(InvalidStateError):
            self.told.set_result(None)
        os.eventfd_write(self._event, 1)

    @property
    def is_set(self) -> bool:
        return self.told.done()

    def check(self) -> None:
        """Go on, or end here.

        Raises:
            RolledBack: it was cancelled (``cancelled``); the caller undoes its work.
        """
        if self.is_set:
            raise RolledBack(Reason.CANCELLED)

    def fileno(self) -> int:
        return self._event

    def __del__(self) -> None:
        os.close(self._event)
