"""Exit statuses of local sessions.

A session's init outlives the Hub, so it has no parent that waits for it: it writes its
exit status into a folder of root's that a reboot empties.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Final

_FOLDER: Final = Path("/run/jupyterhub-gpu-reclaim-ended")
#: Seconds that statuses are kept: a Hub polls its servers when it starts.
_KEPT: Final = 24 * 3600.0


def file_of(incarnation: str) -> Path | None:
    """The file for an incarnation's exit status; None: it cannot be kept."""
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return _path(incarnation)


def read(incarnation: str) -> int | None:
    """The exit status, -n for a signal, as Popen has it; None if it is unknown.

    It is unknown if the init itself was killed, or the machine was rebooted.
    """
    # The init says 128 + n, as a shell does. A server that exits with such a code by
    # itself, for a program of its own that a signal has ended, reads as ended by it.
    try:
        code = int(_path(incarnation).read_bytes()[:8])
    except (OSError, ValueError):
        return None
    return 128 - code if code - 128 in signal.valid_signals() else code


def remove(incarnation: str) -> None:
    with contextlib.suppress(OSError):
        _path(incarnation).unlink()


def sweep() -> None:
    # A Hub polls its servers when it starts; after that these are of no use.
    before = time.time() - _KEPT
    with contextlib.suppress(OSError):
        for file in _FOLDER.iterdir():
            if file.stat().st_mtime < before:
                file.unlink(missing_ok=True)


def _path(incarnation: str) -> Path:
    # Inside the folder, whatever a database says.
    return _FOLDER / (Path(incarnation).name or "none")
