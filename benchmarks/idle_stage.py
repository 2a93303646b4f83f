"""A real Jupyter server in a session of its own, and what people do with it.

Used by ``idle_corpus.py``. Kernels, terminals, pages (websockets as a page has them)
and programs are real; only the card is not: a program says in a file when it works on
it, and NVIDIA's library, as tests have it, repeats that to the real reader of it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from demo.stack import free_port
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.node.sessions.samples import find_kernels
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget
from tests.support import chromium
from tests.support.agent import Jupyter, Place, wait_for
from tests.support.nvml import Recorded, measured, process
from tests.support.served import here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page as BrowserPage

    from benchmarks.idle_programs import Program

EXTENSION = "jupyterhub_gpu_reclaim.lab.server_extension"
PROXY = "jupyter_server_proxy"
PYTHON = sys.executable  # a terminal's shell may have another PATH
#: Seconds from the loading of a program's page until somebody uses it.
PAGE_USED_AT = 50.0
#: Begins a program with a card; ``work(seconds)`` computes on that alone.
CARD = """
import time
def work(seconds):
    with open("card.log", "a") as log:
        print(time.time(), seconds, file=log)
    time.sleep(seconds)
open("card.log", "a").close()
"""


class Stage:
    """One session to play a situation in.

    Args:
        folder: of its own; its path has to be short.
    """

    def __init__(self, folder: Path) -> None:
        self._places: list[Place] = []

        def place(*words: str, env: dict[str, str] | None = None) -> Place:
            self._places.append(Place(folder, *words, env=env))
            return self._places[-1]

        switch = "--ServerApp.jpserver_extensions="
        options = (f"{switch}{EXTENSION}=True", f"{switch}{PROXY}=True")
        self.server = Jupyter(folder, place, *options)
        self.home = self.server.home
        self.over = threading.Event()
        self._open = contextlib.ExitStack()
        self._threads: list[threading.Thread] = []
        #: What has gone wrong in the background.
        self.troubles: list[str] = []

    def close(self) -> None:
        """End everything."""
        self.over.set()
        for place in self._places:
            place.kill()
        for thread in self._threads:
            thread.join(20)
        self._open.close()
        self.server.client.close()

    # --- what goes on ----------------------------------------------------------------

    def every(self, seconds: float, action: Callable[[], Any]) -> None:
        """Do that again and again until the end."""

        def repeat() -> None:
            while not self.over.wait(seconds):
                self._try(action)

        self.begin(repeat)

    def _try(self, action: Callable[[], Any]) -> None:
        """Do that; what breaks before the end makes the situation void."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - told with the situation
            if not self.over.is_set():
                self.troubles.append(f"{type(error).__name__}: {error}")

    def later(self, seconds: float, action: Callable[[], Any]) -> None:
        """Do that once, so many seconds from now."""

        def once() -> None:
            if not self.over.wait(seconds):
                self._try(action)

        self.begin(once)

    def begin(self, action: Callable[[], Any]) -> None:
        """Do that beside everything else."""
        self._threads.append(threading.Thread(target=action, daemon=True))
        self._threads[-1].start()

    # --- the person ------------------------------------------------------------------

    def kernel(self, name: str = "work.ipynb") -> str:
        """A kernel of a notebook, which has run a cell."""
        return self.server.start_kernel(name)

    def run(self, kernel: str, code: str) -> None:
        """Run a cell to its end."""
        self.server.run(kernel, code)

    def cell(self, kernel: str, code: str) -> Page:
        """Run a cell in an open page, and do not wait for its end."""
        page = self.page(kernel)
        page.send("execute_request", "shell", code=code, allow_stdin=True)
        wait_for(lambda: self.state(kernel) == "busy")
        return page

    def page(self, kernel: str) -> Page:
        """An open page with that kernel, which reads what comes."""
        session = uuid.uuid4().hex
        channel = self._open.enter_context(self.server.channel(kernel, session))
        return Page(self, channel, session)

    def state(self, kernel: str) -> str:
        """What the server says of a kernel."""
        found = {one["id"]: one for one in self.server.kernels()}
        return str(found[kernel]["execution_state"])

    def terminal(self, command: str = "") -> Callable[[str], None]:
        """A terminal with that command line typed in it; what types more."""
        name = self.server.client.post("api/terminals").json()["name"]
        url = self.server.url.replace("http", "ws") + f"terminals/websocket/{name}"
        headers = {"Authorization": f"token {self.server.TOKEN}"}
        shell = self._open.enter_context(connect(url, additional_headers=headers))

        def type_in(text: str) -> None:
            shell.send(json.dumps(["stdin", text]))

        self.begin(lambda: _drain(shell))
        type_in(f"cd {self.home}; {command}\r")
        return type_in

    def program(self, code: str, name: str = "job.py") -> None:
        """A Python program, started in a terminal in place of its shell."""
        (self.home / name).write_text(f"open('{name}.begun', 'w').close()\n{code}")
        self.terminal(f"exec {PYTHON} {name}")
        wait_for((self.home / f"{name}.begun").exists)

    def behind(self, program: str) -> ClientConnection:
        """The page of a program of the session, through jupyter-server-proxy.

        Args:
            program: its code; it listens on ``port``.
        """
        port = free_port()
        self.program(f"port = {port}\n{program}", "behind.py")
        url = self.server.url.replace("http", "ws") + f"proxy/{port}/"
        headers = {"Authorization": f"token {self.server.TOKEN}"}

        wait_for(lambda: _listens(port))
        page = self._open.enter_context(connect(url, additional_headers=headers))
        self.begin(lambda: _drain(page))
        return page

    def shows(
        self, program: Program, act: Callable[[BrowserPage], None] | None = None
    ) -> None:
        """A program behind the server, with its page open in a browser.

        Args:
            program: which.
            act: what somebody does there, ``PAGE_USED_AT`` seconds after it has been
                loaded; None: nobody touches it.
        """
        port = free_port()
        path = f"proxy/absolute/{port}" if program.absolute else f"proxy/{port}/"
        facts = {
            "{bin}": str(program.folder),
            "{home}": str(self.home),
            "{port}": str(port),
            "{prefix}": f"{self.server.PREFIX}{path}",
        }
        for name, text in program.files.items():
            file = self.home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled_in(text, facts))
        self.terminal(f"exec {_filled_in(program.command, facts)}")
        wait_for(lambda: _listens(port), 90)
        loaded = threading.Event()
        url = f"{self.server.url}{path.removesuffix('/')}/"
        self.begin(lambda: self._try(lambda: self._browse(url, program, act, loaded)))
        if not loaded.wait(120):
            raise TimeoutError(f"{program.name} shows no page: {self.troubles}")

    def _browse(
        self,
        url: str,
        program: Program,
        act: Callable[[BrowserPage], None] | None,
        loaded: threading.Event,
    ) -> None:
        """Open its page, use it once, and leave it open until the end."""
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium.PATH, args=chromium.ARGUMENTS
            )
            page = browser.new_page()
            page.goto(f"{self.server.url}api/status?token={self.server.TOKEN}")
            page.goto(url)
            page.wait_for_selector(program.shown, timeout=90_000)
            loaded.set()
            if act is not None and not self.over.wait(PAGE_USED_AT):
                act(page)
            self.over.wait()
            browser.close()

    # --- what is measured ------------------------------------------------------------

    def target(self) -> SampleTarget:
        """What the sampler is asked to look at."""
        tree, server = self.server.place.tree, self.server
        return SampleTarget(
            incarnation=server.place.incarnation,
            key=SessionKey("ann"),
            init_pid=tree.init.pid,
            root_pid=tree.server.pid,
            pids=[one.pid for one in tree.processes],
            kernels=[kernel.pid for kernel in find_kernels(tree)],
            address=here(server.port, server.PREFIX, server.TOKEN),
        )


class Page:
    """A page with a kernel, as the server sees it."""

    def __init__(self, stage: Stage, channel: ClientConnection, session: str) -> None:
        self._channel = channel
        self.session = session
        self.asked = threading.Event()
        stage.begin(lambda: _drain(channel, self._hear))

    def _hear(self, text: str | bytes) -> None:
        if json.loads(text)["msg_type"] == "input_request":
            self.asked.set()

    def send(self, kind: str, channel: str, **content: Any) -> None:
        """Send one message to the kernel."""
        if kind == "execute_request":
            content = {"silent": False, "store_history": True, **content}
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self.session,
            "username": "",
            "version": "5.3",
        }
        empty: dict[str, Any] = {"parent_header": {}, "metadata": {}, "buffers": []}
        message = {"content": content, "channel": channel, "header": header}
        self._channel.send(json.dumps(empty | message))

    def close(self) -> None:
        """Close the tab."""
        self._channel.close()

    def answer(self, value: str) -> None:
        """Answer the cell's question."""
        self.asked.clear()
        self.send("input_reply", "stdin", value=value)

    def wait_for_question(self) -> None:
        """Until the cell asks."""
        if not self.asked.wait(30):
            raise TimeoutError("the cell has asked nothing")


def _filled_in(text: str, facts: dict[str, str]) -> str:
    for name, value in facts.items():
        text = text.replace(name, value)
    return text


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _drain(
    connection: ClientConnection, hear: Callable[[str | bytes], None] | None = None
) -> None:
    """Read what comes until the end, as a page does."""
    with contextlib.suppress(ConnectionClosed, OSError):
        for text in connection:
            if hear is not None:
                hear(text)


class PlayedCard(Recorded):
    """NVIDIA's library, with a card that works when a program says so."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._log = stage.home / "card.log"

    def _pids(self) -> list[int]:
        """Whose card it is: all work is told of the session's last program."""
        if not self._log.exists():
            return []
        target = self._stage.target()
        return [max(pid for pid in target.pids if pid != target.root_pid)]

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802
        self, handle: int
    ) -> list[Any]:
        del handle
        return [process(pid, 1 << 30) for pid in self._pids()]

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, handle: int, since: int
    ) -> list[Any]:
        del handle
        begun, now = since / 1e6, time.time()
        worked = 0.0
        if self._log.exists():
            for line in self._log.read_text().splitlines():
                at, seconds = map(float, line.split())
                worked += max(0.0, min(now, at + seconds) - max(begun, at))
        percent = round(100 * worked / (now - begun))
        return [measured(pid, percent, 0) for pid in self._pids()]
