"""An open tab of a suspended session: says so, wakes nothing, resumes on a click."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import edit_cell, open_notebook, output_of, run_cell, shoot

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    from demo.admin import Admin
    from demo.stack import Stack

PARTS = ("remoteEntry", "watch", "notice")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture
def notebook(stack: Stack, new_name: str, sign_in: Callable[[str], Page]) -> Page:
    """A notebook whose first cell has run."""
    page = sign_in(new_name)
    open_notebook(stack, page, new_name, "x = 41", "print('it is', x + 1)")
    return page


def dialog_of(page: Page) -> Locator:
    return page.locator(".jp-Dialog", has_text="Your session is saved")


def notice_of(page: Page, text: str) -> Locator:
    return page.locator("#gpu-reclaim-notice", has_text=text)


def test_installed_extension_is_the_one_of_this_checkout() -> None:
    installed = Path(sys.prefix) / "share/jupyter/labextensions/jupyterhub-gpu-reclaim"
    source = ROOT / "jupyterhub_gpu_reclaim" / "ui" / "lab"
    for name in ("package.json", *(f"static/{part}.js" for part in PARTS)):
        current = (installed / name).read_text() == (source / name).read_text()
        assert current, "an editable install has a copy; run: scripts/bootstrap test"


def test_open_tab_says_saved_and_resumes_in_place_on_a_click(
    admin: Admin, new_name: str, notebook: Page
) -> None:
    admin.suspend(new_name)
    dialog_of(notebook).wait_for()
    shoot(notebook, "tab-suspended")
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    notice_of(notebook, "Bringing your session back").wait_for()
    shoot(notebook, "tab-resuming")
    notice_of(notebook, "Your session is back.").wait_for()
    shoot(notebook, "tab-resumed")
    admin.wait(new_name, phase="running")
    assert output_of(notebook, 1) == "it is 42"


def test_reload_of_a_suspended_tab_brings_the_session_back(
    admin: Admin, new_name: str, notebook: Page
) -> None:
    admin.suspend(new_name)
    notebook.reload(wait_until="commit")
    notebook.wait_for_url(f"**/user/{new_name}/lab**", wait_until="commit")
    notebook.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    admin.wait(new_name, phase="running")
    assert output_of(notebook, 1) == "it is 42"


def test_tab_names_the_reason_when_the_session_does_not_come_back(
    stack: Stack, admin: Admin, new_name: str, notebook: Page
) -> None:
    path = stack.folder / "homes" / new_name / "table.csv"
    path.write_text("1,2\n")
    edit_cell(notebook, 1, "f = open('table.csv')")
    run_cell(notebook, 1)
    admin.suspend(new_name)
    path.unlink()
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    refusal = notice_of(notebook, "Your saved session did not come back")
    refusal.get_by_text("table.csv").wait_for()
    shoot(notebook, "tab-refused")

    # the choices are on the Hub's page; the tab finds out by itself
    path.write_text("1,2\n")
    with notebook.context.expect_page() as opened:
        refusal.get_by_role("button", name="What now?").click()
    opened.value.get_by_role("link", name="Try again").click()
    notice_of(notebook, "Your session is back.").wait_for()
    edit_cell(notebook, 1, "print(f.read())")
    assert output_of(notebook, 1) == "1,2"
