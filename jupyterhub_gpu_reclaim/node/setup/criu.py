"""The agent's CRIU: found when it is needed, checked now and then.

An agent starts without CRIU and says so; it takes one that is installed later without a
restart.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu

if TYPE_CHECKING:
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Finding

#: CRIU's self-test takes about a second; a good answer holds for so many seconds.
_GOOD_SECONDS = 300.0
_BAD_SECONDS = 5.0


class Tool:
    """The CRIU of this machine, from any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._found: list[Finding] = []
        self._until = float("-inf")

    def criu(self) -> criu.Criu:
        """The one to use.

        Raises:
            Refused: there is none, it is too old, or it cannot be started.
        """
        return criu.locate(self._folder)

    def version(self) -> str:
        """Its version, dotted.

        Raises:
            Refused: as :meth:`criu`.
        """
        return ".".join(str(number) for number in self.criu().version())

    def findings(self) -> list[Finding]:
        """What keeps this machine from saving sessions; remembered for a while."""
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._found = criu.check(self._folder)
                fatal = any(finding.fatal for finding in self._found)
                good = _BAD_SECONDS if fatal else _GOOD_SECONDS
                self._until = self._clock.monotonic() + good
            return list(self._found)
