"""An open tab of a suspended session: says so, wakes nothing, resumes on a click."""

import filecmp
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Response, Route

from demo.admin import Admin
from jupyterhub_gpu_reclaim.lab.status import PERSON_ASKED
from tests.support import axe
from tests.support.agent import wait_for
from tests.support.stack import Stack

from .conftest import edit_cell, notebook_of, open_notebook, output_of, run_cell, shoot

#: Whether somebody looks at a tab.
HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => !window.shown})"
SOMEBODY_LOOKS = (
    "window.shown = true; document.dispatchEvent(new Event('visibilitychange'))"
)
#: From now on the page's looks, a second apart, are a minute apart.
LATE_LOOKS = """() => {
  const later = setTimeout;
  window.setTimeout = (act, after, ...rest) =>
    later(act, after === 1000 ? 60000 : after, ...rest);
}"""
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


@pytest.fixture
def notebook(stack: Stack, new_name: str, sign_in: Callable[[str], Page]) -> Page:
    """A notebook whose first cell has run."""
    page = sign_in(new_name)
    open_notebook(stack, page, new_name, "x = 41", "print('it is', x + 1)")
    return page


def dialog_of(page: Page, name: str = "Your session is suspended") -> Locator:
    return page.get_by_role("dialog", name=name)


def notice_of(page: Page, text: str) -> Locator:
    return page.locator("#gpu-reclaim-notice", has_text=text)


def test_installed_extension_is_the_one_of_this_checkout() -> None:
    installed = Path(sys.prefix) / "share/jupyter/labextensions/jupyterhub-gpu-reclaim"
    source = ROOT / "jupyterhub_gpu_reclaim" / "lab" / "labextension"
    names = [path.relative_to(source) for path in source.rglob("*.*")]
    same, *others = filecmp.cmpfiles(source, installed, names, shallow=False)
    assert others == [[], []], "an editable install has a copy: scripts/bootstrap test"
    assert len(same) > 10


def test_suspend_now_resumes_in_place_with_what_is_not_saved(
    stack: Stack, admin: Admin, new_name: str, notebook: Page
) -> None:
    edit_cell(notebook, 1, "print('only on this page:', x + 1)")
    notebook.get_by_role("button", name="Session in use").click()
    keep = notebook.get_by_role("button", name=re.compile("Keep 1 h, until"))
    keep.wait_for()
    notebook.get_by_text("idle_off", exact=True).wait_for()
    assert notebook.get_by_role("button", name=re.compile("Keep 4 h")).count() == 0
    keep.click()
    notebook.get_by_text(re.compile(r"^Kept until .*\.$")).wait_for()
    shoot(notebook, "tab-panel-kept")
    assert axe.problems(notebook, within="#gpu-reclaim-panel") == []
    notebook.get_by_role("button", name="Keep no longer").click()
    notebook.get_by_text("It is no longer kept.").wait_for()
    assert not admin.session(new_name)["kept_until"]
    page = notebook.get_by_role("link", name="Save points and history")
    assert page.get_attribute("href").endswith(f"/sessions/{new_name}/-")
    notebook.get_by_role("button", name="Save point").click()
    notebook.get_by_text("The session is being saved; it keeps running.").wait_for()
    notebook.once("dialog", lambda dialog: dialog.accept("before it"))
    notebook.get_by_role("button", name="Rename…").click()
    notebook.get_by_text("The save point was renamed.").wait_for()
    notebook.get_by_text("Save point “before it” of").wait_for()
    assert [one["name"] for one in admin.session(new_name)["kept"]] == ["before it"]
    notebook.get_by_role("button", name="Suspend now").click()
    admin.wait(new_name, phase="suspended")
    dialog_of(notebook).wait_for()
    shoot(notebook, "tab-overlay")
    assert axe.problems(notebook, within="#gpu-reclaim-overlay") == []
    with slow_agent(stack) as work_a_little:
        notebook.keyboard.press("Enter")  # the focus is on "Resume"
        coming = dialog_of(notebook, "Bringing your session back")
        step = coming.locator(".gpu-reclaim-step", has_text=re.compile(r"\w"))
        while not step.is_visible():
            work_a_little()
            notebook.wait_for_timeout(300)
        assert int(coming.get_by_role("progressbar").get_attribute("value")) >= 2
        shoot(notebook, "tab-resuming")
        # It hears of the return, and does not look for it.
        notebook.evaluate(LATE_LOOKS)
        notebook.wait_for_timeout(1500)  # the last look of before
    notice_of(notebook, "Your session is back.").wait_for(timeout=30_000)
    shoot(notebook, "tab-resumed")
    assert axe.problems(notebook, within="#gpu-reclaim-notice") == []
    admin.wait(new_name, phase="running")
    assert output_of(notebook, 1) == "only on this page: 42"
    notebook.get_by_role("button", name="Session in use").wait_for()
    notebook.keyboard.press("Control+s")
    file = stack.folder / "homes" / new_name / "mine.ipynb"
    wait_for(lambda: "only on this page" in file.read_text())


@pytest.mark.long
def test_cell_that_asks_is_answered_in_the_same_page_after_the_return(
    admin: Admin, new_name: str, notebook: Page
) -> None:
    edit_cell(notebook, 1, "print('hello', input('who are you? '))")
    cell = notebook.locator(".jp-Notebook .jp-CodeCell").nth(1)
    cell.locator(".cm-content").click()
    notebook.keyboard.press("Shift+Enter")
    question = cell.locator("input.jp-Stdin-input")
    question.wait_for()
    admin.suspend(new_name)
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    notice_of(notebook, "Your session is back.").wait_for()
    question.fill("Ada")
    shoot(notebook, "tab-question")
    question.press("Enter")
    cell.get_by_text("hello Ada").wait_for()


@contextmanager
def slow_agent(stack: Stack) -> Iterator[Callable[[], None]]:
    """An agent that works a little when told to, so that a person sees its steps."""
    agent = stack.parts["agent"]

    def work_a_little() -> None:
        agent.send_signal(signal.SIGCONT)
        time.sleep(0.05)
        agent.send_signal(signal.SIGSTOP)

    agent.send_signal(signal.SIGSTOP)
    try:
        yield work_a_little
    finally:
        agent.send_signal(signal.SIGCONT)


@pytest.mark.long
def test_suspended_tab_says_so_holds_saves_and_asks_before_a_cell_runs_by_keyboard(
    stack: Stack, admin: Admin, new_name: str, notebook: Page
) -> None:
    file = stack.folder / "homes" / new_name / "mine.ipynb"
    edit_cell(notebook, 1, "print('saved later:', x + 1)")
    admin.suspend(new_name)
    notebook.keyboard.press("Control+s")  # the page does not know of it yet
    dialog_of(notebook).wait_for()
    notebook.wait_for_timeout(500)
    assert notebook.locator(".jp-Dialog").count() == 0
    notebook.keyboard.press("Escape")
    notice_of(notebook, "suspended").get_by_role("button", name="Close").press("Enter")
    corner = notebook.get_by_role("region", name="State of this session")
    assert corner.get_by_role("button").all_inner_texts() == ["Suspended", "Resume"]
    assert axe.problems(notebook, within=".gpu-reclaim-corner") == []

    cell = notebook.locator(".jp-Notebook .jp-CodeCell").nth(1)
    cell.locator(".cm-content").focus()
    notebook.keyboard.press("Control+s")
    notice_of(notebook, "Not saved yet").wait_for()
    shoot(notebook, "tab-save-held")
    notebook.keyboard.press("Control+Enter")
    resume = dialog_of(notebook).get_by_role("button", name="Resume and run")
    resume.wait_for()
    assert is_focused(resume)
    shoot(notebook, "tab-cell-asks")
    notebook.keyboard.press("Shift+Tab")  # over "Not now"
    notebook.keyboard.press("Shift+Tab")
    notebook.keyboard.press("Space")
    choice = dialog_of(notebook).get_by_role("checkbox", name="without asking")
    assert is_focused(choice)
    assert choice.is_checked()
    notebook.keyboard.press("Escape")
    dialog_of(notebook).wait_for(state="hidden")
    assert cell.locator(".jp-InputPrompt").inner_text() == "[ ]:"
    assert "saved later" not in file.read_text()
    assert admin.session(new_name)["phase"] == "suspended"

    cell.locator(".cm-content").focus()
    notebook.keyboard.press("Control+Enter")  # asked once, and not again
    output = cell.locator(".jp-OutputArea-output")
    output.wait_for()
    assert output.inner_text().strip() == "saved later: 42"
    wait_for(lambda: "saved later" in file.read_text())


def is_end_of_a_save(answer: Response) -> bool:
    return "/checkpoints" in answer.url and answer.request.method == "POST"


@pytest.mark.long
def test_save_whose_answer_the_suspend_cuts_off_is_no_conflict_after_the_return(
    stack: Stack, admin: Admin, new_name: str, notebook: Page
) -> None:
    file = stack.folder / "homes" / new_name / "mine.ipynb"
    with notebook.expect_response(is_end_of_a_save):  # there is one at a time
        notebook.keyboard.press("Control+s")
    edit_cell(notebook, 1, "print('saved:', x + 1)")

    def is_saved_and_then_cut_off(route: Route) -> None:
        if route.request.method != "PUT":
            route.fallback()
            return
        assert route.fetch().ok
        admin.suspend(new_name)
        route.fulfill(status=503)
        notebook.unroute("**/api/contents/mine.ipynb**")

    notebook.route("**/api/contents/mine.ipynb**", is_saved_and_then_cut_off)
    notebook.keyboard.press("Control+s")
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    notice_of(notebook, "Your session is back.").wait_for()
    assert "saved later:" not in file.read_text()
    edit_cell(notebook, 1, "print('saved later:', x + 1)")
    assert output_of(notebook, 1) == "saved later: 42"
    notebook.keyboard.press("Control+s")
    wait_for(lambda: "saved later:" in file.read_text(), 60)
    assert notebook.locator(".jp-Dialog").count() == 0


def is_focused(element: Locator) -> bool:
    return bool(element.evaluate("it => it === document.activeElement"))


@pytest.fixture
def dark(stack: Stack, new_name: str) -> None:
    """The person has chosen JupyterLab's dark theme."""
    folder = stack.folder / "homes" / new_name / ".jupyter/lab/user-settings"
    chosen = folder / "@jupyterlab/apputils-extension/themes.jupyterlab-settings"
    chosen.parent.mkdir(parents=True)
    chosen.write_text(json.dumps({"theme": "JupyterLab Dark"}))


@pytest.mark.long
def test_tab_names_the_reason_when_the_session_does_not_come_back(
    stack: Stack, admin: Admin, new_name: str, dark: None, notebook: Page
) -> None:
    path = stack.folder / "homes" / new_name / "table.csv"
    path.write_text("1,2\n")
    edit_cell(notebook, 1, "f = open('table.csv')")
    run_cell(notebook, 1)
    admin.suspend(new_name)
    path.unlink()
    dialog_of(notebook).get_by_role("button", name="Resume").click()
    refusal = dialog_of(notebook, "Your session could not be resumed")
    refusal.get_by_text("table.csv").wait_for()
    refusal.get_by_text("file_missing", exact=True).wait_for()
    shoot(notebook, "tab-refused-dark")
    assert axe.problems(notebook, within="#gpu-reclaim-overlay") == []

    # the choices are on the Hub's page, which tries again; the tab finds out by itself
    path.write_text("1,2\n")
    with notebook.context.expect_page() as opened:
        refusal.get_by_role("button", name="What can I do?").click()
    opened.value.get_by_text("This page tries again").wait_for()
    notice_of(notebook, "Your session is back.").wait_for(state="attached")
    edit_cell(notebook, 1, "print(f.read())")
    assert output_of(notebook, 1) == "1,2"


@pytest.mark.long
def test_tab_of_an_hour_ago_says_so_through_a_restart_of_the_hub(
    stack: Stack, admin: Admin, new_name: str, notebook: Page
) -> None:
    notebook.evaluate(HIDDEN)
    admin.suspend(new_name)
    notebook.clock.install()
    notebook.clock.fast_forward("01:05:00")
    assert dialog_of(notebook).is_hidden()  # nobody looks
    notebook.evaluate(SOMEBODY_LOOKS)
    dialog_of(notebook).wait_for()
    dialog_of(notebook).get_by_text("Suspended by admin.").wait_for()
    dialog_of(notebook).get_by_text("you resume or delete it").wait_for()
    shoot(notebook, "tab-hour-old")

    notebook.keyboard.press("Escape")
    stack.end("hub", signal.SIGKILL)
    corner = notebook.get_by_role("region", name="State of this session")
    notebook.clock.run_for(11_000)
    notice_of(notebook, "Your server does not answer").wait_for()
    corner.get_by_text("No connection").wait_for()
    stack.start_hub()
    while not corner.get_by_text("Suspended").is_visible():
        notebook.clock.run_for(5000)
        notebook.wait_for_timeout(200)
    notebook.clock.resume()
    corner.get_by_role("button", name="Resume").press("Enter")
    notice_of(notebook, "Your session is back.").wait_for(state="attached")
    assert output_of(notebook, 1) == "it is 42"


@pytest.mark.long
def test_request_that_a_person_causes_is_told_and_those_of_a_page_itself_are_not(
    stack: Stack, new_name: str, sign_in: Callable[[str], Page]
) -> None:
    """Looked at from outside: what Playwright evaluates in a page counts as a click."""
    home = stack.folder / "homes" / new_name
    home.mkdir(parents=True)
    (home / "mine.ipynb").write_text(notebook_of("1"))
    page = sign_in(new_name)
    lab = f"/user/{new_name}/lab/tree/mine.ipynb?reset"
    page.goto(f"{stack.url}/hub/spawn/{new_name}?next={lab}", wait_until="commit")

    def told(path: str) -> Any:
        answer = page.request.get(f"{stack.url}/user/{new_name}/api/{path}")
        return answer.json() if answer.ok else None

    wait_for(lambda: told("sessions"))  # the page has asked for the kernel itself
    assert PERSON_ASKED not in told("status")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
    page.locator(".jp-Notebook").click()
    page.keyboard.press("Control+s")
    wait_for(lambda: PERSON_ASKED in told("status"))
