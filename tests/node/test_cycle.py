"""A session through the agent's HTTP calls: captured, released, brought back."""

import subprocess
import sys

import pytest

from tests.support.agent import wait_for
from tests.support.ranks import PROGRAM as RANKS

pytestmark = pytest.mark.shares_an_agent


@pytest.mark.long
def test_programs_that_a_cell_left_behind_are_saved_each_time(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "import os, subprocess")
    for line in (
        "sleep 3001 &",
        "nohup sleep 3002 >/dev/null 2>&1 &",
        "(sleep 3003 &)",
        "setsid sleep 3004 &",
    ):
        server.run(kernel, f"_ = os.system({line!r})")
    asked = "print(subprocess.getoutput(\"pgrep -xfa 'sleep 300.' | sort\"))"
    had = server.run(kernel, asked)
    assert had.count("sleep") == 4, had

    for generation in (1, 2, 3):
        checkpoint = f"cp-{generation}"
        agent.suspend(server.place, checkpoint, generation)
        server.place = agent.come_back(places("hold"), checkpoint)
        assert server.run(kernel, asked) == had


@pytest.fixture
def own_address():
    """An address of this machine beside loopback, as an interface has."""
    words = ["10.9.8.7/32", "dev", "lo"]
    subprocess.run(["ip", "address", "add", *words], check=True)
    yield "10.9.8.7"
    subprocess.run(["ip", "address", "del", *words], check=True)


#: Has answered on an address of the machine, closed the connections itself, and listens
#: on; its port is not one that may be taken beside them (no SO_REUSEADDR), as NCCL's.
ANSWERED = """
import socket, time
listener = socket.socket()
listener.bind(("{address}", 0))
listener.listen()
for _ in range(3):
    client = socket.create_connection(listener.getsockname())
    listener.accept()[0].close()
    client.close()
print("up", flush=True)
while True:
    print("again", listener.accept()[1], flush=True)
"""


def test_listener_whose_connections_have_just_ended_comes_back_at_once(
    agent, places, own_address
):
    program = ANSWERED.format(address=own_address)
    place = places("start", sys.executable, "-c", program, env={})
    wait_for(lambda: "up" in place.output.read_text())
    agent.suspend(place, "cp-1")
    restored = agent.restore(places("hold"), "cp-1")
    assert restored[-1].get("tree"), restored[-1]


@pytest.mark.long
def test_ranks_that_share_a_port_come_back_three_times(agent, places, own_address):
    """As NCCL's do: over the machine's own address, and with one port for both."""
    program = RANKS.format(family="AF_INET", address=own_address, loop="127.0.0.1")
    place = places("start", sys.executable, "-c", program, env={})

    def reports() -> bool:
        seen = place.output.read_text()
        assert "lost" not in seen
        assert "got" not in seen
        return seen.count("rank 0 at") > 5 and seen.count("rank 1 at") > 5

    wait_for(reports)
    for generation in (1, 2, 3):
        checkpoint = f"cp-{generation}"
        agent.suspend(place, checkpoint, generation)
        place = agent.come_back(places("hold"), checkpoint)
        wait_for(reports)
