"""Tabs that nobody looks at: they neither keep a session awake nor wake it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import open_notebook, output_of, shoot

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from demo.admin import Admin
    from demo.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

#: Idle for longer than the 10 s between two polls of a tab.
SETTINGS = {"idle_after": 12, "sample_interval": 1, "warn_for": 1, "cool_down": 120}


def polls_of(tab: Page) -> list[str]:
    """What this tab asks the session's server, from now on."""
    asked: list[str] = []
    tab.on("request", lambda each: "/api/" in each.url and asked.append(each.url))
    return asked


def test_open_tabs_let_an_idle_session_go_wait_calmly_and_come_back_together(
    stack: Stack, admin: Admin, new_name: str, sign_in: Callable[[str], Page]
) -> None:
    front = sign_in(new_name)
    open_notebook(stack, front, new_name, "x = 41", "print('it is', x + 1)")
    back = front.context.new_page()
    back.goto(f"{stack.url}/user/{new_name}/tree", wait_until="commit")
    back.get_by_role("tab", name="Running").wait_for()  # it is Notebook 7's page
    polls = [polls_of(tab) for tab in (front, back)]

    # nobody touches a thing: both tabs go on polling
    admin.wait(new_name, phase="suspended")
    front.locator(".jp-Dialog").get_by_role("button", name="Not now").click()
    offer = front.locator("#gpu-reclaim-notice", has_text="Your session is saved")
    offer.wait_for()
    dialog = back.locator(".jp-Dialog", has_text="Your session is saved")
    dialog.wait_for()
    assert all(polls)
    for asked in polls:
        asked.clear()
    front.wait_for_timeout(11_000)  # the stock dialog would be back by now
    assert all(polls)
    assert front.locator(".jp-Dialog").count() == 0
    shoot(front, "tab-not-now")
    view = admin.session(new_name)
    assert view["phase"] == "suspended"
    assert view["generation"] == 1

    dialog.get_by_role("button", name="Resume").click()
    for tab in (back, front):
        tab.get_by_text("Your session is back.").wait_for()
    shoot(back, "tab-notebook7")
    assert offer.count() == 0
    assert output_of(front, 1) == "it is 42"
