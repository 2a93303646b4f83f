"""What people leave behind, and what they are doing: labelled situations.

Each says whether the session ought to be called idle, and who would complain if it were
not called so: of a session in use, its user, whose work is cut off or who has to wait;
of an idle one, whoever waits for its GPU. ``play`` does what was done before, and
starts what goes on meanwhile.
"""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import httpx

from benchmarks.idle_programs import PROGRAMS, VS_CODE, write_in_terminal
from benchmarks.idle_stage import CARD, PYTHON
from tests.support.agent import wait_for
from tests.support.other_machine import ADDRESS, PORT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from benchmarks.idle_programs import Program
    from benchmarks.idle_stage import Stage

Play = Callable[["Stage"], object]


@dataclass(frozen=True)
class Situation:
    """One of them; ``watched`` and ``idle_after`` where its own pace needs longer.

    ``program`` is what has to be installed for it.
    """

    title: str
    is_idle: bool
    complains: str
    play: Play
    watched: float = 0.0
    idle_after: float = 0.0
    program: Program | None = None


SITUATIONS: list[Situation] = []


def used(
    title: str,
    complains: str,
    *,
    watched: float = 0.0,
    idle_after: float = 0.0,
    is_idle: bool = False,
) -> Callable[[Play], Play]:
    """A situation that must not be called idle."""

    def add(play: Play) -> Play:
        one = Situation(title, is_idle, complains, play, watched, idle_after)
        SITUATIONS.append(one)
        return play

    return add


#: A situation that ought to be called idle.
idle = partial(used, complains="whoever waits for the GPU", is_idle=True)


WORK = "sum(range(200_000))"
SLOW = 50_000  #: bytes a second of an upload and the like


# --- somebody has gone ---------------------------------------------------------------


@idle("a notebook was used, its tab is closed")
def _(stage: Stage) -> None:
    stage.kernel()


@idle("a notebook was used, its tab is open and forgotten")
def _(stage: Stage) -> None:
    stage.page(stage.kernel())


@idle(
    "a forgotten tab that asks the kernel for its use (jupyter-resource-usage)",
)
def _(stage: Stage) -> None:
    page = stage.page(stage.kernel())
    stage.every(2, lambda: page.send("usage_request", "control"))


@idle("a forgotten tab that connects again and again")
def _(stage: Stage) -> None:
    kernel = stage.kernel()

    def connect() -> None:
        page = stage.page(kernel)
        page.send("kernel_info_request", "shell")
        page.send("comm_info_request", "shell")
        page.send("history_request", "shell", hist_access_type="tail", n=9)

    stage.every(5, connect)


@idle("a forgotten JupyterLab that polls the server")
def _(stage: Stage) -> None:
    stage.page(stage.kernel())

    def poll() -> None:
        for path in ("kernels", "sessions", "terminals", "contents", "kernelspecs"):
            stage.server.client.get(f"api/{path}")

    stage.every(3, poll)


@idle("a kernel that holds 1 GB of variables")
def _(stage: Stage) -> None:
    stage.run(stage.kernel(), "x = bytearray(10**9); x[::4096] = x[::4096]")


@idle("a kernel that holds GPU memory and computes nothing")
def _(stage: Stage) -> None:
    stage.run(stage.kernel(), CARD)


@idle("GPU work that ended a while ago, its memory is held")
def _(stage: Stage) -> None:
    stage.run(stage.kernel(), CARD + "work(5)")


@idle("a cell that failed")
def _(stage: Stage) -> None:
    page = stage.cell(stage.kernel(), "import time; time.sleep(1); 1 / 0")
    time.sleep(2)
    del page


@idle("a kernel that was started by a program and never used")
def _(stage: Stage) -> None:
    stage.server.client.post("api/kernels", json={"name": "python3"})


@idle("a kernel that has died and was started again")
def _(stage: Stage) -> None:
    kernel = stage.kernel()
    page = stage.cell(kernel, "import os, time; time.sleep(1); os._exit(1)")
    wait_for(lambda: stage.state(kernel) != "busy")
    page.close()


@idle("a cell in `input()` that nobody answers", watched=46)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "input('?')").wait_for_question()


@idle("a cell at the prompt of pdb that nobody answers", watched=46)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "import pdb; pdb.set_trace()").wait_for_question()


@idle("a cell in `getpass()`, whose tab was closed", watched=46)
def _(stage: Stage) -> None:
    page = stage.cell(stage.kernel(), "import getpass; getpass.getpass()")
    page.wait_for_question()
    page.close()


@idle("a cell that loops and sleeps, to keep the session awake")
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "import time\nwhile True: time.sleep(1)")


@idle("a cell that serves pages which nobody opens")
def _(stage: Stage) -> None:
    code = "import http.server as h\n"
    code += "h.HTTPServer(('', 0), h.BaseHTTPRequestHandler).serve_forever()"
    stage.cell(stage.kernel(), code)


@idle("a terminal at its prompt")
def _(stage: Stage) -> None:
    stage.terminal("ls")


@idle("a terminal with top")
def _(stage: Stage) -> None:
    stage.terminal("top")


@idle("a terminal that watches the GPU every two seconds")
def _(stage: Stage) -> None:
    stage.terminal("while :; do date; sleep 2; done")


@idle("a terminal that shows the end of a log nobody writes")
def _(stage: Stage) -> None:
    stage.terminal("touch a.log; tail -f a.log")


@idle("a page of a manual left open in a terminal")
def _(stage: Stage) -> None:
    stage.terminal("seq 1000 | less")


@idle("Python at its prompt in a terminal")
def _(stage: Stage) -> None:
    stage.terminal(f"{PYTHON} -q")


@idle("a stopped job (Ctrl-Z) in a terminal")
def _(stage: Stage) -> None:
    type_in = stage.terminal(f"{PYTHON} -c 'while True: pass'")
    time.sleep(2)
    type_in("\x1a")


@idle("a detached tmux at its prompt")
def _(stage: Stage) -> None:
    stage.terminal("tmux -S t new -d")


@idle("a server of pages that nobody opens, in the background")
def _(stage: Stage) -> None:
    stage.terminal(f"{PYTHON} -m http.server 0 --bind 127.0.0.1")


@idle("a thread of a kernel that looks at something each second")
def _(stage: Stage) -> None:
    code = "import threading, time\n"
    code += "def look():\n    while True: time.sleep(1); time.time()\n"
    stage.run(stage.kernel(), code + "threading.Thread(target=look).start()")


@idle("a program that logs a line each second")
def _(stage: Stage) -> None:
    code = "import logging, time\nlogging.basicConfig(filename='a.log')\n"
    stage.program(code + "while True: time.sleep(1); logging.error('I am there')")


@idle("a connection to a database, long forgotten", watched=46)
def _(stage: Stage) -> None:
    stage.run(stage.kernel(), CONNECT)


@idle("a connection to a program of the same session")
def _(stage: Stage) -> None:
    code = "import socket; s = socket.create_server(('', 0))\n"
    stage.run(stage.kernel(), code + "c = socket.create_connection(s.getsockname())")


@idle(
    "a page of VS Code, forgotten: it says every 5 s that it lives",
    watched=104,
    idle_after=80,
)
def _(stage: Stage) -> None:
    pages = [stage.behind(ECHO)]
    stage.every(5, lambda: [page.send(os.urandom(13)) for page in pages])


@idle(
    "a forgotten dashboard that asks for news every 30 s, 1 kB",
    watched=104,
    idle_after=80,
)
def _(stage: Stage) -> None:
    page = stage.behind(ECHO)
    stage.every(30, lambda: page.send(os.urandom(1000)))


@idle(
    "a forgotten dashboard that asks for news every 2 s, 1 kB",
    watched=104,
    idle_after=80,
)
def _(stage: Stage) -> None:
    page = stage.behind(ECHO)
    stage.every(2, lambda: page.send(os.urandom(1000)))


@idle("a forgotten dashboard that shows 100 kB a second")
def _(stage: Stage) -> None:
    stage.behind(SHOW)


#: Programs with a page, behind the server.
ECHO = """
import websockets.sync.server as ws
def echo(page):
    for text in page:
        page.send(b"ok")
ws.serve(echo, "127.0.0.1", port).serve_forever()
"""
SHOW = """
import os, time, websockets.sync.server as ws
def show(page):
    while True:
        page.send(os.urandom(50_000))
        time.sleep(0.5)
ws.serve(show, "127.0.0.1", port).serve_forever()
"""


# --- a program works -----------------------------------------------------------------

LOST = "the user: work is cut off"


@used("a cell computes", LOST)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "while True: pass")


@used("a cell computes, its tab is closed", LOST)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "while True: pass").close()


@used("a cell waits for something elsewhere that takes long", LOST)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "import time; time.sleep(600)")


@used("a cell that has had its answer computes on", LOST)
def _(stage: Stage) -> None:
    page = stage.cell(stage.kernel(), "input()\nimport time; time.sleep(600)")
    page.wait_for_question()
    page.answer("go")


@used("a thread of a kernel computes", LOST)
def _(stage: Stage) -> None:
    code = "import threading\ndef work():\n    while True: pass\n"
    stage.run(stage.kernel(), code + "threading.Thread(target=work).start()")


@used("a script computes in a terminal", LOST)
def _(stage: Stage) -> None:
    stage.program("while True: pass")


@used("a script computes in a detached tmux", LOST)
def _(stage: Stage) -> None:
    stage.terminal(f"tmux -S t new -d \"{PYTHON} -c 'while True: pass'\"")


@used("a script that computes for a quarter of the time", LOST)
def _(stage: Stage) -> None:
    code = "import time\nwhile True:\n    end = time.time() + 0.5\n"
    stage.program(code + "    while time.time() < end: pass\n    time.sleep(1.5)")


@used("a script that works for 4 s a minute", LOST, watched=84, idle_after=80)
def _(stage: Stage) -> None:
    code = "import time\nwhile True:\n    time.sleep(50)\n    end = time.time() + 4\n"
    stage.program(code + "    while time.time() < end: pass\n    time.sleep(6)")


@used("a training on the GPU in the background", LOST)
def _(stage: Stage) -> None:
    stage.program(CARD + "while True: work(0.9); time.sleep(0.1)")


@used("a model that answers once a minute, 1 s of GPU", LOST, watched=84, idle_after=80)
def _(stage: Stage) -> None:
    stage.program(CARD + "while True: time.sleep(30); work(1); time.sleep(29)")


@used("a script that asks another machine every 3 s whether a job is done", LOST)
def _(stage: Stage) -> None:
    code = "import socket, time\nwhile True:\n"
    code += f"    with socket.create_connection(('{ADDRESS}', {PORT})) as s:\n"
    stage.program(code + "        s.sendall(b'?'); s.recv(9)\n    time.sleep(3)")


# --- data moves ----------------------------------------------------------------------


@used("a file of 2.5 MB is uploaded slowly", "the user: the upload breaks")
def _(stage: Stage) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"type": "file", "format": "text", "content": "'
        for _ in range(50):
            if stage.over.is_set():
                return
            yield b"x" * SLOW
            time.sleep(1)
        yield b'"}'

    def upload() -> None:
        try:
            stage.server.client.put("api/contents/a.txt", content=body(), timeout=90)
        except httpx.HTTPError:
            if not stage.over.is_set():
                stage.troubles.append("the upload broke")

    stage.begin(upload)


@used(
    "a file is downloaded slowly by the browser",
    "the user: the download breaks",
    watched=64,
)
def _(stage: Stage) -> None:
    (stage.home / "a.bin").write_bytes(bytes(64 << 20))

    def download() -> None:
        with stage.server.client.stream("GET", "files/a.bin", timeout=90) as answer:
            for _ in answer.iter_bytes(SLOW):
                if stage.over.wait(0.5):
                    return

    stage.begin(download)


@used("a program downloads to a file at 50 kB/s", "the user: the download breaks")
def _(stage: Stage) -> None:
    port = slow_source(stage.over)
    stage.terminal(f"curl -s -o a.bin http://127.0.0.1:{port}/")


@used("a program copies to a slow disk", "the user: the copy is late")
def _(stage: Stage) -> None:
    code = "import time\nfile = open('a.bin', 'wb', 0)\n"
    stage.program(code + f"while True: file.write(bytes({SLOW})); time.sleep(1)")


@used("a program sends to another machine at 50 kB/s", "the user: the upload breaks")
def _(stage: Stage) -> None:
    stage.program(SEND)


@used(
    "the same, long after anybody was there", "the user: the upload breaks", watched=46
)
def _(stage: Stage) -> None:
    stage.program(SEND)


@used("a connection to a database, used a while ago", "the user: errors on the return")
def _(stage: Stage) -> None:
    stage.run(stage.kernel(), CONNECT)


CONNECT = f"import socket; s = socket.create_connection(('{ADDRESS}', {PORT}))"
#: An echo comes back, and is read as it comes.
SEND = f"""{CONNECT}
import time
while True:
    s.sendall(bytes({SLOW}))
    left = {SLOW}
    while left:
        left -= len(s.recv(left))
    time.sleep(1)
"""


def slow_source(over: threading.Event) -> int:
    """A server that sends a large file slowly; its port."""

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not over.wait(1):
                self.wfile.write(bytes(SLOW))

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


# --- somebody is there ---------------------------------------------------------------

THERE = "the user: it goes away under their hands"
#: Seconds from the start at which somebody did something, once.
ONCE = 14.0


@used("a short cell half of the time ago", THERE)
def _(stage: Stage) -> None:
    kernel = stage.kernel()
    stage.later(ONCE, lambda: stage.run(kernel, WORK))


@used("a slider is moved, as a widget tells its kernel", THERE)
def _(stage: Stage) -> None:
    page = stage.page(stage.kernel())
    content = {"comm_id": "none", "data": {"value": 7}}
    stage.later(ONCE, lambda: page.send("comm_msg", "shell", **content))


@used("keys in a terminal of Jupyter", THERE)
def _(stage: Stage) -> None:
    type_in = stage.terminal()
    stage.later(ONCE, lambda: type_in("ls\r"))


@used("keys in a terminal of a program behind the server, as VS Code has", THERE)
def _(stage: Stage) -> None:
    kernel = stage.kernel()
    stage.run(kernel, PTY)
    # Not by a cell: that would be use of the kernel.
    stage.later(ONCE, (stage.home / "type").touch)


PTY = """
import os, pty, threading, time
child, terminal = pty.fork()
if not child:
    os.execvp("sh", ["sh"])
def type_in():
    while not os.path.exists("type"):
        time.sleep(0.2)
    os.write(terminal, b"ls\\n")
threading.Thread(target=type_in).start()
"""


@used(
    "text is written in VS Code behind the server, and no terminal",
    THERE,
    watched=104,
    idle_after=80,
)
def _(stage: Stage) -> None:
    page = stage.behind(ECHO)

    def type_in() -> None:
        for _ in range(10):  # what one key sends: the change, and what fits there
            page.send(os.urandom(300))
            time.sleep(0.3)

    stage.later(50, type_in)


@used(
    "one click on a page behind the server, 500 bytes",
    THERE,
    watched=104,
    idle_after=80,
)
def _(stage: Stage) -> None:
    page = stage.behind(ECHO)
    stage.later(50, lambda: page.send(os.urandom(500)))


@used("keys in tmux, in a terminal", THERE)
def _(stage: Stage) -> None:
    type_in = stage.terminal("tmux -S t new")
    stage.later(ONCE, lambda: type_in("ls\r"))


@used("text is written in a notebook, and saved", THERE)
def _(stage: Stage) -> None:
    stage.kernel()
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "Hello"}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    body = {"type": "notebook", "format": "json", "content": notebook}
    path = "api/contents/work.ipynb"
    stage.later(ONCE, lambda: stage.server.client.put(path, json=body))


@used(
    "text is written in a file without a kernel, and saved",
    THERE,
)
def _(stage: Stage) -> None:
    body = {"type": "file", "format": "text", "content": "Hello"}
    stage.later(ONCE, lambda: stage.server.client.put("api/contents/a.md", json=body))


@used("files are opened and renamed in the browser", THERE)
def _(stage: Stage) -> None:
    (stage.home / "a.txt").write_text("Hello")

    def rename() -> None:
        stage.server.client.get("api/contents/a.txt")
        stage.server.client.patch("api/contents/a.txt", json={"path": "b.txt"})

    stage.later(ONCE, rename)


@idle("a forgotten panel asks for its state every 3 s, with POST requests")
def _(stage: Stage) -> None:
    _open_panel(stage)


@used(
    "something is changed in a panel of that kind, as a commit is",
    THERE,
)
def _(stage: Stage) -> None:
    ask = _open_panel(stage)
    stage.later(ONCE, lambda: ask({"X-GPU-Reclaim-Person": "1"}))


def _open_panel(stage: Stage) -> Callable[[dict[str, str]], object]:
    """As jupyterlab-git's; what sends one more of its requests, with those headers."""
    (stage.home / "a.txt").write_text("Hello")

    def ask(headers: dict[str, str]) -> object:
        path = "api/contents/a.txt/checkpoints"  # its server calls that no change
        return stage.server.client.post(path, headers=headers)

    stage.every(3, lambda: ask({}))
    return ask


@used("a kernel is opened", THERE)
def _(stage: Stage) -> None:
    stage.later(ONCE, lambda: stage.server.client.post("api/kernels", json={}))


@used("a kernel is restarted", THERE)
def _(stage: Stage) -> None:
    kernel = stage.kernel()
    path = f"api/kernels/{kernel}/restart"
    stage.later(ONCE, lambda: stage.server.client.post(path))


@used("somebody thinks about the answer to `input()`", THERE)
def _(stage: Stage) -> None:
    stage.cell(stage.kernel(), "input('?')").wait_for_question()


@used("somebody steps through a function with pdb", THERE)
def _(stage: Stage) -> None:
    code = "import pdb\ndef f():\n    pdb.set_trace()\n" + "    x = 1\n" * 50 + "f()"
    page = stage.cell(stage.kernel(), code)
    page.wait_for_question()
    stage.every(6, lambda: page.answer("n"))


# --- the programs themselves, with their pages in a browser ---------------------------


def _with_page(
    title: str, program: Program, act: Callable[[Page], None] | None = None
) -> None:
    """A program of which the page is open, and used once or by nobody."""
    SITUATIONS.append(
        Situation(
            title,
            is_idle=act is None,
            complains=THERE if act else "whoever waits for the GPU",
            play=lambda stage: stage.shows(program, act),
            watched=104,  # the page's loading lies before what is judged
            idle_after=80,
            program=program,
        )
    )


for _program in PROGRAMS:
    _with_page(f"{_program.name}: its page is open and forgotten", _program)
    if _program.write is not None:
        _with_page(f"{_program.name}: text is written", _program, _program.write)
    if _program.click is not None:
        _with_page(f"{_program.name}: one click", _program, _program.click)
_with_page("VS Code: a command is typed in a terminal", VS_CODE, write_in_terminal)
