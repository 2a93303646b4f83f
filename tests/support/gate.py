"""A door in front of an object store: requests wait there for as long as a test likes.

So a store is slow, or hangs, at a moment that the test names, and answers again when
the test says so; everything behind the door is real.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.support.agent import PATIENCE, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


class Gate:
    """What ``object_store.faulty`` asks of each request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: Callable[[str, str], bool] | None = None
        self._shut = False
        self._opened = threading.Event()
        self._pause = 0.0

    def __call__(self, method: str, path: str) -> str:
        with self._lock:
            if self._at is not None and self._at(method, path):
                self._shut = True
            shut, opened, pause = self._shut, self._opened, self._pause
        if shut:
            opened.wait(PATIENCE)
        elif pause:
            threading.Event().wait(pause)
        return ""

    def shut_at(self, method: str, name: str) -> None:
        """From the first such request on, it and all that follow wait."""
        with self._lock:
            self._at = lambda asked, path: asked == method and name in path

    def slow_down(self, seconds: float) -> None:
        self._pause = seconds

    def wait_until_shut(self) -> None:
        wait_for(lambda: self._shut, 60)

    def open(self) -> None:
        with self._lock:
            self._at, self._shut, self._pause = None, False, 0.0
            opened, self._opened = self._opened, threading.Event()
        opened.set()
