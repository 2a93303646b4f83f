"""Debian's Chromium at the end-to-end stack.

A module may set ``SETTINGS`` for its stack (see ``demo/jupyterhub_config.py``).
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from demo.admin import Admin
from demo.user import User
from tests.support import chromium as chromium_program
from tests.support import light_server, seen
from tests.support.screenshots import shoot  # noqa: F401 - for the tests here
from tests.support.seen import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.support.sharing import SHARED, pytest_runtest_teardown  # noqa: F401
from tests.support.stack import Stack

_numbers = itertools.count(1)
ON_REQUEST_ONLY = {
    "idle_after": 0,
    "sample_interval": 1,
    "service_check": 1,
    "options": {"keep_limit": 7200},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(chromium_program.NEEDED)


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Stack:
    """One for all files of a group that have the same settings."""
    settings = getattr(request.module, "SETTINGS", ON_REQUEST_ONLY)

    def begin(**settings: Any) -> Stack:
        folder = tmp_path_factory.mktemp("stack")
        return Stack(folder, server=light_server.WITH_LAB, **settings)

    return SHARED.get(begin, **settings)


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
    return Admin(stack)


@pytest.fixture(scope="module")
def chromium() -> Browser:
    return SHARED.get(chromium_program.started)


@pytest.fixture
def new_name() -> str:
    """A person whom no test has seen before, nor another run of the same one."""
    return f"person{next(_numbers)}"


@pytest.fixture
def sign_in(
    request: pytest.FixtureRequest, chromium: Browser, stack: Stack
) -> Iterator[Callable[[str], Page]]:
    """Opens a browser of a person who has signed in; their server is left as it is."""
    contexts = []

    def sign_in(name: str) -> Page:
        user = User(stack.url, name, stack.password)
        user.login()
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        seen.watch(request.node, context)
        context.add_cookies(chromium_program.cookies(user))
        context.set_default_timeout(60_000)
        return context.new_page()

    yield sign_in
    for context in contexts:
        context.close()


def notebook_of(*cells: str) -> str:
    kernel = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    return json.dumps(
        {
            "cells": [
                {
                    "cell_type": "code",
                    "execution_count": None,
                    "id": f"cell{n}",
                    "metadata": {},
                    "outputs": [],
                    "source": source,
                }
                for n, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


def open_notebook(stack: Stack, page: Page, user: str, *cells: str) -> None:
    """Start a server, open a notebook of these cells in JupyterLab, run its first."""
    home = stack.folder / "homes" / user
    home.mkdir(parents=True, exist_ok=True)
    (home / "mine.ipynb").write_text(notebook_of(*cells))
    lab = quote(f"/user/{user}/lab/tree/mine.ipynb?reset")
    page.goto(f"{stack.url}/hub/spawn/{user}?next={lab}", wait_until="commit")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
    run_cell(page, 0)
    page.keyboard.press("Control+s")


def edit_cell(page: Page, number: int, code: str) -> None:
    """Put other code into a cell of the open notebook."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".cm-content").fill(code)


def run_cell(page: Page, number: int) -> None:
    """Run a cell of the open notebook, and wait for its end."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]")).wait_for()


def output_of(page: Page, number: int) -> str:
    """Run a cell of the open notebook; what it has printed."""
    run_cell(page, number)
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    output = cell.locator(".jp-OutputArea-output")
    output.wait_for()
    return output.inner_text().strip()
