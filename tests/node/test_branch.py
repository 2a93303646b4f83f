"""A branch: what a session was saved as, beside it, under a server of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import httpx
import pytest

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.node.workflows import branch
from tests.support import light_modules
from tests.support.agent import PATIENCE, Jupyter, free_port, wait_for

pytestmark = pytest.mark.shares_an_agent

#: A server that has its address and its login from its environment, as the Hub's.
SERVER = """
import os
from urllib.parse import urlsplit
from jupyter_server.serverapp import ServerApp
ServerApp.find_server_extensions = lambda self: None
url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
options = {
    "allow_root": True, "open_browser": False, "port": url.port, "port_retries": 0,
    "token": os.environ["JUPYTERHUB_API_TOKEN"], "root_dir": os.environ["HOME"],
    "base_url": os.environ["JUPYTERHUB_SERVICE_PREFIX"],
}
ServerApp.launch_instance([], jpserver_extensions={}, **options)
"""


class Server(Jupyter):
    """That server, or the place of one that is to come back there."""

    def __init__(self, folder, places, mode: str = "start", name: str = "ann") -> None:
        self.port, self.home = free_port(), folder / "home"
        self.TOKEN, self.PREFIX = f"s3cret-of-{name}-0123456789", f"/user/{name}/"
        self.home.mkdir(exist_ok=True)
        self.url = f"http://127.0.0.1:{self.port}{self.PREFIX}"
        env = {
            "PYTHONPATH": str(light_modules.FOLDER),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "JUPYTERHUB_API_TOKEN": self.TOKEN,
            "JUPYTERHUB_SERVICE_URL": self.url,
            "JUPYTERHUB_SERVICE_PREFIX": self.PREFIX,
            "JUPYTERHUB_USER": "ann",
        }
        words = (sys.executable, "-c", SERVER) if mode == "start" else ()
        server = "" if mode == "start" else "beside"
        self.place = places(mode, *words, env=env, server=server)
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {self.TOKEN}"},
            timeout=PATIENCE,
            verify=False,
        )
        if mode == "start":
            wait_for(self.answers)


def ordered(agent, checkpoint: str, branched: str, user: str = "ann"):
    """The answer to the order to make a branch."""
    key = {"user": user, "server": "beside"}
    body = {"checkpoint": branched, "key": key, "session": "s2", "generation": 1}
    return agent.post(f"/v1/checkpoints/{checkpoint}/branch", body)


@pytest.fixture
def servers(folder, places):
    """Makes servers, and closes what is connected to them."""
    made = []

    def make(*more: str) -> Server:
        made.append(Server(folder, places, *more))
        return made[-1]

    yield make
    for one in made:
        one.client.close()


#: Two that write into one history say so in their output, once.
NO_HISTORY = "get_ipython().history_manager.enabled = False"


@pytest.fixture
def saved(agent, servers):
    """A server with a kernel, which has a save point."""
    server = servers()
    kernel = server.start_kernel()
    server.run(kernel, NO_HISTORY)
    server.run(kernel, "x = [1]; import os; pid = os.getpid()")
    agent.save(server.place, "cp-1")
    return server, kernel


def test_branch_runs_beside_its_origin_under_its_own_address_and_login(
    agent, saved, servers
):
    origin, kernel = saved
    origin.run(kernel, "x.append('origin')")
    answer = ordered(agent, "cp-1", "br-1")
    assert answer.status_code == 200, answer.text
    beside = servers("hold", "ann/beside")

    restored = agent.restore(beside.place, "br-1")

    assert restored[-1].get("tree"), (restored[-1], beside.place.output.read_text())
    assert beside.run(kernel, "x.append('beside'); x") == "[1, 'beside']"
    assert origin.run(kernel, "x") == "[1, 'origin']"
    assert beside.run(kernel, "os.getpid() == pid") == "True"
    (listed,) = beside.client.get("api/sessions").json()
    assert (listed["path"], listed["kernel"]["id"]) == ("train.ipynb", kernel)
    assert beside.kernels()[0]["execution_state"] == "idle"
    for one, other in ((origin, beside), (beside, origin)):
        url = f"{one.url}api/kernels"
        refused = httpx.get(url, headers={"Authorization": f"token {other.TOKEN}"})
        assert refused.status_code == 403


@pytest.mark.long
def test_fork_of_a_branch_prints_in_the_branch_alone(agent, saved, servers):
    origin, kernel = saved
    ordered(agent, "cp-1", "br-1")
    beside = servers("hold", "ann/beside")
    agent.restore(beside.place, "br-1")
    heard: list[str] = []
    with origin.channel(kernel, "a-tab") as channel:
        fork = "if not os.fork(): print('forked', flush=True); os._exit(0)"
        text = beside.run(kernel, f"import time\n{fork}\nos.wait(); time.sleep(1)")
        with contextlib.suppress(TimeoutError):
            while True:
                heard.append(str(channel.recv(2)))
    assert "forked" in text
    assert not [message for message in heard if "forked" in message]


@pytest.mark.long
def test_running_cell_goes_on_in_both(agent, saved, servers):
    origin, kernel = saved
    origin.run_and_leave(
        kernel, "import time\nfor number in range(80): time.sleep(0.1)"
    )
    agent.save(origin.place, "cp-2", 2)
    ordered(agent, "cp-2", "br-1")
    beside = servers("hold", "ann/beside")
    restored = agent.restore(beside.place, "br-1")
    assert restored[-1].get("tree"), restored[-1]
    assert beside.run(kernel, "number") == "79"
    assert origin.run(kernel, "number") == "79"


#: A program of the kernel's that listens on that port.
LISTENS = """
import subprocess, sys
code = (
    "import socket, time; one = socket.socket(); one.bind(('127.0.0.1', PORT));"
    "one.listen(); print('up', flush=True); time.sleep(600)"
)
program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
up = program.stdout.readline()
"""


@pytest.mark.long
def test_program_that_listens_on_the_machines_network_is_named_and_nothing_comes(
    agent, saved, servers
):
    origin, kernel = saved
    for _ in range(2):
        origin.run(kernel, LISTENS.replace("PORT", str(free_port())))
    agent.save(origin.place, "cp-2", 2)
    ordered(agent, "cp-2", "br-1")
    beside = servers("hold", "ann/beside")
    failure = agent.restore(beside.place, "br-1")[-1]["failure"]
    assert failure["code"] == "branch_impossible"
    assert "listens on port" in failure["message"]
    assert agent.tree(beside.place)["state"] == "holding"
    assert origin.run(kernel, "x") == "[1]"


@pytest.mark.long
def test_checkpoint_without_a_kernel_is_refused_at_once(agent, servers):
    server = servers()
    agent.save(server.place, "cp-1")
    answer = ordered(agent, "cp-1", "br-1")
    assert (answer.status_code, answer.json()["code"]) == (409, "branch_impossible")
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp-1"]


RUN = (
    b'import os; exec(compile(os.environ.pop("GPU_RECLAIM_SERVER"), "branch", "exec"))'
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/p/python3 /p/singleuser --x", "/p/python3 RUN /p/singleuser --x"),
        ("python -u -X dev -m a.server", "python -u -X dev RUN -m a.server"),
        ("/p/python -c text --x", "/p/python RUN -c text --x"),
    ],
)
def test_server_is_started_by_its_own_command_once_more(before, after):
    def words(line: str) -> list[bytes]:
        made = [[b"-c", RUN] if w == "RUN" else [w.encode()] for w in line.split()]
        return [word for part in made for word in part]

    assert branch.again(words(before)) == words(after)
    assert branch.again(words(after)) == words(after)


def test_server_that_is_no_program_of_pythons_is_refused():
    with pytest.raises(RestoreFailed, match="no program of Python's"):
        branch.again([b"/usr/lib/rstudio-server/bin/rserver", b"--www-port=8787"])
