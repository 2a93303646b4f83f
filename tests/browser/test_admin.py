"""The Hub's own admin page with our column: real sessions, real CRIU, a real React."""

import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, Route

from demo.admin import Admin
from demo.user import User
from tests.support.axe import problems
from tests.support.keyboard import tab_to
from tests.support.screenshots import shoot_both
from tests.support.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

NOTE = "GPU states and buttons are not shown"


@pytest.fixture
def amy(stack: Stack, new_name: str) -> User:
    return User.arrived(stack, new_name)


@pytest.fixture
def open_panel(chromium: Browser, stack: Stack) -> Iterator[Callable[..., Page]]:
    """Opens the admin page in a browser of the administrator's."""
    context = chromium.new_context(viewport={"width": 1280, "height": 720})
    context.set_default_timeout(60_000)

    def open_panel(before: Callable[[Page], None] = lambda page: None) -> Page:
        page = context.new_page()
        page.goto(f"{stack.url}/hub/login?next=%2Fhub%2Ftoken")
        page.get_by_label("Username").fill("admin")
        page.get_by_label("Password").fill(stack.password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/hub/token")
        before(page)
        page.goto(f"{stack.url}/hub/admin")
        page.locator("tr.user-row").first.wait_for()
        return page

    yield open_panel
    context.close()


def row_of(page: Page, name: str) -> Locator:
    return page.locator(f'td.gpu-reclaim[data-session="{name}"]')


def tokens_of_panels(admin: Admin) -> list[str]:
    made = admin.user.hub("GET", "users/admin/tokens").json()["api_tokens"]
    return [one["note"] for one in made if one["note"].startswith("gpu-reclaim:")]


def test_admin_suspends_and_resumes_by_keyboard_and_leaves_no_token(
    admin: Admin, amy: User, open_panel: Callable[..., Page]
) -> None:
    kernel = amy.server().start_kernel()
    with kernel:
        kernel.run("x = 41")
    calls: list[str] = []
    page = open_panel(
        lambda page: page.on("request", lambda each: calls.append(each.url))
    )
    asked: list[str] = []

    def agree(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.on("dialog", agree)
    row = row_of(page, f"{amy.name}/")
    row.get_by_text("Running").wait_for()
    assert len(tokens_of_panels(admin)) == 1

    tab_to(page, f"Suspend now: {amy.name}")
    page.keyboard.press("Enter")
    row.get_by_text("Suspended", exact=True).wait_for()
    (question,) = asked  # it was used a moment ago
    assert question.startswith(f"Suspend now: {amy.name}? ")
    assert admin.session(amy.name)["phase"] == "suspended"
    resume = row.get_by_role("button", name=f"Resume: {amy.name}")
    resume.wait_for()
    tab_to(page, f"Resume: {amy.name}")
    page.keyboard.press("Enter")
    row.get_by_text("Running").wait_for()
    with kernel:
        assert kernel.run("print(x + 1)").text == "42\n"

    assert not [url for url in calls if "token=" in url]
    row.get_by_role("link", name="Running").click()
    page.wait_for_url(f"**/services/gpu-reclaim/sessions/{amy.name}/-")
    until = time.monotonic() + 60
    while tokens_of_panels(admin) and time.monotonic() < until:
        time.sleep(0.2)
    assert tokens_of_panels(admin) == []


@pytest.mark.long
def test_column_follows_named_servers_search_and_a_service_that_goes_away(
    stack: Stack, admin: Admin, amy: User, open_panel: Callable[..., Page]
) -> None:
    amy.start_server("lab-1")
    page = open_panel()
    for session in (f"{amy.name}/", f"{amy.name}/lab-1"):
        row_of(page, session).get_by_text("Running").wait_for()
    search = page.get_by_label("user-search")
    search.fill("nobody-of-that-name")
    row_of(page, f"{amy.name}/").wait_for(state="detached")
    search.fill(amy.name)
    row = row_of(page, f"{amy.name}/lab-1")
    row.get_by_text("Running").wait_for()

    note = page.get_by_text(NOTE)
    assert not note.is_visible()
    away = "**/services/gpu-reclaim/api/**"
    page.route(away, lambda route: route.fulfill(status=503))
    stack.kill("service")
    note.wait_for()
    assert page.locator(".gpu-reclaim").count() == 0
    assert page.get_by_test_id(f"user-row-{amy.name}").is_visible()
    page.unroute(away)
    row.get_by_text("Running").wait_for()  # it is back
    note.wait_for(state="hidden")
    assert len(tokens_of_panels(admin)) == 1  # one that failed was handed back


@pytest.mark.long
def test_page_of_another_version_and_an_absent_service_leave_the_hubs_page(
    amy: User, open_panel: Callable[..., Page]
) -> None:
    def changed(route: Route) -> None:
        text = route.fetch().text()
        route.fulfill(body=text.replace("user-row-server", "another-name"))

    page = open_panel(lambda page: page.route("**/admin-react.js*", changed))
    page.get_by_text("this version of JupyterHub's admin page is not known").wait_for()
    assert page.locator("td.gpu-reclaim").count() == 0

    page.unroute("**/admin-react.js*")
    page.route("**/static/admin.js", lambda route: route.fulfill(status=503))
    page.reload()
    page.get_by_text(NOTE).wait_for()
    page.get_by_test_id(f"user-row-{amy.name}").wait_for()


@pytest.mark.long
def test_deletion_of_a_suspended_server_asks_and_the_column_is_for_everybody(
    admin: Admin, amy: User, open_panel: Callable[..., Page]
) -> None:
    amy.start_server("lab-1")
    page = open_panel()
    row = row_of(page, f"{amy.name}/lab-1")
    row.get_by_text("Running").wait_for()
    shoot_both(page, "admin-panel")
    page.emulate_media(color_scheme="dark")
    assert problems(page, within=".gpu-reclaim") == []  # the rest is the Hub's own

    admin.call("POST", f"sessions/{amy.name}/lab-1/suspend")
    row.get_by_text("Suspended", exact=True).wait_for()
    page.reload()
    asked: list[str] = []

    def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    row.get_by_text("Suspended", exact=True).wait_for()
    page.get_by_role("button", name="Delete Server").click()
    assert [each.startswith(f"Delete {amy.name}/lab-1?") for each in asked] == [True]
    names = [one["key"]["server"] for one in admin.call("GET", "sessions")]
    assert "lab-1" in names
