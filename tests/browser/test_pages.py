"""The pages that a person of a suspended session sees, clicked through."""

from __future__ import annotations

import re
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from .conftest import shoot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from demo.admin import Admin
    from demo.stack import Stack
    from demo.user import Kernel, User

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

#: Writes down what the Hub's progress page has shown, for after it has led away.
KEEP_LOG = """addEventListener("DOMContentLoaded", () => {
  const log = document.querySelector("#progress-log");
  if (log) new MutationObserver(() => sessionStorage.setItem(
    "shown", [...log.children].map((line) => line.textContent).join("\\n"))
  ).observe(log, {childList: true});
})"""


@pytest.fixture
def paige(stack: Stack, new_name: str) -> User:
    """A person with a running server."""
    from demo.user import User

    user = User(stack.url, new_name, stack.password)
    user.login()
    user.start_server()
    return user


@pytest.fixture
def page(paige: User, sign_in: Callable[[str], Page]) -> Page:
    return sign_in(paige.name)


def suspended_with(admin: Admin, user: User, code: str) -> Kernel:
    """A kernel that has run this, in a session that is suspended then."""
    kernel = user.server().start_kernel()
    with kernel:
        kernel.run(code)
    admin.suspend(user.name)
    return kernel


def test_spawn_page_shows_the_steps_of_a_restore_and_leads_to_the_lab(
    stack: Stack, admin: Admin, paige: User, page: Page
) -> None:
    kernel = suspended_with(
        admin, paige, "import os\nx = os.urandom(2**28)\nstart = x[:4]"
    )
    page.add_init_script(KEEP_LOG)
    with restoring(page, stack, paige):
        page.locator("#progress-details summary").click()
        shoot(page, "page-restoring")
    page.wait_for_url(f"**/user/{paige.name}/lab**", wait_until="commit")
    shown = page.evaluate("sessionStorage.getItem('shown')")
    assert re.search(r"memory.*MB", shown), shown
    assert "✓" in shown
    with kernel:
        assert kernel.run("print(x[:4] == start)").text == "True\n"


def test_not_now_on_the_spawn_page_keeps_the_session_saved_until_asked(
    stack: Stack, admin: Admin, paige: User, page: Page
) -> None:
    kernel = suspended_with(admin, paige, "x = 41")
    with restoring(page, stack, paige):
        page.get_by_role("button", name="Not now: keep it saved").click()
    page.get_by_role("heading", name="Your session is saved").wait_for()
    page.wait_for_timeout(4000)  # longer than any script of ours would wait
    assert admin.session(paige.name)["phase"] == "suspended"
    shoot(page, "page-saved")
    page.get_by_role("button", name="Bring it back").click()
    page.wait_for_url(f"**/user/{paige.name}/lab**", wait_until="commit")
    with kernel:
        assert kernel.run("print(x + 1)").text == "42\n"


@contextmanager
def restoring(page: Page, stack: Stack, user: User) -> Iterator[None]:
    """The page of a restore that has begun, and stands still for a look at it."""
    agent = stack.parts["agent"]
    page.goto(f"{stack.url}/hub/home")
    agent.send_signal(signal.SIGSTOP)  # else it may be done before there is a page
    try:
        page.goto(f"{stack.url}/user/{user.name}/lab", wait_until="commit")
        lines = page.locator("#progress-log .progress-log-event")
        lines.first.wait_for(state="attached")
        while lines.count() < 3:  # a little at a time: the page is slower than it is
            agent.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            agent.send_signal(signal.SIGSTOP)
            page.wait_for_timeout(150)
        yield
    finally:
        agent.send_signal(signal.SIGCONT)


def test_refusal_names_the_file_and_both_buttons_work(
    stack: Stack, admin: Admin, paige: User, page: Page
) -> None:
    path = stack.folder / "homes" / paige.name / "data.bin"
    kernel = suspended_with(
        admin, paige, "open('data.bin', 'wb').write(b'x' * 99)\nf = open('data.bin')"
    )
    taken_away(page, stack, paige, path)
    # Where the refusal comes while steps are shown, the Hub shows it twice.
    page.get_by_role("link", name="Try again").first.click()  # it is still away
    page.get_by_text("data.bin").first.wait_for()
    path.write_bytes(b"x" * 99)
    page.get_by_role("link", name="Try again").first.click()
    page.wait_for_url(f"**/user/{paige.name}/lab**", wait_until="commit")
    with kernel:
        assert kernel.run("print(len(f.read()))").text == "99\n"

    admin.wait(paige.name, phase="running")
    admin.suspend(paige.name)
    taken_away(page, stack, paige, path)
    page.get_by_role("link", name=re.compile("Start fresh.*kept 7 days")).first.click()
    page.get_by_text("data.bin").first.wait_for()
    shoot(page, "page-start-fresh")
    page.get_by_role("button", name="Start fresh").click()
    page.wait_for_url(f"**/user/{paige.name}/lab**", wait_until="commit")
    assert paige.server().json("GET", "kernels") == []
    assert len(admin.session(paige.name)["saved"]) == 1


def taken_away(page: Page, stack: Stack, user: User, path: Path) -> None:
    """Visit a suspended session whose file is gone."""
    path.unlink()
    page.goto(f"{stack.url}/user/{user.name}/lab")
    page.get_by_role("heading", name="Your saved session did not come back").wait_for()
    assert page.get_by_text("data.bin").count() == 1
    shoot(page, "page-refusal")


def test_service_page_suspends_and_resumes_live(
    stack: Stack, admin: Admin, paige: User, page: Page
) -> None:
    page.goto(f"{stack.url}/hub/home")
    page.get_by_text("Services").click()
    page.get_by_role("link", name="gpu-reclaim").click()
    mine = f'[data-session="{paige.name}/"]'
    card = page.locator(mine)
    running = page.locator(f'{mine}[data-phase="running"]')
    suspended = page.locator(f'{mine}[data-phase="suspended"]')
    running.wait_for()
    shoot(page, "service-running")
    card.get_by_role("button", name="Suspend now").click()
    suspended.wait_for()
    shoot(page, "service-suspended")
    assert admin.session(paige.name)["phase"] == "suspended"
    card.get_by_role("button", name="Resume").click()
    running.wait_for()
    shoot(page, "service-resumed")
    assert admin.session(paige.name)["phase"] == "running"
