"""An open tab of a suspended session: says so, wakes nothing, resumes on a click."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from .conftest import shoot

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from demo.admin import Admin
    from demo.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell{n}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for n, source in enumerate(("x = 41", "print('it is', x + 1)"))
    ],
    "metadata": {
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        }
    },
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def notebook(stack: Stack, page: Page) -> Page:
    """A notebook whose first cell has run."""
    home = stack.folder / "homes" / "tabby"
    (home / "mine.ipynb").write_text(json.dumps(NOTEBOOK))
    page.goto(f"{stack.url}/user/tabby/lab/tree/mine.ipynb?reset")
    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    cell.wait_for()
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    cell.locator(".jp-InputPrompt", has_text="[1]").wait_for()
    page.keyboard.press("Control+s")
    return page


def run_second_cell(page: Page) -> str:
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(1)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    output = cell.locator(".jp-OutputArea-output")
    output.wait_for()
    return output.inner_text().strip()


def test_open_tab_says_saved_wakes_nothing_and_resumes_on_a_click(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    dialog = notebook.locator(".jp-Dialog", has_text="Your session is saved")
    dialog.wait_for()
    shoot(notebook, "tab-suspended")
    notebook.wait_for_timeout(6000)  # the tab polls meanwhile
    assert admin.session("tabby")["phase"] == "suspended"
    dialog.get_by_role("button", name="Resume").click()
    notebook.get_by_text("Your session is back.").wait_for()
    shoot(notebook, "tab-resumed")
    admin.wait("tabby", phase="running")
    assert run_second_cell(notebook) == "it is 42"


def test_reload_of_a_suspended_tab_brings_the_session_back(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    notebook.reload()
    notebook.wait_for_url("**/user/tabby/lab**", timeout=60_000)
    notebook.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    admin.wait("tabby", phase="running")
    assert run_second_cell(notebook) == "it is 42"


def test_not_now_keeps_the_session_suspended_and_offers_it_calmly(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    dialog = notebook.locator(".jp-Dialog", has_text="Your session is saved")
    dialog.get_by_role("button", name="Not now").click()
    offer = notebook.locator(".Toastify__toast", has_text="Your session is saved")
    offer.wait_for()
    notebook.wait_for_timeout(12_000)  # the stock dialog would be back by now
    assert notebook.locator(".jp-Dialog").count() == 0
    assert admin.session("tabby")["phase"] == "suspended"
    shoot(notebook, "tab-not-now")
    offer.get_by_role("button", name="Resume").click()
    notebook.get_by_text("Your session is back.").wait_for()
    assert run_second_cell(notebook) == "it is 42"
