"""Cancels an operation from another thread.

Threads and tasks check it between two steps; a dump or a restore waits for it together
with its other descriptors.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable


class Cancel:
    """Set once, never unset; ``fileno()`` is readable from then on."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def set(self) -> None:
        """Cancel the operation; safe from any thread, any number of times."""
        with self._lock:
            self._set = True
            listeners = list(self._listeners)
        os.eventfd_write(self._event, 1)
        for listener in listeners:
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call it when this is set, from whichever thread does so; now, if it is."""
        with self._lock:
            self._listeners.append(listener)
            known = self._set
        if known:
            listener()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    @property
    def is_set(self) -> bool:
        return self._set

    def check(self) -> None:
        """Go on, or end here.

        Raises:
            RolledBack: it was cancelled (``cancelled``); the caller undoes its work.
        """
        if self._set:
            raise RolledBack(Reason.CANCELLED)

    def fileno(self) -> int:
        return self._event

    def __del__(self) -> None:
        os.close(self._event)
