"""Debian's Chromium, as the tests start it."""

from pathlib import Path
from typing import Any

import pytest

from demo.user import User

PATH = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--single-threaded",  # JupyterLab in four fifths of the processor time
]


def cookies(user: User) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "value": one.value, "domain": "127.0.0.1", "path": one.path}
        for one in user.http.cookies
    ]


NEEDED = pytest.mark.skipif(
    not Path(PATH).exists(),
    reason=f"{PATH} is not there; scripts/bootstrap test installs it",
)
