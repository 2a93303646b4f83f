"""Tabs that nobody looks at: they neither keep a session awake nor wake it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .conftest import open_notebook, output_of, shoot

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from demo.admin import Admin
    from demo.stack import Stack

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        "GPU_RECLAIM_SLOW_TESTS" not in os.environ,
        reason="Chromium slows the polls of the tab behind, for a minute and more:"
        " set GPU_RECLAIM_SLOW_TESTS=1 to wait for it",
    ),
]

SETTINGS = {"idle_after": 6, "sample_interval": 1, "warn_for": 1, "cool_down": 120}


def test_open_tabs_let_an_idle_session_go_wait_calmly_and_come_back_together(
    stack: Stack, admin: Admin, sign_in: Callable[[str], Page]
) -> None:
    front = sign_in("idler")
    open_notebook(stack, front, "idler", "x = 41", "print('it is', x + 1)")
    back = front.context.new_page()
    back.goto(f"{stack.url}/user/idler/tree", wait_until="commit")  # Notebook 7

    # nobody touches a thing: both tabs go on polling
    admin.wait("idler", phase="suspended")
    front.locator(".jp-Dialog").get_by_role("button", name="Not now").click()
    offer = front.locator("#gpu-reclaim-notice", has_text="Your session is saved")
    offer.wait_for()
    dialog = back.locator(".jp-Dialog", has_text="Your session is saved")
    dialog.wait_for()
    front.wait_for_timeout(11_000)  # the stock dialog would be back by now
    assert front.locator(".jp-Dialog").count() == 0
    shoot(front, "tab-not-now")
    view = admin.session("idler")
    assert view["phase"] == "suspended"
    assert view["generation"] == 1

    dialog.get_by_role("button", name="Resume").click()
    for tab in (back, front):
        tab.get_by_text("Your session is back.").wait_for()
    shoot(back, "tab-notebook7")
    assert offer.count() == 0
    assert output_of(front, 1) == "it is 42"
