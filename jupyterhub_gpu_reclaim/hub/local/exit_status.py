"""Exit statuses of local sessions.

Nobody waits for a session's init: it outlives the Hub. So it writes its exit status
down before it ends, into a folder of root's that a reboot empties.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Final

_FOLDER: Final = Path("/run/jupyterhub-gpu-reclaim-ended")
#: Seconds after which nobody asks any more: a Hub polls its servers when it starts.
_KEPT: Final = 24 * 3600.0


def file_of(incarnation: str) -> Path | None:
    """The file for an incarnation's exit status; None: there is no place for it."""
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return _path(incarnation)


def read(incarnation: str) -> int | None:
    """The exit status, -n for a signal, as Popen says it; None where it is not known.

    It is not known where the init itself was killed, or the machine was started again.

    The init says 128 + n, as a shell does. A server that exits with such a code by
    itself, for a program of its own that a signal has ended, reads as ended by it.
    """
    try:
        code = int(_path(incarnation).read_bytes()[:8])
    except (OSError, ValueError):
        return None
    return 128 - code if code - 128 in signal.valid_signals() else code


def remove(incarnation: str) -> None:
    """Forget an incarnation's status; there may be none."""
    with contextlib.suppress(OSError):
        _path(incarnation).unlink()


def sweep() -> None:
    """Remove statuses that nobody asks for any more."""
    before = time.time() - _KEPT
    with contextlib.suppress(OSError):
        for file in _FOLDER.iterdir():
            if file.stat().st_mtime < before:
                file.unlink(missing_ok=True)


def _path(incarnation: str) -> Path:
    """The file of an incarnation, inside the folder whatever a database says."""
    return _FOLDER / (Path(incarnation).name or "none")
