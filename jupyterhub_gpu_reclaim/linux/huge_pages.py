"""The programs of this machine that get huge pages.

The driver takes host memory inside of the user's process and does not ask for huge
pages there; ``always`` makes its checkpoint 1.4 times as fast
(``docs/reference/gpu-results.md``). The setting is the whole machine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def setting() -> str:
    """The machine's: always, madvise or never; empty if there are none."""
    try:
        text = _SETTING.read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]
