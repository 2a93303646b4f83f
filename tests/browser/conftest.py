"""Debian's Chromium at the end-to-end stack."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.sync_api import sync_playwright

from demo.admin import Admin
from demo.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
#: Screenshots for people to look at.
SHOTS = Path(__file__).parents[2] / ".cache" / "screenshots"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which(CHROMIUM):
        return
    reason = f"{CHROMIUM} is not there; scripts/bootstrap test installs it"
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, idle_after=0, sample_interval=1) as stack:
        yield stack


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
    return Admin(stack)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, stack: Stack) -> Iterator[Page]:
    """A browser window of a user who has logged in as ``tabby``."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{stack.url}/hub/login")
    page.get_by_label("Username").fill("tabby")
    page.get_by_label("Password").fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/lab**", timeout=90_000)
    yield page
    context.close()


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")
