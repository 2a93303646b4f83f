"""A program that a test runs to its end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(
    words: Sequence[str | Path], *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Its status, and all that it has said."""
    return subprocess.run(words, capture_output=True, text=True, check=check, **more)
