"""Tabs that nobody touches: they keep no session awake and wake none; they warn."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from demo.admin import Admin
from tests.support.agent import wait_for
from tests.support.stack import Stack

from .conftest import open_notebook, output_of, shoot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

#: Idle for longer than the 10 s between two polls of a tab. Where a page of some
#: megabytes takes more than 20 s to load, it would pass for a download for a minute.
SETTINGS = {
    "idle_after": 12,
    "sample_interval": 1,
    "warn_for": 20,
    "cool_down": 120,
    "options": {"busy_data_rate": 200_000},
}


#: A tab asks the service twice a minute, and when somebody comes back to it.
SOMEBODY_LOOKS = "document.dispatchEvent(new Event('visibilitychange'))"


def polls_of(tab: Page) -> list[str]:
    """What this tab asks the session's server, from now on."""
    asked: list[str] = []
    tab.on("request", lambda each: "/api/" in each.url and asked.append(each.url))
    return asked


def told_by_terminal(tab: Page, home: Path, command: str) -> str:
    """What a command prints in the terminal that is all of a page."""
    said = home / "said"
    said.unlink(missing_ok=True)
    tab.locator(".jp-Terminal .xterm-screen").click()

    def typed() -> str:
        # what is typed before it is connected is lost
        tab.keyboard.type(f"{command} > said\n")
        tab.wait_for_timeout(1000)
        return said.read_text().strip() if said.exists() else ""

    return wait_for(typed)


def entitled(page: Page, words: str) -> None:
    """Wait until the tab's title is like that."""
    page.wait_for_function("like => RegExp(like).test(document.title)", arg=words)


@pytest.mark.long
def test_open_tabs_warn_and_keep_then_let_go_wait_calmly_and_come_back_together(
    stack: Stack, admin: Admin, new_name: str, sign_in: Callable[[str], Page]
) -> None:
    front = sign_in(new_name)
    home = stack.folder / "homes" / new_name
    home.mkdir(parents=True)
    (home / "notes.txt").touch()
    open_notebook(stack, front, new_name, "x = 41", "print('it is', x + 1)")
    back = front.context.new_page()
    # a terminal in Notebook 7
    back.goto(f"{stack.url}/user/{new_name}/terminals/1", wait_until="commit")
    assert told_by_terminal(back, home, "v=42; echo ready") == "ready"
    polls = [polls_of(tab) for tab in (front, back)]

    admin.wait(new_name, phase="warned")
    front.evaluate(SOMEBODY_LOOKS)
    warning = front.locator("#gpu-reclaim-notice", has_text="will be suspended")
    warning.wait_for()
    shoot(front, "tab-warning")
    warning.get_by_text(re.compile(r"^in \d+ s\.$")).wait_for()
    entitled(front, r"^Suspending in \d+ s · ")
    warning.get_by_role("button", name=re.compile("Keep 1 h, until")).click()
    front.get_by_text("Kept running until").wait_for()
    assert admin.session(new_name)["kept_until"]
    item = front.get_by_role("button", name=re.compile("kept until", re.IGNORECASE))
    item.wait_for()
    item.press("Enter")
    panel = front.get_by_role("dialog", name="This session")
    panel.get_by_text("at the request of").wait_for()  # the reason why not
    shoot(front, "tab-panel")
    panel.press("Escape")
    assert item.evaluate("it => it === document.activeElement")
    admin.call("POST", f"sessions/{new_name}/-/keep", json={"seconds": 0})

    # nobody touches a thing: both tabs go on polling
    admin.wait(new_name, phase="suspended")
    saved = "Your session is suspended"
    front.get_by_role("dialog", name=saved).wait_for()
    front.keyboard.press("Escape")  # "Not now"
    offer = front.locator("#gpu-reclaim-notice", has_text=saved)
    offer.wait_for()
    dialog = back.get_by_role("dialog", name=saved)
    dialog.wait_for()
    entitled(back, "^Suspended · ")
    shoot(back, "tab-notebook7-suspended")
    assert all(polls)
    for asked in polls:
        asked.clear()
    # a file that cannot be opened: the page's own words for that are put away
    front.locator(".jp-DirListing-item", has_text="notes.txt").dblclick()
    front.get_by_role("dialog", name=re.compile("File Load Error")).wait_for()
    front.wait_for_timeout(11_000)  # the stock dialog would be back by now
    assert all(polls)
    assert front.get_by_role("dialog").count() == 0
    shoot(front, "tab-not-now")
    view = admin.session(new_name)
    assert view["phase"] == "suspended"
    assert view["generation"] == 1

    back.keyboard.press("Enter")  # the focus is on "Resume"
    for tab in (back, front):
        # said, and gone again by the time that the slower of them is asked
        tab.get_by_text("Your session is back.").wait_for(state="attached")
    for tab in (back, front):
        entitled(tab, "^(?!Suspend)")
    shoot(back, "tab-notebook7")
    assert offer.count() == 0
    assert output_of(front, 1) == "it is 42"
    assert told_by_terminal(back, home, "echo $v") == "42"  # the same shell
