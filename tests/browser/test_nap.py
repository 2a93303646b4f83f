"""What people see of a nap: JupyterLab, the admin page, and ours; the card is false.

A nap without a browser, which a cell ends, is in ``e2e/test_nap.py``.
The kernel ends if it runs while its card is away, and JupyterLab would say so.
"""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page

from demo.admin import Admin
from tests.browser.conftest import ON_REQUEST_ONLY, open_notebook, output_of, run_cell
from tests.support import fake_cards, light_server
from tests.support.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(400)]
LOOK = "print(x, int(has_card()))"


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with fake_cards.card_for_sessions(tmp_path_factory) as card:
        yield card


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, card: str) -> Iterator[Stack]:
    """Its agent knows of the card."""
    del card
    folder = tmp_path_factory.mktemp("s")  # short: sockets stand in it
    with Stack(folder, server=light_server.WITH_LAB, **ON_REQUEST_ONLY) as stack:
        yield stack


@pytest.fixture
def notebook(
    stack: Stack, sign_in: Callable[[str], Page], new_name: str, card: str
) -> tuple[str, Page]:
    """A person, and their notebook in JupyterLab; its kernel has the card."""
    setup = f"import os; os.environ['FALSE_CARD'] = '{card}'; x = 42\n"
    setup += (fake_cards.FAKE / "cell.py").read_text()
    page = sign_in(new_name)
    open_notebook(stack, page, new_name, setup, LOOK, "time.sleep(60)")
    return new_name, page


def nap(admin: Admin, name: str) -> None:
    admin.call("POST", f"sessions/{name}/-/nap")
    admin.wait(name, phase="napping")


def cell_of(page: Page, number: int) -> Locator:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(number)


def shows_no_error(page: Page) -> None:
    assert page.locator(".jp-Dialog").count() == 0
    assert page.get_by_text("Kernel Restarting").count() == 0


def test_cell_wakes_the_kernel_and_the_tab_shows_no_error(
    admin: Admin, notebook: tuple[str, Page]
) -> None:
    name, page = notebook
    nap(admin, name)
    assert output_of(page, 1).split() == ["42", "1"]
    admin.wait(name, phase="running")
    shows_no_error(page)


def test_interrupt_and_restart_reach_a_kernel_that_naps(
    admin: Admin, notebook: tuple[str, Page]
) -> None:
    name, page = notebook
    cell_of(page, 2).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    page.get_by_text("Python 3 (ipykernel) | Busy").wait_for()
    nap(admin, name)
    page.get_by_title("Interrupt the kernel").click()
    cell_of(page, 2).get_by_text("KeyboardInterrupt").first.wait_for()
    admin.wait(name, phase="running")
    assert output_of(page, 1).split() == ["42", "1"]

    nap(admin, name)
    page.get_by_title("Restart the kernel", exact=True).click()
    page.locator(".jp-Dialog").get_by_text("Restart", exact=True).click()
    page.locator(".jp-Dialog").wait_for(state="detached")
    admin.wait(name, phase="running")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    run_cell(page, 1)
    cell_of(page, 1).get_by_text("NameError").first.wait_for()
    shows_no_error(page)


def test_hubs_admin_page_says_that_a_session_naps(
    stack: Stack, admin: Admin, notebook: tuple[str, Page], sign_in: Callable[..., Page]
) -> None:
    name, _ = notebook
    page = sign_in("admin")
    page.goto(f"{stack.url}/hub/admin")
    row = page.locator(f'td.gpu-reclaim[data-session="{name}/"]')
    row.get_by_text("Running").wait_for()
    nap(admin, name)
    row.get_by_text("Napping").wait_for()
