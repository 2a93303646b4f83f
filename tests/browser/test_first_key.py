"""The first key after a return: the cell runs, in the kernel that was saved.

JupyterLab shows a notebook before it knows which kernels the server runs. Each round
here suspends the session, opens its notebook in a new tab, and runs a cell as soon as
it is shown, also while the server takes eight seconds to tell its kernels.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from playwright.sync_api import BrowserContext, Page, Route

from demo.admin import Admin
from demo.user import Kernel, Server
from tests.support.stack import Stack

from .conftest import notebook_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

#: The server's answer to "which sessions are there" reaches the page so much later.
SLOW_LIST = """(() => {
  const real = window.fetch;
  window.fetch = async (request, options) => {
    const answer = await real(request, options);
    const method = options?.method || request.method || "GET";
    if (method === "GET" && /\\/api\\/sessions(\\?|$)/.test(request.url || request)) {
      await new Promise((wake) => setTimeout(wake, MILLISECONDS));
    }
    return answer;
  };
})()"""
#: A tab that its user does not look at.
HIDDEN = """Object.defineProperty(document, "hidden", {get: () => !window.shown})
Object.defineProperty(document, "visibilityState",
  {get: () => window.shown ? "visible" : "hidden"})"""
SOMEBODY_LOOKS = """window.shown = true
document.dispatchEvent(new Event("visibilitychange"))"""
PAGES = {"lab": "lab/tree/mine.ipynb", "notebook": "notebooks/mine.ipynb"}


@dataclass
class Somebody:
    """A person with a notebook, whose kernel knows what is in x."""

    name: str
    stack: Stack
    admin: Admin
    server: Server
    tabs: BrowserContext
    kernel: Kernel

    def returns(self, page: str, script: str = "") -> Page:
        """Suspended, and then visited in a new tab, which is on its way."""
        for tab in self.tabs.pages:
            tab.close()
        self.admin.wait(self.name, phase="running")
        self.admin.suspend(self.name)
        tab = self.tabs.new_page()
        if script:
            tab.add_init_script(script)
        url = f"{self.stack.url}/user/{self.name}/{PAGES[page]}"
        tab.goto(url, wait_until="commit")
        return tab

    def kernels(self) -> list[str]:
        return [one["id"] for one in self.server.json("GET", "kernels")]


@pytest.fixture
def somebody(
    stack: Stack, admin: Admin, new_name: str, sign_in: Callable[[str], Page]
) -> Somebody:
    from demo.user import User

    home = stack.folder / "homes" / new_name
    home.mkdir(parents=True, exist_ok=True)
    (home / "mine.ipynb").write_text(notebook_of("x = 41", "print('it is', x + 1)"))
    user = User.arrived(stack, new_name)
    model = {"path": "mine.ipynb", "name": "mine.ipynb", "type": "notebook"}
    made = user.server().json(
        "POST", "sessions", json={**model, "kernel": {"name": "python3"}}
    )
    kernel = user.server().kernel(made["kernel"]["id"])
    with kernel:
        kernel.run("x = 41")
    tabs = sign_in(new_name).context
    return Somebody(new_name, stack, admin, user.server(), tabs, kernel)


def press(tab: Page) -> str:
    """Type into the second cell and run it at once; what it has printed."""
    cell = tab.locator(".jp-Notebook .jp-CodeCell").nth(1)
    cell.locator(".cm-content").click(timeout=90_000)
    tab.keyboard.press("Control+End")
    tab.keyboard.type("  # typed")
    tab.keyboard.press("Shift+Enter")
    output = cell.locator(".jp-OutputArea-output")
    output.first.wait_for(timeout=30_000)
    return output.first.inner_text().strip()


def slowly(milliseconds: int) -> str:
    return SLOW_LIST.replace("MILLISECONDS", str(milliseconds)) if milliseconds else ""


def test_first_key_while_the_list_of_kernels_fails_and_is_late_runs_in_the_old_kernel(
    somebody: Somebody,
) -> None:
    tab = somebody.returns("notebook", slowly(8000))
    left = [502]

    def fail(route: Route) -> None:
        if route.request.method == "GET" and left:
            route.fulfill(status=left.pop())
        else:
            route.continue_()

    tab.route(re.compile(r"/api/sessions(\?|$)"), fail)
    assert press(tab) == "it is 42"
    assert not left
    assert somebody.kernels() == [somebody.kernel.id]


@pytest.mark.long
def test_first_keys_while_the_list_is_late_wait_for_the_old_kernel_in_their_order(
    somebody: Somebody,
) -> None:
    tab = somebody.returns("lab", slowly(8000))
    cells = tab.locator(".jp-Notebook .jp-CodeCell")
    cells.nth(0).locator(".cm-content").click(timeout=90_000)
    tab.keyboard.press("Control+a")
    tab.keyboard.type("x += 100")
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.press("Shift+Enter")
    waiting = tab.locator("#gpu-reclaim-notice", has_text="Connecting to the kernel")
    waiting.wait_for()
    output = cells.nth(1).locator(".jp-OutputArea-output")
    output.first.wait_for()
    assert output.first.inner_text().strip() == "it is 142"
    waiting.wait_for(state="hidden")
    assert somebody.kernels() == [somebody.kernel.id]


@pytest.mark.long
def test_notebook_in_a_tab_that_nobody_looks_at_gets_its_old_kernel(
    somebody: Somebody,
) -> None:
    tab = somebody.returns("lab", HIDDEN)
    somebody.admin.resume(somebody.name)
    somebody.admin.wait(somebody.name, phase="running")
    tab.goto(f"{somebody.stack.url}/user/{somebody.name}/{PAGES['lab']}")
    tab.get_by_text("Python 3 (ipykernel)").first.wait_for(state="attached")
    tab.evaluate(SOMEBODY_LOOKS)
    assert press(tab) == "it is 42"
    assert somebody.kernels() == [somebody.kernel.id]
