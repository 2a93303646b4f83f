"""Reads which programs of this machine get huge pages, and raises that for a while.

The driver takes host memory inside of the user's process and does not ask for huge
pages there; ``always`` makes its checkpoint 1.4 times as fast
(``docs/reference/gpu-results.md``). The setting is the whole machine's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.durable import write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ALWAYS: Final = "always"
_MODES: Final = frozenset({"madvise", "never"})


def setting() -> str:
    """The machine's: always, madvise or never; empty where there are none."""
    try:
        text = _SETTING.read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


class RaisedPages:
    """Huge pages for everybody, while somebody needs them; the setting is put back.

    What it was is written down first, so that whoever comes after a crash can put it
    back (:func:`put_back`). Where it cannot be changed, nothing is, and the log says so
    once.

    Args:
        memo: the file in which it is written down.
    """

    def __init__(self, memo: Path) -> None:
        self._memo = memo
        self._lock = threading.Lock()
        self._users = 0
        self._refused = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raised inside the block; any number of threads may be in one at once."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._raise()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    put_back(self._memo)

    def _raise(self) -> None:
        before = setting()
        if before not in _MODES:
            return
        try:
            write_durably(self._memo, f"{_boot()} {before}".encode())
            _SETTING.write_text(_ALWAYS, encoding="ascii")
        except OSError as error:
            if not self._refused:
                _log.warning("- huge pages stay at %s: %s", before, error)
            self._refused = True


def put_back(memo: Path) -> None:
    """Put back what was raised, unless the machine or somebody else did. Idempotent."""
    try:
        boot, _, before = memo.read_text(encoding="ascii").partition(" ")
        if boot == _boot() and before in _MODES and setting() == _ALWAYS:
            _SETTING.write_text(before, encoding="ascii")
        memo.unlink()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        _log.warning("- huge pages may have stayed at always: %s", error)


def _boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip()
