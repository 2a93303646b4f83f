"""Extensions of Jupyter, each as somebody uses it; played by ``extensions.py``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.stack import free_port
from demo.user import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import requests
    from playwright.sync_api import BrowserContext, Page

    from demo.user import Kernel, User


@dataclass
class Scene:
    """One person with an open browser, and what they have begun."""

    user: User
    home: Path
    browser: BrowserContext
    tab: Page
    kernel: Kernel | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        """Of the session's server."""
        return f"{self.user.base}{self.user.server().prefix}"

    def call(self, method: str, path: str, **body: Any) -> requests.Response:
        """Call the server below its prefix, as the extension's page does."""
        server = self.user.server()
        xsrf = self.user.http.cookies.get("_xsrf", path=server.path) or ""
        answer = self.user.http.request(
            method,
            f"{self.url}{path}",
            headers={"X-XSRFToken": xsrf, "Referer": f"{self.url}lab"},
            json=body or None,
            timeout=60,
        )
        if not answer.ok:
            raise UserError(f"{path}: {answer.status_code} {answer.text[:200]}")
        return answer

    def run(self, code: str) -> str:
        """Run a cell in the kernel, which is started by the first."""
        if self.kernel is None:
            self.kernel = self.user.server().start_kernel()
        with self.kernel as kernel:
            out = kernel.run(code, seconds=90)
        return (out.text or out.result).strip()

    def open(self, path: str, shown: str) -> None:
        """Show a page of the server, and wait until it has that."""
        self.tab.goto(f"{self.url}{path}", wait_until="commit")
        self.tab.locator(shown).first.wait_for(timeout=90_000)


@dataclass(frozen=True)
class Play:
    """How one extension is used.

    Attributes:
        name: of the person; what precedes a ``-`` names the environment.
        what: the extension, and what it does when the session goes.
        packages: what pip is asked for.
        begin: put it in use.
        check: what works; ``False`` or an error is what does not.
        act: what somebody does who uses nothing but this; None: there is nothing.
        in_lab: whether its tab is JupyterLab's, in which the return is offered.
    """

    name: str
    what: str
    packages: tuple[str, ...]
    begin: Callable[[Scene], None]
    check: Callable[[Scene], dict[str, bool]]
    act: Callable[[Scene], None] | None = None
    in_lab: bool = True
    pause: float = 0.0  #: seconds that the session stays away, the second time
    config: str = ""  #: the server's

    @property
    def environment(self) -> str:
        """The folder in which it is installed."""
        return self.name.split("-")[0]


# --- jupyter-resource-usage ----------------------------------------------------------


_MEMORY = "#jp-main-statusbar >> text=Mem:"


def _show_usage(scene: Scene) -> None:
    scene.run("x = 41")
    scene.open("lab?reset", _MEMORY)


def _usage_is_shown(scene: Scene) -> dict[str, bool]:
    with scene.tab.expect_response(lambda a: "api/metrics" in a.url and a.ok):
        pass
    shown = scene.tab.locator(_MEMORY).first
    shown.wait_for()
    return {
        "its numbers come": shown.is_visible(),
        "variable": scene.run("x + 1") == "42",
    }


# --- jupyter-collaboration -----------------------------------------------------------

_EDITOR = ".jp-FileEditor .cm-content"


def _edit_together(scene: Scene) -> None:
    (scene.home / "notes.txt").write_text("begun\n")
    path = "lab/tree/notes.txt?reset"
    scene.open(path, _EDITOR)
    other = scene.browser.new_page()
    for page in (scene.tab, other):  # asked where a document loads slowly
        waits = page.get_by_role("button", name="Continue waiting")
        page.add_locator_handler(waits, lambda button: button.click())
    other.goto(f"{scene.url}{path.replace('lab/', 'lab/workspaces/other/')}")
    other.locator(_EDITOR).wait_for(timeout=90_000)
    scene.facts.update(other=other, written=[])
    _write_together(scene)


def _write_together(scene: Scene) -> None:
    word = f"word{len(scene.facts['written'])} "
    scene.tab.locator(_EDITOR).click()
    scene.tab.keyboard.press("Control+End")
    scene.tab.keyboard.type(word, delay=60)
    scene.facts["written"].append(word.strip())


def _all_written(page: Page, words: list[str]) -> bool:
    for _ in range(40):
        text = page.locator(_EDITOR).inner_text()
        if all(text.count(word) == 1 for word in words):
            return True
        page.wait_for_timeout(500)
    return False


def _both_have_all(scene: Scene) -> dict[str, bool]:
    words, other = scene.facts["written"], scene.facts["other"]
    seen = {"nothing is lost or doubled": _all_written(scene.tab, words)}
    _write_together(scene)
    seen["the other tab follows"] = _all_written(other, words)
    on_disk = (scene.home / "notes.txt").read_text()
    seen["on disk"] = all(word in on_disk for word in words[:-1])
    return seen


# --- jupyterlab-lsp ------------------------------------------------------------------


def _open_source(scene: Scene) -> None:
    (scene.home / "a.py").write_text("missing_0\n")
    scene.facts["lines"] = 1
    scene.open("lab/tree/a.py?reset", _EDITOR)
    _marked(scene, 1)
    scene.facts["pid"] = _pids_of(scene, "pylsp")


def _pids_of(scene: Scene, program: str) -> str:
    found = "psutil.Process().parent().children(True)"
    return scene.run(
        f"import psutil; print([p.pid for p in {found} "
        f"if p.status() != 'zombie' and {program!r} in ' '.join(p.cmdline())])"
    )


def _write_source(scene: Scene) -> None:
    """A line, saved: JupyterLab does so every two minutes, too slow for the play."""
    scene.tab.locator(_EDITOR).click()
    scene.tab.keyboard.press("Control+End")
    scene.tab.keyboard.type(f"missing_{scene.facts['lines']}\n", delay=60)
    scene.tab.keyboard.press("Control+s")
    scene.facts["lines"] += 1


def _marked(scene: Scene, number: int) -> bool:
    marks = scene.tab.locator(f"{_EDITOR} [class*=cm-lintRange]")
    marks.nth(number - 1).wait_for(timeout=40_000)
    return True


def _source_is_checked(scene: Scene) -> dict[str, bool]:
    for _ in range(2):  # the second once it is connected again
        _write_source(scene)
        checked = _marked(scene, scene.facts["lines"])
    same = _pids_of(scene, "pylsp") == scene.facts["pid"]
    return {"the same language server": same, "new lines are checked": checked}


# --- dask-labextension ---------------------------------------------------------------


def _begin_cluster(scene: Scene) -> None:
    scene.user.start_server()
    cluster = scene.call("PUT", "dask/clusters").json()
    scene.facts["id"] = cluster["id"]
    address = cluster["scheduler_address"]
    scene.run(
        "import dask.array as da; from dask.distributed import Client, wait\n"
        f"client = Client({address!r}); client.wait_for_workers(1)\n"
        "x = da.random.random((2000, 2000), chunks=500).persist(); wait(x)\n"
        "known = float(x.sum().compute())\n"
        "held = lambda: {k for of in client.has_what().values() for k in of}\n"
        "keys = {k for row in x.__dask_keys__() for k in row}\n"
        "workers = set(client.scheduler_info()['workers'])\n"
    )
    scene.open(f"dask/dashboard/{cluster['id']}/status", ".bk-Figure, .bk-root, .bokeh")


def _array_is_there(scene: Scene) -> dict[str, bool]:
    told = scene.run(
        "print(set(client.scheduler_info()['workers']) == workers,"
        " keys <= held(), float(x.sum().compute()) == known)"
    ).split()
    dashboard = scene.call("GET", f"dask/dashboard/{scene.facts['id']}/status")
    listed = scene.call("GET", "dask/clusters").json()
    scene.run("assert client.submit(lambda: 42).result(timeout=30) == 42")
    return {
        "same workers": told[0] == "True",
        "persisted chunks": told[1] == "True",
        "same values": told[2] == "True",
        "dashboard": dashboard.ok,
        "listed": scene.facts["id"] in [one["id"] for one in listed],
    }


# --- jupyterlab-git ------------------------------------------------------------------


def _git(*words: str, cwd: Path) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c"}
    who |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c"}
    done = subprocess.run(
        ["git", *words],
        cwd=cwd,
        env=os.environ | who,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _open_repository(scene: Scene) -> None:
    folder = scene.home / "work"
    folder.mkdir()
    _git("init", "-q", cwd=folder)
    _git("config", "user.name", "a", cwd=folder)
    _git("config", "user.email", "a@b.c", cwd=folder)
    (folder / "a.txt").write_text("a\n")
    _git("add", "-A", cwd=folder)
    _git("commit", "-qm", "first", cwd=folder)
    scene.open("lab/tree/work?reset", ".jp-DirListing-item")
    scene.tab.locator("[data-id=jp-git-sessions]").click()
    scene.facts["commits"] = 1
    _commit(scene)


def _commit(scene: Scene) -> None:
    """A file is staged and committed in the panel."""
    scene.facts["commits"] += 1
    (scene.home / "work/a.txt").write_text(f"{scene.facts['commits']}\n")
    panel = scene.tab.locator("#jp-git-sessions")
    panel.locator("button[title='Stage this change']").wait_for(state="attached")
    panel.get_by_text("Changed", exact=True).hover()
    panel.locator("button[title='Stage all changes']").click(force=True)
    panel.locator("button[title='Unstage this change']").wait_for(state="attached")
    message = panel.get_by_placeholder("Commit message").first
    message.fill("more")
    message.press("Control+Enter")
    if not _within(lambda: _commits(scene) == scene.facts["commits"], 20):
        raise UserError("the panel has not committed")


def _commits(scene: Scene) -> int:
    return len(_git("log", "--oneline", cwd=scene.home / "work").splitlines())


def _repository_is_followed(scene: Scene) -> dict[str, bool]:
    with scene.tab.expect_response(lambda a: "git/work/status" in a.url and a.ok):
        pass
    _commit(scene)
    return {
        "its panel follows": True,
        "commits": _commits(scene) == scene.facts["commits"],
    }


# --- nbgitpuller ---------------------------------------------------------------------

#: Seconds that its source takes for a clone.
SLOW = 45


def _begin_pull(scene: Scene) -> None:
    """A pull from another machine's git that is under way."""
    source = scene.home.parent / f"{scene.user.name}-source"
    source.mkdir()
    _git("init", "-q", "-b", "main", cwd=source)
    (source / "lesson.txt").write_text("one\n")
    _git("add", "-A", cwd=source)
    _git("commit", "-qm", "one", cwd=source)
    hook = source.parent / "slow"
    hook.write_text(f'#!/bin/sh\nsleep {SLOW}\nexec "$@"\n')
    hook.chmod(0o755)
    port = free_port()
    slowly = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "uploadpack.packObjectsHook",
        "GIT_CONFIG_VALUE_0": str(hook),
    }
    words = ["git", "daemon", "--reuseaddr", "--export-all", "--listen=127.0.0.1"]
    daemon = subprocess.Popen(
        [*words, f"--port={port}", f"--base-path={source}", str(source)],
        env=os.environ | slowly,
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    scene.ends.callback(daemon.wait)
    scene.ends.callback(daemon.terminate)
    scene.user.start_server()
    link = f"git-pull?repo=git://127.0.0.1:{port}/&targetpath=lesson&branch=main"
    scene.facts.update(source=source, hook=hook, link=link)
    scene.tab.goto(f"{scene.url}{link}", wait_until="commit")
    scene.tab.wait_for_timeout(5_000)


def _pull(scene: Scene) -> None:
    scene.tab.goto(f"{scene.url}{scene.facts['link']}", wait_until="commit")
    _wait_for_pull(scene)


def _wait_for_pull(scene: Scene) -> None:
    """Its page leads on when it has ended; two at once are refused."""
    scene.tab.wait_for_url("**/tree/lesson*", timeout=2 * SLOW * 1000)


def _pulled(scene: Scene) -> dict[str, bool]:
    lesson = scene.home / "lesson/lesson.txt"
    _wait_for_pull(scene)
    went_on = lesson.exists()
    source, hook = scene.facts["source"], scene.facts["hook"]
    hook.write_text('#!/bin/sh\nexec "$@"\n')
    (source / "lesson.txt").write_text("two\n")
    _git("commit", "-qam", "two", cwd=source)
    _pull(scene)
    again = "two" in lesson.read_text()
    (source / "lesson.txt").write_text("one\n")
    _git("commit", "-qam", "back", cwd=source)
    return {"the pull came to its end": went_on, "the next pull": again}


def _within(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.5)
    return False


# --- TensorBoard behind jupyter-server-proxy -----------------------------------------


def _open_tensorboard(scene: Scene) -> None:
    (scene.home / "logs").mkdir()
    scene.user.start_server()
    scene.open("tensorboard/", "text=TensorBoard")
    scene.facts["pid"] = _pids_of(scene, "tensorboard")


def _tensorboard_answers(scene: Scene) -> dict[str, bool]:
    scene.open("tensorboard/", "text=TensorBoard")
    return {"same program": _pids_of(scene, "tensorboard") == scene.facts["pid"]}


# --- ipyparallel ---------------------------------------------------------------------


def _begin_engines(scene: Scene) -> None:
    scene.open("lab?reset", ".jp-Launcher")
    scene.run(
        "import ipyparallel as ipp\ncluster = ipp.Cluster(n=2, log_level=40)\n"
        "rc = cluster.start_and_connect_sync(); rc[:]['a'] = 7\n"
        "pids = rc[:].apply_sync(__import__('os').getpid)"
    )


def _engines_answer(scene: Scene) -> dict[str, bool]:
    told = scene.run(
        "print(rc[:]['a'] == [7, 7], pids == rc[:].apply_sync(__import__('os').getpid))"
    ).split()
    return {"their variables": told[0] == "True", "same engines": told[1] == "True"}


PLAYS = (
    Play(
        "resource",
        "jupyter-resource-usage: the memory in the status bar, asked every 5 s",
        ("jupyter-resource-usage",),
        _show_usage,
        _usage_is_shown,
    ),
    Play(
        "collab",
        "jupyter-collaboration: a text in two tabs, saved by itself after 1 s",
        ("jupyter-collaboration",),
        _edit_together,
        _both_have_all,
        _write_together,
    ),
    Play(
        "collab-unsaved",
        "jupyter-collaboration: the same, never saved by itself",
        ("jupyter-collaboration",),
        _edit_together,
        _both_have_all,
        _write_together,
        config="c.YDocExtension.document_save_delay = None\n",
    ),
    Play(
        "lsp",
        "jupyterlab-lsp with python-lsp-server: an open source",
        ("jupyterlab-lsp", "python-lsp-server", "pyflakes"),
        _open_source,
        _source_is_checked,
        _write_source,
    ),
    Play(
        "dask",
        "dask-labextension: a LocalCluster with a persisted array, its dashboard open",
        ("dask-labextension", "dask", "distributed", "numpy"),
        _begin_cluster,
        _array_is_there,
        in_lab=False,
    ),
    Play(
        "dask-later",
        "dask-labextension: the same, away for longer than `worker-ttl`",
        ("dask-labextension", "dask", "distributed", "numpy"),
        _begin_cluster,
        _array_is_there,
        in_lab=False,
        pause=40.0,
    ),
    Play(
        "git",
        "jupyterlab-git: its panel is open",
        ("jupyterlab-git",),
        _open_repository,
        _repository_is_followed,
        _commit,
    ),
    Play(
        "puller",
        "nbgitpuller: a clone that is under way",
        ("nbgitpuller",),
        _begin_pull,
        _pulled,
        in_lab=False,
    ),
    Play(
        "tensorboard",
        "jupyter-tensorboard-proxy: its page is open",
        ("jupyter-server-proxy", "tensorboard", "jupyter-tensorboard-proxy"),
        _open_tensorboard,
        _tensorboard_answers,
        lambda scene: scene.open("tensorboard/", "text=TensorBoard"),
        in_lab=False,
    ),
    Play(
        "parallel",
        "ipyparallel: two engines with a variable",
        ("ipyparallel",),
        _begin_engines,
        _engines_answer,
    ),
)
