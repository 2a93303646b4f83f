"""An open tab of a suspended session: says so, wakes nothing, resumes on a click."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import open_notebook, output_of, shoot

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    from demo.admin import Admin
    from demo.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture
def notebook(stack: Stack, sign_in: Callable[[str], Page]) -> Page:
    """A notebook whose first cell has run."""
    page = sign_in("tabby")
    open_notebook(stack, page, "tabby", "x = 41", "print('it is', x + 1)")
    return page


def dialog_of(page: Page) -> Locator:
    return page.locator(".jp-Dialog", has_text="Your session is saved")


def toast_of(page: Page, text: str) -> Locator:
    return page.locator(".Toastify__toast", has_text=text)


def test_open_tab_says_saved_wakes_nothing_and_resumes_on_a_click(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    dialog_of(notebook).wait_for()
    shoot(notebook, "tab-suspended")
    notebook.wait_for_timeout(4000)  # a wake would have shown by then
    assert admin.session("tabby")["phase"] == "suspended"
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    toast_of(notebook, "Bringing your session back").wait_for()
    shoot(notebook, "tab-resuming")
    toast_of(notebook, "Your session is back.").wait_for()
    shoot(notebook, "tab-resumed")
    admin.wait("tabby", phase="running")
    assert output_of(notebook, 1) == "it is 42"


def test_reload_of_a_suspended_tab_brings_the_session_back(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    notebook.reload()
    notebook.wait_for_url("**/user/tabby/lab**", timeout=60_000)
    notebook.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    admin.wait("tabby", phase="running")
    assert output_of(notebook, 1) == "it is 42"


def test_not_now_keeps_the_session_suspended_and_offers_it_calmly(
    admin: Admin, notebook: Page
) -> None:
    admin.suspend("tabby")
    dialog_of(notebook).get_by_role("button", name="Not now").click()
    offer = toast_of(notebook, "Your session is saved")
    offer.wait_for()
    notebook.wait_for_timeout(11_000)  # the stock dialog would be back by now
    assert notebook.locator(".jp-Dialog").count() == 0
    assert admin.session("tabby")["phase"] == "suspended"
    shoot(notebook, "tab-not-now")
    offer.get_by_role("button", name="Resume").click()
    toast_of(notebook, "Your session is back.").wait_for()
    assert output_of(notebook, 1) == "it is 42"
