"""The pages that a person of a suspended session sees, clicked through."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page

from demo.admin import Admin
from demo.user import Kernel, User
from tests.support.axe import problems
from tests.support.keyboard import press, tab_to, walk
from tests.support.stack import Stack

from .conftest import shoot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

#: The managers' pages that a person walks through by Tab.
MANAGERS_PAGES = ("all", "nodes", "store", "log")


@pytest.fixture
def paige(stack: Stack, new_name: str) -> User:
    from demo.user import User

    return User.arrived(stack, new_name)


@pytest.fixture
def page(paige: User, sign_in: Callable[[str], Page]) -> Page:
    page = sign_in(paige.name)
    # JupyterLab is only come to here: what its page loads takes seconds of processor
    page.context.route("**/static/lab/**", lambda route: route.abort())
    return page


def suspended_with(admin: Admin, user: User, code: str) -> Kernel:
    """A kernel that has run this, in a session that is suspended then."""
    kernel = user.server().start_kernel()
    with kernel:
        kernel.run(code)
    admin.suspend(user.name)
    return kernel


@pytest.mark.long
def test_not_now_on_the_spawn_page_keeps_the_session_saved_until_asked(
    stack: Stack, admin: Admin, paige: User, page: Page
) -> None:
    kernel = suspended_with(admin, paige, "x = 41")
    page.goto(f"{stack.url}/hub/home")
    page.get_by_role("button", name="Resume my session").wait_for()
    assert problems(page) == []
    with restoring(page, stack, paige):
        page.get_by_role("button", name="Not now: keep it suspended").click()
    page.get_by_role("heading", name="Your session is suspended").wait_for()
    assert problems(page) == []
    page.wait_for_timeout(4000)  # longer than any script of ours would wait
    assert admin.session(paige.name)["phase"] == "suspended"
    shoot(page, "page-saved")
    page.get_by_role("button", name="Resume").click()
    page.wait_for_url(f"**/user/{paige.name}/lab**", wait_until="commit")
    with kernel:
        assert kernel.run("print(x + 1)").text == "42\n"


@contextmanager
def restoring(page: Page, stack: Stack, user: User) -> Iterator[None]:
    """The page of a restore that has begun, and stands still for a look at it."""
    agent = stack.parts["agent"]
    page.goto(f"{stack.url}/hub/home")
    known = page.get_by_text("kept until you resume or delete it.")
    said = r"(Suspended by admin|You suspended it)\. \d+ MB[,;]"
    assert re.match(said, known.inner_text())
    agent.send_signal(signal.SIGSTOP)  # else it may be done before there is a page
    try:
        page.goto(f"{stack.url}/user/{user.name}/lab", wait_until="commit")
        lines = page.locator("#gpu-reclaim-steps li")
        page.locator("#gpu-reclaim-restore").wait_for()
        assert " MB" in page.locator("#gpu-reclaim-size").inner_text()
        while lines.count() < 2:  # a little at a time: the page is slower than it is
            agent.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            agent.send_signal(signal.SIGSTOP)
            page.wait_for_timeout(150)
        yield
    finally:
        agent.send_signal(signal.SIGCONT)


def test_service_pages_of_user_and_manager_suspend_and_resume_live(
    stack: Stack, admin: Admin, paige: User, page: Page, sign_in: Callable[[str], Page]
) -> None:
    page.goto(f"{stack.url}/hub/home")
    page.get_by_role("button", name="Toggle dark mode").click()
    page.get_by_text("Services").click()
    page.get_by_role("link", name="gpu-reclaim").click()
    mine = f'[data-session="{paige.name}/"]'
    running = f'{mine}[data-phase="running"]'
    suspended = f'{mine}[data-phase="suspended"]'
    page.locator(running).wait_for()
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(24, 27, 31)"  # the Hub's mode is ours
    page.locator(mine).get_by_role("button", name="Suspend now").click()
    page.locator(suspended).wait_for()
    assert admin.session(paige.name)["phase"] == "suspended"
    shoot(page, "service-suspended")

    manager = sign_in("admin")
    manager.goto(f"{stack.url}/services/gpu-reclaim/all")
    name = f"{paige.name}, Default server"
    manager.get_by_role("button", name=f"Resume: {name}").click()
    manager.get_by_role("button", name=f"Suspend now: {name}").wait_for()
    page.locator(running).wait_for()
    assert admin.session(paige.name)["phase"] == "running"
    shoot(manager, "overview-resumed")


@pytest.mark.long
def test_every_page_is_used_by_the_keyboard_alone(
    stack: Stack, admin: Admin, paige: User, page: Page, sign_in: Callable[[str], Page]
) -> None:
    service = f"{stack.url}/services/gpu-reclaim/"
    page.goto(service)
    press(page, "Suspend now")
    # the button that was pressed is gone: its session has the focus
    page.locator('[data-phase="suspended"]:focus').wait_for()
    page.keyboard.press("Tab")
    page.locator("button:focus", has_text="Resume").wait_for()

    page.goto(f"{stack.url}/hub/home")
    assert walk(page) == []
    with restoring(page, stack, paige):
        press(page, "Not now: keep it suspended")
    page.get_by_role("heading", name="Your session is suspended").wait_for()
    assert walk(page) == []

    manager = sign_in("admin")
    # Rows that others' sessions change would be new ones before Tab is at the end.
    still = manager.context.new_page()
    still.route("**/api/events*", lambda route: route.abort())
    for name in (*MANAGERS_PAGES, f"sessions/{paige.name}/-"):
        still.goto(service + name)
        assert still.get_by_text("That did not work").count() == 0, name
        still.locator("#view[aria-busy]").wait_for(state="detached")
        assert walk(still) == [], name
    still.close()
    manager.goto(f"{stack.url}/hub/admin")
    manager.locator("td.gpu-reclaim button").first.wait_for()
    assert walk(manager) == []
    manager.goto(f"{service}all?text={paige.name}")
    manager.locator("#view[aria-busy]").wait_for(state="detached")
    tab_to(manager, f"Select {paige.name}, Default server")
    manager.keyboard.press("Space")
    press(manager, "Resume")
    manager.get_by_role("dialog").wait_for()
    press(manager, "Resume")
    manager.get_by_text("1 session is resuming.").wait_for()
