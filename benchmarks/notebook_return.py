"""From the click to the notebook: a suspended session, a new one, one that runs.

    sudo .venv/bin/python -m benchmarks.notebook_return [--rounds 5] [--folder /tmp]

A real JupyterHub on this machine, JupyterLab in Chromium, whose cache has the Lab's
files, as that of somebody who returns has. In each round the address of a notebook is
opened three times, each in a new tab, until its kernel is shown as idle:

* "running": the session runs, so this is what JupyterLab itself takes;
* "resumed": it is suspended, and comes back with its kernel;
* "cold": its server was stopped, as a culler does: a new server and a new kernel,
  without what was in memory.

Prints medians, seconds: "server" until the browser has the first byte of the session's
own page, "page" from then on; the ratio is to "cold" of the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo.admin import Admin
from demo.stack import Stack
from demo.user import User
from tests.browser.conftest import notebook_of
from tests.support import chromium

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

NAME = "ann"
PATH = f"/user/{NAME}/lab/tree/mine.ipynb"
IDLE = "Python 3 (ipykernel) | Idle"
#: Seconds: a start on a busy machine.
PATIENCE = 120
SETTINGS = {"idle_after": 0, "sample_interval": 1}


class Opened(NamedTuple):
    """Seconds of one that was opened."""

    server: float
    page: float

    @property
    def whole(self) -> float:
        """From the click to the notebook."""
        return self.server + self.page


def open_notebook(context: BrowserContext, url: str) -> Opened:
    """Open it in a new tab, and wait until its kernel is there and idle."""
    page = context.new_page()
    try:
        begun = time.time()
        page.goto(url, wait_until="commit")
        page.get_by_text(IDLE).wait_for()
        took = time.time() - begun
        answered = page.evaluate(
            "performance.timeOrigin"
            " + performance.getEntriesByType('navigation')[0].responseStart"
        )
        server = answered / 1000 - begun
        return Opened(server, took - server)
    finally:
        page.close()


class Scene:
    """One user of one Hub, with a browser."""

    def __init__(self, stack: Stack, context: BrowserContext) -> None:
        self._stack = stack
        self._context = context
        self._user = User(stack.url, NAME, stack.password)
        self._user.login()
        self._admin = Admin(stack)
        context.add_cookies(chromium.cookies(self._user))
        context.set_default_timeout(PATIENCE * 1000)
        home = stack.folder / "homes" / NAME
        home.mkdir(parents=True)
        (home / "mine.ipynb").write_text(notebook_of("x = 1"))

    def cold(self) -> Opened:
        """A new server, where the former one was stopped with its kernels."""
        self._user.hub("DELETE", f"users/{NAME}/server")
        until = time.monotonic() + PATIENCE
        while self._user.hub("GET", f"users/{NAME}").json()["servers"]:
            assert time.monotonic() < until, "the server was not stopped"
            time.sleep(0.1)
        spawn = f"{self._stack.url}/hub/spawn/{NAME}"
        return open_notebook(self._context, f"{spawn}?next={quote(PATH)}")

    def running(self) -> Opened:
        """The session that runs."""
        return open_notebook(self._context, self._stack.url + PATH)

    def resumed(self) -> Opened:
        """The session, suspended."""
        self._admin.suspend(NAME)
        return open_notebook(self._context, self._stack.url + PATH)


def measure(folder: str | None, rounds: int) -> dict[str, list[Opened]]:
    """Open each kind once in each round, after one that fills the browser's cache."""
    found: dict[str, list[Opened]] = {"running": [], "resumed": [], "cold": []}
    with (
        tempfile.TemporaryDirectory(prefix="grc-", dir=folder) as own,
        Stack(Path(own), **SETTINGS) as stack,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=chromium.PATH, args=chromium.ARGUMENTS
        ) as browser,
    ):
        scene = Scene(stack, browser.new_context())
        scene.cold()
        for _ in range(rounds):
            for kind, opened in found.items():
                opened.append(getattr(scene, kind)())
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where Hub, homes and store are made")
    options = parser.parse_args()
    found = measure(options.folder, options.rounds)
    cold = statistics.median(each.whole for each in found["cold"])
    print("| notebook of a session | server | page | whole | ratio |")
    print("|---|---|---|---|---|")
    for kind, opened in found.items():
        whole, server, page = (
            statistics.median(getattr(each, name) for each in opened)
            for name in ("whole", "server", "page")
        )
        print(
            f"| {kind} | {server:.2f} s | {page:.2f} s | {whole:.2f} s"
            f" | {whole / cold:.2f} |"
        )


if __name__ == "__main__":
    main()
