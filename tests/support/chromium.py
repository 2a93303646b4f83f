"""Debian's Chromium, as the tests start it."""

from pathlib import Path

import pytest

PATH = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NEEDED = pytest.mark.skipif(
    not Path(PATH).exists(),
    reason=f"{PATH} is not there; scripts/bootstrap test installs it",
)
