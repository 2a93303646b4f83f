"""A real agent, sessions in namespaces of their own, and a real Jupyter server."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import httpx
import pytest
from websockets.sync.client import connect

from demo.stack import free_port
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node import state_folder
from tests.support import light_modules, preloaded
from tests.support.init_words import init_words

INIT = Path(criu_module.__file__).parents[2] / "session_init" / "session_init.py"
MOUNTS = """
mount -t tmpfs -o mode=1777 shm /dev/shm &&
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts &&
mount --bind /dev/pts/ptmx /dev/ptmx &&
exec "$@"
"""
#: Where a machine may keep its private CRIU, in this order.
CRIU_FOLDERS = (
    os.environ.get("GPU_RECLAIM_CRIU", ""),
    str(Path(__file__).parents[2] / ".cache" / "criu"),
    str(criu_module.FOLDER),
)
#: Without JupyterLab: nobody here looks at a page.
SERVER = """
from jupyter_server.serverapp import ServerApp
ServerApp.find_server_extensions = lambda self: None
ServerApp.launch_instance(jpserver_extensions={"jupyter_server_terminals": True})
"""
#: Long enough for a busy machine; whoever waits longer has failed.
PATIENCE = 60


def wait_for(condition, timeout: float = PATIENCE):
    """The first true value of a condition that must become true in time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true"
        time.sleep(0.02)
    return value


def criu_folder() -> str:
    for folder in CRIU_FOLDERS:
        if folder and Path(folder, "criu").is_file():
            return folder
    try:
        criu_module.locate()
    except Refused:
        pytest.skip("needs CRIU: jupyterhub-gpu-reclaim criu install")
    return str(criu_module.FOLDER)


class Agent:
    """The agent's program, started, killed and started again on one state folder."""

    def __init__(self, folder: Path, criu: str) -> None:
        self.folder = folder
        self.criu = criu
        self.program = preloaded.AGENT
        self.popen: preloaded.Started | None = None
        self.log = folder / "agent.log"
        self.store = f"{folder}/store"
        self._heard = 0  #: bytes of the log
        self.listen = f"unix:{folder}/agent.sock"

    def start(self, *options: str, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self.popen = self.launch([*self.words(), *options], log.fileno())
        if wait:
            wait_for(self._answers)

    def words(self) -> list[str]:
        return [
            "jupyterhub-gpu-reclaim-agent",
            f"--listen={self.listen}",
            f"--AgentApp.store_url={self.store}",
            f"--AgentApp.token_file={self.folder}/token",
            f"--AgentApp.criu_dir={self.criu}",
            f"--AgentApp.realm={self.folder.name}",
        ]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, state_folder.VARIABLE: f"{self.folder}/state"}

    def launch(self, words: list[str], log: int) -> preloaded.Started:
        return preloaded.start(
            self.program, words, log=log, env=self.environment, cwd=Path.cwd()
        )

    def _answers(self) -> bool:
        assert self.popen.poll() is None, self.log.read_text()
        return self.is_healthy()

    def is_healthy(self) -> bool:
        # What the former agent was just starting may hold its socket for a moment
        # longer: who connects then is cut off. (httpx would leave a socket open.)
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(http.client.HTTPConnection("agent")) as connection,
        ):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(PATIENCE)
            connection.sock.connect(str(self.folder / "agent.sock"))
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        return False

    def hear(self) -> None:
        """Begin to listen: :meth:`said` is what comes from here on."""
        self._heard = self.log.stat().st_size

    def said(self) -> str:
        return self.log.read_bytes()[self._heard :].decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        print(self.log.read_text())

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(PATIENCE)

    def terminate(self) -> int:
        self.popen.terminate()
        return self.popen.wait(PATIENCE)

    @property
    def token(self) -> str:
        path = self.folder / "token"
        return path.read_text().strip() if path.exists() else ""

    def client(self) -> httpx.Client:
        # What else would be made for TLS takes 30 ms of processor, at every call.
        path = str(self.folder / "agent.sock")
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=path, verify=False),
            base_url="http://agent",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=PATIENCE,
        )

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: dict | None = None) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body or {})

    def put(self, path: str, body: dict) -> httpx.Response:
        with self.client() as client:
            return client.put(path, json=body)

    def delete(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.delete(path)

    def events(self, path: str, body: dict, until=None) -> list[dict]:
        """The events of a stream; up to one that ``until`` likes, or to the end."""
        seen = []
        with (
            self.client() as client,
            client.stream("POST", path, json=body) as response,
        ):
            if response.status_code != 200:
                return [{"status": response.status_code, **json.loads(response.read())}]
            for line in response.iter_lines():
                seen.append(json.loads(line))
                if until is not None and until(seen[-1]):
                    break
        return seen

    def capture(self, place, checkpoint: str, generation: int = 1, until=None):
        body = {"checkpoint": checkpoint, "generation": generation}
        path = f"/v1/sessions/{place.incarnation}/capture"
        return self.events(path, body, until)

    def save(self, place, checkpoint: str, generation: int = 1, until=None):
        body = {"checkpoint": checkpoint, "generation": generation}
        return self.events(f"/v1/sessions/{place.incarnation}/save", body, until)

    def captured(self, place, checkpoint: str, generation: int = 1) -> dict:
        """The checkpoint of a capture that succeeds."""
        return _made(self.capture(place, checkpoint, generation), checkpoint)

    def saved(self, place, checkpoint: str, generation: int = 1) -> dict:
        """The checkpoint of a save point that succeeds."""
        return _made(self.save(place, checkpoint, generation), checkpoint)

    def restore(self, place, checkpoint: str, until=None, **more):
        path = f"/v1/sessions/{place.incarnation}/restore"
        body = {"checkpoint": checkpoint, **more}
        return self.events(path, body, until)

    def release(self, place, checkpoint: str) -> None:
        path = f"/v1/sessions/{place.incarnation}/release"
        answer = self.post(path, {"checkpoint": checkpoint})
        assert answer.status_code == 204, answer.text

    def cancel(self, place) -> None:
        self.post(f"/v1/sessions/{place.incarnation}/cancel").raise_for_status()

    def suspend(self, place, checkpoint: str, generation: int = 1) -> None:
        self.captured(place, checkpoint, generation)
        self.release(place, checkpoint)

    def come_back(self, place, checkpoint: str) -> "Place":
        """Where it is then."""
        ended = self.restore(place, checkpoint)[-1]
        assert ended.get("tree"), ended
        return place

    def tree(self, place) -> dict:
        response = self.get(f"/v1/sessions/{place.incarnation}")
        return {"status": response.status_code, **response.json()}


def _made(events: list[dict], checkpoint: str) -> dict:
    assert events[-1].get("checkpoint"), events[-1]
    assert events[-1]["checkpoint"]["id"] == checkpoint
    return events[-1]["checkpoint"]


def in_step(step: str, do=lambda: None):
    """Whether an event is of that step; then something is done at once."""

    def is_there(event) -> bool:
        if found := (event.get("step") or {}).get("step") == step:
            do()
        return found

    return is_there


def refused_agent(folder: Path, *words: str, state: str = "state") -> str:
    log = folder / "refused.log"
    with log.open("wb") as file:
        started = preloaded.start(
            preloaded.AGENT,
            ["jupyterhub-gpu-reclaim-agent", *words],
            log=file.fileno(),
            env={**os.environ, state_folder.VARIABLE: f"{folder}/{state}"},
            cwd=Path.cwd(),
        )
    assert started.wait(PATIENCE) != 0
    return log.read_text()


@contextlib.contextmanager
def short_folder():
    """A folder with a short path: UNIX sockets stand in it."""
    path = Path(tempfile.mkdtemp(prefix="gra-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def running_agent(folder: Path) -> Agent:
    if os.geteuid() != 0:
        pytest.skip("needs root: the agent enters namespaces")
    made = Agent(folder, criu_folder())
    made.start()
    return made


class Place:
    """An init in namespaces of its own: with programs in it, or holding."""

    def __init__(
        self,
        folder: Path,
        mode: str,
        *command: str,
        env=None,
        user: str = "ann",
        options=MappingProxyType({}),
        rights: Sequence[str] = (),
    ) -> None:
        self.incarnation = uuid.uuid4().hex
        self.output = folder / f"{self.incarnation}.out"
        facts = {"incarnation": self.incarnation, "user": user, "realm": folder.name}
        with self.output.open("wb") as output:
            self.popen = subprocess.Popen(
                [
                    *("unshare", "--fork", "--pid", "--mount", "--ipc", "--uts"),
                    *("--mount-proc", "--kill-child", "sh", "-c", MOUNTS, "sh"),
                    *(*rights, sys.executable, "-I", "-S", str(INIT)),
                    *init_words(mode, *command, **{**facts, **options}),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=folder,
            )
        self.init_pid, self.init_start = wait_for(self._init)

    def _init(self):
        path = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children")
        for child in path.read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"session_init.py") for word in words[1:5]):
                return int(child), processes.start_time(int(child))
        return None

    @property
    def tree(self) -> processes.Snapshot:
        return processes.snapshot(self.init_pid, self.init_start)

    @property
    def alive(self) -> bool:
        return processes.start_time(self.init_pid) == self.init_start

    def kill(self) -> None:
        with contextlib.suppress(NotFound):
            processes.kill_session(self.init_pid, self.init_start, timeout=PATIENCE)
        self.popen.kill()
        self.popen.wait(PATIENCE)


def places(folder):
    made = []

    def make(mode: str, *command: str, **more) -> Place:
        made.append(Place(folder, mode, *command, **more))
        return made[-1]

    yield make
    for place in made:
        place.kill()


#: A program that counts into a file and takes no part in anything else.
#: The ballast is large enough not to go through CRIU on the way back.
COUNTER = """
import os, sys, time
ballast = os.urandom(3 << 20)
right = ballast[::509]
while ballast[::509] == right:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


def counter(places):
    place = places("start", sys.executable, "-I", "-S", "-c", COUNTER, env={})
    wait_for(lambda: place.output.stat().st_size)
    return place


def goes_on(place) -> bool:
    """Whether the counter of that session still counts, its memory as it was."""
    size = place.output.stat().st_size
    wait_for(lambda: place.output.stat().st_size > size)
    return True


class Jupyter:
    """A Jupyter server with the environment of a single-user server."""

    TOKEN = "s3cret-of-ann-0123456789"
    PREFIX = "/user/ann/"

    def __init__(self, folder: Path, places, *options: str, env=()) -> None:
        self.port = free_port()
        home = folder / "home"
        home.mkdir(exist_ok=True)
        self.home = home
        self.url = f"http://127.0.0.1:{self.port}{self.PREFIX}"
        env = {
            "PYTHONPATH": str(light_modules.FOLDER),
            **dict(env),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "JUPYTERHUB_API_TOKEN": self.TOKEN,
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{self.port}{self.PREFIX}",
            "JUPYTERHUB_SERVICE_PREFIX": self.PREFIX,
            "JUPYTERHUB_USER": "ann",
        }
        self.place = places(
            "start",
            *(sys.executable, "-c", SERVER, "--allow-root", "--no-browser"),
            f"--ServerApp.token={self.TOKEN}",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.base_url={self.PREFIX}",
            f"--ServerApp.root_dir={home}",
            *options,
            env=env,
        )
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {self.TOKEN}"},
            timeout=PATIENCE,
            verify=False,  # as of an agent's: it is plain HTTP
        )
        wait_for(self.answers)

    def answers(self) -> bool:
        assert self.place.popen.poll() is None, self.place.output.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        # It tries at first whether its port is free: who comes then is cut off.
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("api").status_code == 200
        return False

    def start_kernel(self, notebook: str = "train.ipynb") -> str:
        (self.home / notebook).write_text(
            '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
        )
        body = {
            "path": notebook,
            "name": notebook,
            "type": "notebook",
            "kernel": {"name": "python3"},
        }
        kernel = self.client.post("api/sessions", json=body).json()["kernel"]["id"]
        assert self.run(kernel, "1 + 1") == "2"
        return kernel

    def kernels(self) -> list[dict]:
        return self.client.get("api/kernels?no_track_activity=1").json()

    def channel(self, kernel: str, session: str):
        url = self.url.replace("http", "ws")
        return connect(
            f"{url}api/kernels/{kernel}/channels?session_id={session}",
            additional_headers={"Authorization": f"token {self.TOKEN}"},
            open_timeout=PATIENCE,
        )

    def execute(self, channel, session: str, code: str) -> str:
        """Ask for one cell to be run; the id of that message."""
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "msg_type": "execute_request",
            "session": session,
            "username": "",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True}
        request = {
            "channel": "shell",
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": {**content, "user_expressions": {}},
            "buffers": [],
        }
        channel.send(json.dumps(request))
        return message

    def run_and_leave(self, kernel: str, code: str) -> str:
        """Run a cell as a browser tab that is closed at once; the tab's session id."""
        session = uuid.uuid4().hex
        with self.channel(kernel, session) as channel:
            self.execute(channel, session, code)
            wait_for(lambda: "busy" in channel.recv(PATIENCE))
        return session

    def listen(self, kernel: str, session: str) -> str:
        text = ""
        with (
            self.channel(kernel, session) as channel,
            contextlib.suppress(TimeoutError),
        ):
            while True:
                text += str(channel.recv(3))
        return text

    def run(self, kernel: str, code: str, wait: bool = True) -> str:
        """Run one cell; its result or output as text."""
        session = uuid.uuid4().hex
        with self.channel(kernel, session) as channel:
            message = self.execute(channel, session, code)
            text = ""
            while wait:
                answer = json.loads(channel.recv(PATIENCE))
                if answer["parent_header"].get("msg_id") != message:
                    continue
                content = answer["content"]
                text += content.get("text", "")
                text += content.get("data", {}).get("text/plain", "")
                if content.get("execution_state") == "idle":
                    return text
                assert answer["msg_type"] != "error", content
            return text


def jupyter(folder, places):
    made = []

    def make(*options: str) -> Jupyter:
        made.append(Jupyter(folder, places, *options))
        return made[-1]

    yield make
    for one in made:
        one.client.close()
