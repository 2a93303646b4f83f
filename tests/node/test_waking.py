"""What wakes a real kernel that naps, and what does not: the table of docs, nap.md.

Messages come from a real client, pages from a real server. Card and driver are false,
and the kernel ends when it runs without its card.
"""

import contextlib
import socket
import time
import uuid
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient

from tests.node.conftest import server_with_a_card
from tests.support.agent import Jupyter, wait_for
from tests.support.fake_cards import take_card

#: Seconds that a busy machine may need.
PATIENCE = 60
#: Seconds in which whoever is going to wake has done so.
CALM = 1.0


class Napper:
    """A kernel with a card in a session of an agent, and a client of it."""

    def __init__(self, agent, server: Jupyter, card: tuple[Path, Path]) -> None:
        self.agent, self.server, self._card = agent, server, card
        self.begin()

    def begin(self) -> None:
        self.kernel = self.server.start_kernel(f"{uuid.uuid4().hex}.ipynb")
        take_card(self.server, self.kernel, *self._card)
        # It would think about the answer for seconds, once it is awake.
        self.server.run(self.kernel, "get_ipython().Completer.use_jedi = False")
        self.client = BlockingKernelClient()
        (file,) = self.server.home.rglob(f"kernel-{self.kernel}.json")
        self.client.load_connection_file(str(file))
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.server.place.incarnation}"

    @property
    def known(self) -> dict:
        kernels = self.server.kernels()
        return next(one for one in kernels if one["id"] == self.kernel)

    @property
    def state(self) -> str:
        return self.agent.tree(self.server.place)["state"]

    def nap(self) -> None:
        self.agent.hear()
        wait_for(lambda: self.state == "running", PATIENCE)
        self.client.kernel_info(reply=True, timeout=PATIENCE)
        wait_for(lambda: self.known["execution_state"] == "idle")
        events = self.agent.events(f"{self.path}/nap", {})
        assert events[-1].get("tree"), events[-1]
        assert self.state == "napping"

    def wakes(self) -> bool:
        """Whether it wakes; it goes on either way."""
        wait_for(lambda: self.state == "running", PATIENCE)
        self.client.kernel_info(reply=True, timeout=PATIENCE)
        return True

    def naps_on(self) -> bool:
        time.sleep(CALM)
        return self.state == "napping"

    def say(self, channel: str, kind: str, content: dict) -> None:
        message = self.client.session.msg(kind, content)
        getattr(self.client, f"{channel}_channel").send(message)

    def interrupt(self) -> int:
        """As a page does; the status of the answer."""
        path = f"api/kernels/{self.kernel}/interrupt"
        return self.server.client.post(path).status_code

    def log(self) -> str:
        """What the agent has said since it was told to nap."""
        return self.agent.said()


@pytest.fixture(scope="module")
def napper(library):
    with server_with_a_card(library) as (agent, server, card):
        yield Napper(agent, server, card)


COMM = {"comm_id": "c", "target_name": "t", "data": {}}
DEBUG = {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}}
WAKING = [
    ("shell", "execute_request", {"code": "1", "silent": False}),
    ("shell", "complete_request", {"code": "pri", "cursor_pos": 3}),
    ("shell", "inspect_request", {"code": "print", "cursor_pos": 3}),
    ("shell", "is_complete_request", {"code": "if 1:"}),
    ("shell", "comm_open", COMM),
    ("shell", "comm_msg", COMM),
    ("shell", "a_request_that_nobody_knows", {}),
    ("control", "debug_request", DEBUG),
    ("control", "interrupt_request", {}),
    ("stdin", "input_reply", {"value": "x"}),
]
QUIET = [
    ("shell", "kernel_info_request", {}),
    ("control", "kernel_info_request", {}),
    ("control", "usage_request", {}),
    ("shell", "comm_info_request", {}),
    ("shell", "history_request", {"hist_access_type": "tail", "n": 1}),
]


@pytest.mark.parametrize(("channel", "kind", "content"), WAKING)
def test_message_that_a_person_meant_wakes(napper, channel, kind, content):
    napper.nap()
    napper.say(channel, kind, content)
    assert napper.wakes()
    assert f"is woken by {kind}" in napper.log()


def test_what_a_page_does_by_itself_does_not_wake(napper):
    """Messages, heartbeats, questions to the server, an interrupt of nothing."""
    napper.nap()
    napper.client.hb_channel.unpause()
    for channel, kind, content in QUIET:
        napper.say(channel, kind, content)
    for path in ("api/kernels", f"api/kernels/{napper.kernel}", "api/status"):
        assert napper.server.client.get(path).status_code == 200
    # An idle kernel ignores them, awake as well.
    assert napper.interrupt() == 204
    time.sleep(2 - CALM)  # two heartbeats
    assert napper.naps_on(), napper.log()
    napper.client.hb_channel.pause()
    # What comes behind it does.
    napper.say("shell", "execute_request", {"code": "1"})
    assert napper.wakes()


def test_cell_of_an_open_page_is_answered(napper):
    """Through the server, over connections that were there before."""
    session = uuid.uuid4().hex
    with napper.server.channel(napper.kernel, session) as channel:
        napper.server.execute(channel, session, "1")
        wait_for(lambda: "idle" in channel.recv(PATIENCE))
        napper.nap()
        begun = time.monotonic()
        napper.server.execute(channel, session, "print(40 + 2)")
        wait_for(lambda: "42" in channel.recv(PATIENCE))
        print(f"answered after {time.monotonic() - begun:.3f} s")
    assert napper.wakes()


@pytest.mark.parametrize("channel", ["shell", "control", "stdin"])
def test_new_connection_wakes_where_messages_may_follow(napper, channel):
    napper.nap()
    port = napper.client.get_connection_info()[f"{channel}_port"]
    with socket.create_connection(("127.0.0.1", port)):
        assert napper.wakes()


def test_new_connection_does_not_wake_where_none_follow_nor_work_beside_it(napper):
    """Other kernels and the server run on."""
    other = napper.server.start_kernel("other.ipynb")
    napper.nap()
    with contextlib.ExitStack() as connections:
        for channel in ("hb", "iopub"):
            port = napper.client.get_connection_info()[f"{channel}_port"]
            address = ("127.0.0.1", port)
            connections.enter_context(socket.create_connection(address))
        assert napper.server.run(other, "5 + 6") == "11"
        assert napper.naps_on(), napper.log()
        napper.say("shell", "execute_request", {"code": "1"})
        assert napper.wakes()
    napper.server.client.delete(f"api/kernels/{other}")


def test_page_that_is_opened_anew_wakes(napper):
    """Its connections to the kernel are new, and take no message before that."""
    napper.nap()
    assert napper.server.run(napper.kernel, "6 * 7") == "42"
    assert napper.wakes()


def test_interrupt_from_the_page_reaches_a_cell_that_runs(napper):
    session = uuid.uuid4().hex
    with napper.server.channel(napper.kernel, session) as channel:
        napper.server.execute(channel, session, "import time; time.sleep(1000)")
        wait_for(lambda: "busy" in channel.recv(PATIENCE))
        events = napper.agent.events(f"{napper.path}/nap", {})
        assert events[-1]["tree"]["state"] == "napping"
        assert napper.naps_on()
        assert napper.interrupt() == 204
        wait_for(lambda: "KeyboardInterrupt" in channel.recv(PATIENCE))
    assert napper.wakes()
    assert "is woken by SIGINT" in napper.log()


def test_what_was_said_while_no_agent_ran_wakes(napper):
    napper.nap()
    napper.agent.kill()
    napper.say("shell", "execute_request", {"code": "1"})
    napper.agent.start()
    assert napper.wakes()


def test_what_was_said_during_a_suspend_wakes_when_it_is_taken_back(napper):
    napper.nap()
    agent, place = napper.agent, napper.server.place
    agent.captured(place, "cp")
    napper.say("shell", "execute_request", {"code": "1"})
    assert agent.post(f"{napper.path}/thaw").status_code == 204
    assert napper.wakes()
    assert agent.get("/v1/checkpoints").json() == []


@pytest.mark.parametrize("how", ["message", "restart", "shutdown"])
def test_restart_and_shutdown_from_the_page_reach_the_kernel(napper, how):
    """The last ones: the kernel loses its card, or is no more."""
    napper.nap()
    path = f"api/kernels/{napper.kernel}"
    client = napper.server.client
    if how == "message":
        napper.client.shutdown()
        wait_for(lambda: "is woken by shutdown_request" in napper.log(), PATIENCE)
        assert client.delete(path).status_code == 204
    elif how == "restart":
        assert client.post(f"{path}/restart").status_code == 200
        wait_for(lambda: napper.state == "running", PATIENCE)
        assert napper.server.run(napper.kernel, "6 * 7") == "42"
        assert client.delete(path).status_code == 204
    else:
        assert client.delete(path).status_code == 204
    wait_for(lambda: napper.state == "running", PATIENCE)
    assert napper.server.kernels() == []
    napper.client.stop_channels()
    if how != "shutdown":
        napper.begin()
