"""Extensions of Jupyter in sessions that go and come back, twice.

    sudo .venv/bin/python -m benchmarks.extensions FOLDER [--install] [--only NAMES]

Each of ``extension_plays.py`` is played in a session of a real JupyterHub, with its
page in Chromium: put in use; left alone, until the session is suspended for being idle
(``IDLE_AFTER``) or for so long that it would have been; brought back in the same tab;
used, which must keep it awake; suspended by order; and brought back by a new load of
the page. FOLDER has an environment for each, which ``--install`` makes with pip.
Takes some ten minutes of two cores, and prints a table.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import Error as BrowserError
from playwright.sync_api import sync_playwright

from benchmarks.extension_plays import PLAYS, Scene
from demo.admin import Admin
from demo.stack import Stack
from demo.user import User, UserError
from tests.support import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from benchmarks.extension_plays import Play

ROOT = Path(__file__).parents[1]
#: Seconds, in place of 15 minutes; and how long one that is left alone is watched.
IDLE_AFTER, ALONE = 30, 150
#: Seconds that somebody uses it for, and from one act to the next.
USED, EVERY = 48, 8
#: Starts a user's server in the environment that is named like them.
SERVER = """#!/bin/sh
here="{folder}/${{JUPYTERHUB_USER%%-*}}/bin"
PATH="$here:$PATH" exec "$here/jupyterhub-singleuser" "$@"
"""
SETTINGS = {
    "idle_after": IDLE_AFTER,
    "sample_interval": 1,
    "warn_for": 0,
    "http_timeout": 300,
    # dask's, which forgets a worker that it has not heard of for so long
    "environment": {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "30s"},
    "options": {
        # The loading of JupyterLab takes longer than a page's 20 s on a busy machine.
        "busy_data_rate": 200_000,
    },
}


def install(folder: Path, plays: list[Play]) -> None:
    """Make an environment for each, with this package in it."""
    for name, packages in {one.environment: one.packages for one in plays}.items():
        if not (folder / name).exists():
            words = [sys.executable, "-m", "venv", folder / name]
            subprocess.run(words, check=True)
        pip = [folder / name / "bin/python", "-m", "pip", "install", "-q"]
        common = ["jupyterhub", "jupyterlab", "ipykernel", "psutil", str(ROOT)]
        subprocess.run([*pip, *common, *packages], check=True)


class Report:
    """What was seen of one."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.alone = self.used = "-"
        self.refused: list[str] = []
        self.returns: list[str] = []
        self.failed = ""

    def line(self) -> str:
        """As a row of the table."""
        refused = ", ".join(self.refused) or "-"
        seen = [*self.returns, "-", "-"][:2]
        cells = [self.play.what, self.alone, self.used, refused, *seen, self.failed]
        return "| " + " | ".join(cells) + " |"


class Run:
    """One play in one session."""

    def __init__(self, play: Play, stack: Stack, browser: Browser) -> None:
        self.play, self.stack = play, stack
        self.report = Report(play)
        self.admin = Admin(stack)
        user = User(stack.url, play.name, stack.password)
        user.login()
        home = stack.folder / "homes" / play.name
        (home / ".jupyter").mkdir(parents=True)
        (home / ".jupyter/jupyter_server_config.py").write_text(
            f"c = get_config()\n{play.config}"
        )
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.add_cookies(chromium.cookies(user))
        context.set_default_timeout(60_000)
        self.scene = Scene(user, home, context, context.new_page())

    def play_all(self) -> None:
        """Everything, in order."""
        self.scene.user.start_server(seconds=300)
        with self._kept():
            self.play.begin(self.scene)
        self._leave_alone()
        self._come_back()
        self._use()
        self._suspend()
        time.sleep(self.play.pause)
        self._come_back(reload=True)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """On a busy machine what is done here may take longer than ``IDLE_AFTER``."""
        keep = f"sessions/{self.play.name}/-/keep"
        self.admin.call("POST", keep, json={"seconds": 1800})
        try:
            yield
        finally:
            self.admin.call("POST", keep, json={"seconds": 0})

    def _codes(self, seconds: float) -> Iterator[str]:
        """The session's phase or why it is kept, each second."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            view = self.admin.session(self.play.name)
            verdict = view["verdict"] or {}
            running = view["phase"] == "running"
            yield str(verdict.get("code")) if running else str(view["phase"])
            self.scene.tab.wait_for_timeout(1000)

    def _leave_alone(self) -> None:
        begun, last = time.monotonic(), ""
        for code in self._codes(ALONE):
            if code == "suspended":
                seconds = time.monotonic() - begun
                self.report.alone = f"suspended after {seconds:.0f} s"
                return
            last = code
        self.report.alone = f"kept: `{last}`"
        self._suspend()

    def _suspend(self) -> None:
        try:
            self.admin.suspend(self.play.name, seconds=90)
        except UserError as error:
            self.report.refused.append(str(error)[:400])
            raise

    def _use(self) -> None:
        if self.play.act is None:
            return
        with self._kept():  # what went before may have taken longer than IDLE_AFTER
            self.play.act(self.scene)
        until, codes = time.monotonic() + USED, []
        while time.monotonic() < until:
            codes += list(self._codes(EVERY))
            if codes[-1] in {"suspending", "releasing", "suspended"}:
                self.report.used = "**suspended while in use**"
                self.admin.wait(self.play.name, phase="suspended")
                self._back(reload=True)
                return
            self.play.act(self.scene)
        # once it could have been suspended
        late = sorted(set(codes[IDLE_AFTER:]))
        self.report.used = "kept: " + ", ".join(f"`{code}`" for code in late)

    def _back(self, *, reload: bool) -> None:
        tab = self.scene.tab
        if self.play.in_lab and not reload:
            dialog = tab.get_by_role("dialog", name="Your session is suspended")
            dialog.get_by_role("button", name="Resume").click()
        else:
            tab.goto(tab.url, wait_until="commit")
        self.admin.wait(self.play.name, phase="running", seconds=120)
        self.scene.user.visit(f"{self.scene.user.server().prefix}lab")
        if self.play.in_lab:
            tab.locator("#jp-main-dock-panel").wait_for(timeout=90_000)

    def _come_back(self, *, reload: bool = False) -> None:
        self._back(reload=reload)
        try:
            with self._kept():
                seen = self.play.check(self.scene)
        except Exception as error:  # noqa: BLE001 - told in its cell
            seen = {f"error: {' '.join(str(error).split())[:300]}": False}
        words = [name if good else f"**not:** {name}" for name, good in seen.items()]
        self.report.returns.append("; ".join(words))


def played(play: Play, stack: Stack) -> Report:
    """Play it, in a browser of its own."""
    with sync_playwright() as playwright, contextlib.ExitStack() as ends:
        browser = playwright.chromium.launch(
            executable_path=chromium.PATH, args=chromium.ARGUMENTS
        )
        ends.callback(browser.close)
        run = Run(play, stack, browser)
        ends.push(run.scene.ends)
        try:
            run.play_all()
        except Exception as error:  # noqa: BLE001 - told in its row
            run.report.failed = " ".join(str(error).split())[:500]
            with contextlib.suppress(BrowserError):
                run.scene.tab.screenshot(path=f"/tmp/extension-{play.name}.png")
        print(run.report.line(), flush=True)
        return run.report


def main() -> None:
    """Play those that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--at-once", type=int, default=3)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [one.name for one in PLAYS]
    plays = [one for one in PLAYS if one.name in names]
    folder = options.folder.resolve()
    if options.install:
        install(folder, plays)
    with tempfile.TemporaryDirectory(prefix="ext-") as name:
        server = Path(name) / "server"
        server.write_text(SERVER.format(folder=folder))
        server.chmod(0o755)
        settings = {**SETTINGS, "server": [str(server)]}
        print("| in use | left alone | used | refused | back | back again | failed |")
        print("|---|---|---|---|---|---|---|", flush=True)
        with (
            Stack(Path(name) / "stack", **settings) as stack,
            ThreadPoolExecutor(options.at_once) as pool,
        ):
            list(pool.map(lambda play: played(play, stack), plays))
            sys.stderr.write(stack.log("hub")[-3000:])


if __name__ == "__main__":
    main()
