"""Samples of a real Jupyter server in a session; of one that hangs; of none."""

import asyncio
import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from tornado.web import Application, RequestHandler
from websockets.sync.client import connect

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import Sample, SessionKey
from jupyterhub_gpu_reclaim.node.sessions.samples import find_kernels
from jupyterhub_gpu_reclaim.sampling.connections import Connections
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler
from tests.support import bridge
from tests.support.agent import Jupyter, Place, free_port, wait_for
from tests.support.long_stories import but
from tests.support.nvml import NoCards
from tests.support.other_machine import ADDRESS, OUR_ADDRESS, PORT, other_machine
from tests.support.served import here, sampled_here, served

EXTENSION = "jupyterhub_gpu_reclaim.lab.server_extension"
PROXY = "jupyter_server_proxy"
PROXIES = [PROXY] if importlib.util.find_spec(PROXY) else []
EXTENSIONS = (EXTENSION, bridge.NAME, *PROXIES)


@contextmanager
def serving(options: Callable[[Path], Iterable[str]]) -> Iterator[Jupyter]:
    """A server with a kernel; its options may name files of its folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sessions have namespaces of their own")
    made: list[Place] = []

    def places(*words, env=None):
        made.append(Place(folder, *words, env=env))
        return made[-1]

    with tempfile.TemporaryDirectory(prefix="gra-", dir="/tmp") as name:
        folder = Path(name)
        server = Jupyter(folder, places, *options(folder))
        server.start_kernel("train.ipynb")
        yield server
        server.client.close()
        for place in made:
            place.kill()


def with_all_extensions(folder: Path) -> Iterator[str]:
    proxied = {
        "command": [sys.executable, str(folder / "program.py"), "{unix_socket}"],
        "unix_socket": True,
    }
    (folder / "program.py").write_text(PROGRAM)
    yield f"--ServerProxy.servers={ {'program': proxied} }"
    yield from (f"--ServerApp.jpserver_extensions={n}=True" for n in EXTENSIONS)
    yield "--MappingKernelManager.cull_idle_timeout=86400"


@pytest.fixture(scope="module", name="server")
def server_fixture():
    with serving(with_all_extensions) as server:
        yield server


@pytest.fixture(scope="module", name="plain")
def plain_fixture():
    """Likewise, without our extension."""
    without = f"--ServerApp.jpserver_extensions={EXTENSION}=False"
    with serving(lambda _: [without]) as server:
        yield server


def interrupt(server, kernel: str) -> None:
    """End what a kernel runs; it is idle then."""
    server.client.post(f"api/kernels/{kernel}/interrupt")
    wait_for(lambda: server.kernels()[0]["execution_state"] == "idle")


def watched(server, port: int | None = None, **changes) -> SampleTarget:
    tree = server.place.tree
    values = {
        "incarnation": server.place.incarnation,
        "key": SessionKey("ann"),
        "init_pid": tree.init.pid,
        "root_pid": tree.server.pid,
        "pids": [process.pid for process in tree.processes],
        "address": here(port or server.port, server.PREFIX, server.TOKEN),
        "kernels": [kernel.pid for kernel in find_kernels(tree)],
    }
    return SampleTarget(**values | changes)


def sample(*sessions: SampleTarget, seconds: float = 60.0) -> list[Sample]:
    async def take() -> list[Sample]:
        sampler = Sampler(SystemClock(), NoCards(), answer_seconds=seconds)
        try:
            return await sampler.sample_all(list(sessions))
        finally:
            sampler.client.close()

    return asyncio.run(take())


@asynccontextmanager
async def samples_of(page):
    """Takes samples of this process, whose server is that page."""
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=60.0)
    async with served(Application([page])) as port:

        async def take() -> Sample:
            (taken,) = await sampler.sample_all([sampled_here(port)])
            return taken

        yield take
        sampler.client.close()


class Heard(RequestHandler):
    """A server that notes how it has answered."""

    said: ClassVar[list[tuple[str, int]]] = []
    kernels: ClassVar[list[dict]] = []

    def get(self, path):
        body = {
            "kernels": self.kernels,
            "status": {"connections": 0},
            "terminals": [],
            "sessions": [],
        }
        self.finish(json.dumps(body[path]))

    def on_finish(self):
        self.said.append((self.path_args[0], self.get_status()))


class Proxied(RequestHandler):
    """One program in place of a Jupyter server: a page for every path, or a login."""

    status = 200

    def get(self):
        self.set_status(self.status)
        self.finish("<html>a program</html>")


@pytest.mark.parametrize("status", [200, 302, 403, 404])
async def test_sample_of_one_proxied_program_says_so_and_counts_its_own_work(status):
    """Its processor time is the server's, which is not looked at elsewhere."""
    Proxied.status = status
    async with samples_of(("/.*", Proxied)) as take:
        taken = await take()
    assert not taken.jupyter
    assert (taken.kernels, taken.terminals) == ([], [])
    assert taken.cpu_work > 0
    assert taken.paged == taken.moved is not None


async def test_sample_of_an_idle_server_only_asks_whether_all_is_as_before():
    """JupyterHub notes all but a 304 in the log of the user's session."""
    kernel = {"id": "k", "last_activity": "2026-01-01T00:00:00Z"}
    states = []
    async with samples_of(("/api/(.*)", Heard)) as take:
        for state in ("idle", "idle", "busy"):
            Heard.kernels[:] = [kernel | {"execution_state": state}]
            Heard.said.clear()
            (one,) = (await take()).kernels
            states.append((one.execution_state, sorted(set(Heard.said))))

    asked = ("kernels", "sessions", "status", "terminals")
    assert states == [
        ("idle", [(path, 200) for path in asked]),
        ("idle", [(path, 304) for path in asked]),
        ("busy", [("kernels", 200), *((path, 304) for path in asked[1:])]),
    ]


def test_sample_of_a_server_with_a_kernel_is_complete(server):
    kernel = server.kernels()[0]["id"]
    server.client.post("api/terminals")

    def shell_is_ready() -> bool:
        """It starts programs of its own first, which end at once."""
        there = server.place.tree.processes
        time.sleep(0.2)
        return len(there) == 4 and there == server.place.tree.processes

    wait_for(shell_is_ready)

    (taken,) = sample(watched(server))

    assert taken.problem == ""
    assert [one.id for one in taken.kernels] == [kernel]
    assert taken.kernels[0].name == "train.ipynb"
    assert taken.kernels[0].execution_state == "idle"
    assert abs(taken.kernels[0].last_activity - time.time()) < 60
    assert taken.connections == 0
    assert 50_000_000 < taken.memory < 2_000_000_000
    assert taken.cpu_work > 0
    assert abs(taken.started - time.time()) < 60
    assert abs(taken.last_saved - time.time()) < 60
    assert [one.name for one in taken.terminals] == ["1"]
    assert taken.culls_after == 86400  # by its own settings, which it alone reads


def test_sample_of_a_busy_kernel_shows_work(server):
    kernel = server.kernels()[0]["id"]
    (before,) = sample(watched(server))
    server.run(kernel, "while True: pass", wait=False)
    wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")

    def worked():
        (after,) = sample(watched(server))
        return after if after.cpu_work - before.cpu_work > 0.2 else None

    assert wait_for(worked).kernels[0].execution_state == "busy"
    # What it says of its end is use, and not to be seen by the next test.
    interrupt(server, kernel)


def test_sampling_is_no_sign_of_use(server):
    path = "api/status?no_track_activity=1"
    before = server.client.get(path).json()["last_activity"]
    sample(watched(server))
    assert server.client.get(path).json()["last_activity"] == before


@pytest.mark.long
def test_terminal_typed_into_is_seen_and_output_is_not(server):
    name = server.client.post("api/terminals").json()["name"]
    url = server.url.replace("http", "ws") + f"terminals/websocket/{name}"
    with connect(
        url, additional_headers={"Authorization": f"token {server.TOKEN}"}
    ) as terminal:
        terminal.send('["stdin", "echo ready-$((40+2))\\r"]')
        wait_for(lambda: "ready-42" in terminal.recv(30))
        (typed,) = sample(watched(server))
        terminal.send('["stdin", "while :; do echo x; sleep 0.1; done\\r"]')
        last_typed = time.time()
        time.sleep(9)  # the kernel keeps these times in steps of eight seconds
        (printed,) = sample(watched(server))
    assert abs(typed.terminals[0].last_input - last_typed) < 20
    assert printed.terminals[0].last_input <= last_typed


def test_sample_of_a_server_that_hangs_is_unknown_and_delays_nobody(server, caplog):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        begun = time.monotonic()
        other = watched(server, deaf.getsockname()[1], incarnation="other")
        hung, fine = sample(other, watched(server), seconds=1.0)
    assert time.monotonic() - begun < 5
    assert (hung.kernels, hung.terminals, hung.connections) == (None, None, None)
    assert "api/kernels" in hung.problem
    assert hung.memory
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []
    assert fine.problem == ""


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n[{"id": [1, 2]}]',
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Go\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
)
def test_sample_of_a_server_that_talks_nonsense_is_unknown(server, answer):
    async def take() -> Sample:
        async def nonsense(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as liar:
            port = liar.sockets[0].getsockname()[1]
            sampler = Sampler(SystemClock(), NoCards(), answer_seconds=2.0)
            try:
                return (await sampler.sample_all([watched(server, port)]))[0]
            finally:
                sampler.client.close()

    taken = asyncio.run(take())
    assert taken.kernels is None or not taken.jupyter
    assert taken.connections is None
    assert taken.problem


def test_sample_of_a_stopped_session_asks_nobody(server):
    (taken,) = sample(watched(server, stopped=True))
    assert taken.kernels is None
    assert taken.memory is None
    assert taken.problem == "it is stopped"


def test_sample_of_a_session_without_an_address_says_so(server):
    (taken,) = sample(watched(server, address=None))
    assert taken.kernels is None
    assert taken.memory
    assert "not known" in taken.problem


def test_sample_of_a_session_that_has_ended_is_unknown(places):
    place = places("start", "sleep", "600")
    tree = wait_for(lambda: place.tree.server and place.tree)
    gone = SampleTarget(
        place.incarnation,
        SessionKey("ann"),
        tree.init.pid,
        tree.server.pid,
        [process.pid for process in tree.processes],
        here(free_port()),
    )
    place.kill()
    until = time.monotonic() + 20
    while (taken := sample(gone, seconds=1.0)[0]).memory is not None:
        assert time.monotonic() < until  # its last processes are still ending
    assert taken.memory is None
    assert taken.kernels is None
    assert taken.problem


def test_sample_of_an_idle_jupyter_server_is_not_modified(server):
    """What Jupyter answers has a name, and the same name while nothing happens."""

    first, second = looks(server, lambda: None)
    assert second.kernels == first.kernels
    answer = server.client.get("api/kernels")
    again = server.client.get(
        "api/kernels", headers={"If-None-Match": answer.headers["Etag"]}
    )
    assert again.status_code == 304


async def test_sample_of_processes_that_hang_takes_one_thread(monkeypatch):
    """A process may keep its readers waiting; the next sample does not join them."""
    begun, let_go = [], threading.Event()

    def hang(*pids):
        begun.append(pids)
        let_go.wait(30)
        raise ProcessLookupError

    monkeypatch.setattr("jupyterhub_gpu_reclaim.sampling.process_tree.measure", hang)
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=0.1)
    me = os.getpid()
    one = SampleTarget("i", SessionKey("ann"), me, me, [me], None)

    async def problem() -> str:
        return (await sampler.sample_all([one]))[0].problem

    problems = [await problem() for _ in range(3)]
    assert len(begun) == 1
    assert "no answer in time" in problems[0]
    assert "has not ended" in problems[1]
    let_go.set()
    while "has not ended" in await problem():
        await asyncio.sleep(0.01)
    assert len(begun) == 2
    sampler.client.close()


TYPES = """
import os, pty, sys
child, terminal = pty.fork()
if not child:
    os.execvp("sh", ["sh", "-c", "while read line; do echo x; done; sleep 600"])
"""


@pytest.mark.parametrize("again", but([False, True], False))
def test_keys_in_a_terminal_that_is_not_the_servers_own_are_seen(server, again):
    """As in VS Code behind the server, tmux, or a login into the session."""
    assert sample(watched(server))[0].last_typed is None
    kernel = server.kernels()[0]["id"]
    server.run(kernel, TYPES)
    server.run(kernel, "os.write(terminal, b'one\\n')")
    begun = time.time()
    wait_for(lambda: sample(watched(server))[0].last_typed is not None)
    (before,) = sample(watched(server))
    assert abs(before.last_typed - begun) < 9
    if again:
        time.sleep(9)  # the kernel keeps these times in steps of eight seconds
        server.run(kernel, "os.write(terminal, b'two\\n')")
        wait_for(lambda: sample(watched(server))[0].last_typed > before.last_typed)
    server.run(kernel, "os.close(terminal)")
    wait_for(lambda: sample(watched(server))[0].last_typed is None)


@pytest.mark.parametrize("made", ["server", "plain"])
def test_question_of_a_page_is_no_use_of_its_kernel(request, made):
    server, installed = request.getfixturevalue(made), made == "server"
    kernel = server.kernels()[0]["id"]
    with server.channel(kernel, "page") as page:

        def says(kind: str, channel: str) -> str:
            """When the kernel was last active, once that has been answered."""
            header = {"msg_id": kind, "msg_type": kind, "session": "page"}
            empty = {"parent_header": {}, "metadata": {}, "buffers": []}
            content = {"content": {"code": "1"}, "channel": channel, "header": header}
            page.send(json.dumps(empty | content))
            idle = {"execution_state": "idle"}
            while True:
                heard = json.loads(page.recv(30))
                if (
                    heard["content"] == idle
                    and heard["parent_header"]["msg_id"] == kind
                ):
                    return server.kernels()[0]["last_activity"]

        used = says("execute_request", "shell")
        asked = says("usage_request", "control")
        assert (asked == used) is installed
        assert says("execute_request", "shell") > asked


ASK = {"store_history": False, "allow_stdin": True, "silent": False}


def send(page, kind: str, channel: str, **content) -> None:
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "page"}
    empty = {"parent_header": {}, "metadata": {}, "buffers": []}
    message = {"content": content, "channel": channel, "header": header}
    page.send(json.dumps(empty | message))


def hears(page, kind: str) -> dict:
    while (heard := json.loads(page.recv(30)))["msg_type"] != kind:
        pass
    return heard["content"]


def test_cell_that_waits_for_an_answer_is_not_told_without_the_extension(plain):
    kernel = plain.kernels()[0]["id"]
    with plain.channel(kernel, "page") as page:
        send(page, "execute_request", "shell", code="input('name')", **ASK)
        hears(page, "input_request")
        (taken,) = sample(watched(plain))
        assert taken.kernels[0].execution_state == "busy"
        assert taken.kernels[0].prompt_since is None
    interrupt(plain, kernel)


def test_cell_that_waits_for_an_answer_is_told_until_it_has_one(server):
    kernel = server.kernels()[0]["id"]

    def asked() -> float | None:
        (taken,) = sample(watched(server))
        assert taken.kernels[0].execution_state == "busy"
        return taken.kernels[0].prompt_since

    with server.channel(kernel, "page") as page:
        begun = time.time()
        work = "import os, time\ninput('name')\n"
        work += "while not os.path.exists('go on'): time.sleep(0.01)\n"
        work += "input('age')"
        send(page, "execute_request", "shell", code=work, **ASK)
        assert hears(page, "input_request")["prompt"] == "name"
        assert begun - 1 < asked() < time.time() + 1
        send(page, "input_reply", "stdin", value="ada")
        wait_for(lambda: asked() is None)  # it works again
    # The page has gone meanwhile; the next question is kept for it.
    (server.home / "go on").touch()
    second = wait_for(asked)
    with server.channel(kernel, "page") as page:
        assert hears(page, "input_request")["prompt"] == "age"
        assert asked() == second
        interrupt(server, kernel)
        work = "import time; time.sleep(60)"
        send(page, "execute_request", "shell", code=work, **ASK)
        wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")
        assert asked() is None
    interrupt(server, kernel)


def looks(server, between, count: int = 2) -> list[Sample]:
    """Samples by one sampler, with something done before each but the first."""

    async def take() -> list[Sample]:
        sampler = Sampler(SystemClock(), NoCards(), answer_seconds=60.0)
        taken = await sampler.sample_all([watched(server)])
        for _ in range(count - 1):
            await asyncio.to_thread(between)
            taken += await sampler.sample_all([watched(server)])
        sampler.client.close()
        return taken

    return asyncio.run(take())


def unread(connection: socket.socket) -> int:
    """Bytes that the other side's kernel has not acknowledged."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), "little")


def test_upload_is_seen_while_it_arrives(server):
    size = 4 << 20
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as upload:
        head = (
            f"PUT {server.PREFIX}api/contents/large.bin HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: token {server.TOKEN}\r\nContent-Length: {size}\r\n\r\n"
        )
        upload.sendall(head.encode())
        piece = b" " * (1 << 20)

        def send_piece() -> None:
            upload.sendall(piece)
            # What the kernel has for the other side still is not what the server has.
            wait_for(lambda: not unread(upload))

        first, second, third = looks(server, send_piece, count=3)
        assert second.moved - first.moved >= 1 << 19
        assert third.moved - first.moved >= 3 << 19
        assert third.written - first.written < 1 << 19  # it is in memory still


def test_connection_to_another_machine_is_told_and_one_to_its_own_is_not(server):
    kernel = server.kernels()[0]["id"]
    with other_machine(), socket.create_server(("", 0)) as own:
        port = own.getsockname()[1]
        # A program outside of the session does not count, nor does the server.
        with socket.create_connection((ADDRESS, PORT), timeout=20):
            assert sample(watched(server))[0].outside == []
            code = f"""
import socket
ends = [socket.create_connection((a, p), timeout=20) for a, p in {
                [(ADDRESS, PORT), ("127.0.0.1", port), (OUR_ADDRESS, port)]
            }]"""
            server.run(kernel, code)
            (taken,) = sample(watched(server))
            assert taken.outside == [f"{ADDRESS}:{PORT}"]
        server.run(kernel, "[end.close() for end in ends]")
        assert sample(watched(server))[0].outside == []


BEHIND = """
import socket, subprocess, sys
code = "import socket; s = socket.socket(fileno=0); c, _ = s.accept()\\n"
code += "open('accepted', 'x')\\n"
listener = socket.create_server(("127.0.0.1", 0))
program = subprocess.Popen(
    [sys.executable, "-c", code + "while c.recv(9999): pass"], stdin=listener
)
print(listener.getsockname()[1])
"""


def test_what_a_page_sends_to_a_program_behind_the_server_is_counted(server):
    kernel = server.kernels()[0]["id"]
    port = int(server.run(kernel, BEHIND))

    def type_in() -> None:
        answer = server.client.post(f"bridge/{port}", content=bytes(5000))
        assert answer.status_code == 204

    type_in()
    wait_for((server.home / "accepted").exists)
    first, second = looks(server, type_in)
    assert second.paged - first.paged == 5000
    # What the kernel is sent is not a page's.
    first, second = looks(server, lambda: server.run(kernel, "1 + 1"))
    assert second.paged == first.paged
    server.run(kernel, "program.kill(); program.wait()")


#: A program that answers what it is sent, through a UNIX socket.
PROGRAM = """
import sys, tornado.httpserver, tornado.ioloop, tornado.netutil, tornado.web
import tornado.websocket
class Page(tornado.web.RequestHandler):
    def get(self):
        self.finish("page")
    def post(self):
        self.finish(self.request.body)
class Channel(tornado.websocket.WebSocketHandler):
    def on_message(self, message):
        self.write_message(message)
app = tornado.web.Application([("/", Page), ("/channel", Channel)])
server = tornado.httpserver.HTTPServer(app)
server.add_socket(tornado.netutil.bind_unix_socket(sys.argv[1]))
tornado.ioloop.IOLoop.current().start()
"""


def test_what_a_page_sends_through_a_unix_socket_is_told_by_its_server(server):
    if not PROXIES:
        pytest.skip(f"{PROXY} is not installed: scripts/bootstrap test")
    wait_for(lambda: server.client.get("program/").text == "page")

    def click() -> None:
        assert server.client.post("program/", content=b"x" * 50).text == "x" * 50

    first, second = looks(server, click)
    assert second.paged - first.paged == len(f"{server.PREFIX}program/") + 50
    url = server.url.replace("http", "ws") + "program/channel"
    headers = {"Authorization": f"token {server.TOKEN}"}
    with connect(url, additional_headers=headers) as channel:

        def type_in() -> None:
            channel.send("key")
            assert channel.recv(30) == "key"

        type_in()
        first, second = looks(server, type_in)
    assert second.paged - first.paged == len("key")


def test_request_of_somebody_without_a_login_is_no_use_of_a_program(server):
    if not PROXIES:
        pytest.skip(f"{PROXY} is not installed: scripts/bootstrap test")
    wait_for(lambda: server.client.get("program/").text == "page")
    url = f"{server.url}program/"

    def try_it() -> None:
        answer = httpx.get(url, headers={"Authorization": "token wrong"})
        assert answer.status_code in {302, 403}

    first, second = looks(server, try_it)
    assert second.paged == first.paged


def test_download_by_the_browser_counts(server):
    (server.home / "large.bin").write_bytes(bytes(1 << 20))
    server.client.get("api")  # a connection that is there at each look
    connections = Connections()

    def moved() -> int:
        target = watched(server)
        return connections.look([target])[target.incarnation].moved

    counts = [moved()]
    for _ in range(2):
        server.client.get("files/large.bin").read()
        counts.append(moved())
    # What the client's machine has not confirmed yet counts at the next look.
    steps = [after - before for before, after in pairwise(counts)]
    assert min(steps) >= (1 << 20) - (1 << 16)
    # The kernel's outputs come from the kernel: the server only passes them on.
    server.run(server.kernels()[0]["id"], "print('x' * (3 << 20))")
    assert moved() - counts[-1] < 1 << 20


def test_connection_from_another_machine_is_told(server):
    kernel = server.kernels()[0]["id"]
    listen = "import socket; listener = socket.create_server(('', 0))\n"
    port = server.run(kernel, listen + "print(listener.getsockname()[1])").strip()
    call = f"import socket; s = socket.create_connection(('{OUR_ADDRESS}', {port}))"
    with other_machine() as machine:
        there = ("nsenter", f"--net=/proc/{machine.pid}/ns/net")
        code = f"{call}; print(s.getsockname()[1], flush=True); input()"
        command = [*there, sys.executable, "-c", code]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as caller:
            number = caller.stdout.readline().strip()
            server.run(kernel, "end, _ = listener.accept()")
            (taken,) = sample(watched(server))
            assert taken.outside == [f"{ADDRESS}:{number}"]
            caller.kill()
    server.run(kernel, "end.close(); listener.close()")


def test_data_to_another_machine_is_counted(server):
    kernel = server.kernels()[0]["id"]
    code = f"""
import socket
end = socket.create_connection(({ADDRESS!r}, {PORT}), timeout=20)
"""
    with other_machine():
        server.run(kernel, code)
        send = "end.sendall(bytes(50_000)); end.recv(50_000, socket.MSG_WAITALL)[0]"
        first, second = looks(server, lambda: server.run(kernel, send))
        assert 100_000 <= second.moved - first.moved < 200_000
        server.run(kernel, "end.close()")


def test_file_that_somebody_changes_is_use_and_one_that_is_opened_is_not(server):
    body = {"type": "file", "format": "text", "content": "Hello"}
    begun = time.time()
    server.client.put("api/contents/a.md", json=body)
    (saved,) = sample(watched(server))
    assert begun - 1 < saved.last_saved < time.time() + 1
    server.client.get("api/contents/a.md")
    server.client.get("api/contents")
    assert sample(watched(server))[0].last_saved == saved.last_saved
    server.client.patch("api/contents/a.md", json={"path": "b.md"})
    assert sample(watched(server))[0].last_saved > saved.last_saved


def test_request_that_a_person_has_caused_is_use_and_one_of_a_page_itself_is_not(
    server,
):
    mark = {"X-GPU-Reclaim-Person": "1"}

    def asked() -> float | None:
        return sample(watched(server))[0].last_asked

    names = [server.client.post("api/terminals").json()["name"]]  # a page by itself
    server.client.get("api/terminals", headers=mark)
    with httpx.Client(headers={"Authorization": "token wrong", **mark}) as stranger:
        assert stranger.post(f"{server.url}api/terminals").status_code == 403
    assert asked() is None
    begun = time.time()
    made = server.client.post("api/terminals", headers=mark)
    assert begun - 1 < (first := asked()) < time.time() + 1
    assert server.client.delete("api/terminals/missing", headers=mark).is_error
    assert asked() == first
    names.append(made.json()["name"])
    for name in names:
        server.client.delete(f"api/terminals/{name}", headers=mark).raise_for_status()
    assert asked() > first


def test_what_programs_write_is_counted_and_an_idle_session_writes_little(server):
    kernel = server.kernels()[0]["id"]
    code = "import tempfile; tempfile.TemporaryFile().write(bytes(3 << 20))"
    first, second = looks(server, lambda: server.run(kernel, code))
    assert second.written - first.written >= 3 << 20
    first, second = looks(server, lambda: time.sleep(3))
    assert second.written - first.written < 3 * 20_000
    assert second.moved - first.moved < 3 * 20_000
