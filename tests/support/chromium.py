"""Debian's Chromium, as the tests start it."""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser as AsyncBrowser
from playwright.async_api import async_playwright
from playwright.sync_api import Browser, sync_playwright

from demo.user import User

PATH = "/usr/bin/chromium"
#: Pages alone: a window around each takes four times the processor's time.
SHELL = shutil.which("chromium-headless-shell") or PATH
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


@contextmanager
def started() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=SHELL, args=ARGUMENTS)
        yield browser
        browser.close()


@asynccontextmanager
async def started_here() -> AsyncIterator[AsyncBrowser]:
    """In the running event loop."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=SHELL, args=ARGUMENTS
        )
        yield browser
        await browser.close()


def cookies(user: User) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "value": one.value, "domain": "127.0.0.1", "path": one.path}
        for one in user.http.cookies
    ]


NEEDED = pytest.mark.skipif(
    not Path(SHELL).exists(),
    reason=f"{PATH} is not there; scripts/bootstrap test installs it",
)
