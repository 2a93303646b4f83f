"""Nobody keeps another's suspended session from coming back by its ports, and no user
takes the ports of the whole machine.

The attacker is a program of another user, on the same network.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState
from tests.node import conftest as node_tests
from tests.support.agent import wait_for

folder, agent, places, jupyter = (
    node_tests.folder,
    node_tests.agent,
    node_tests.places,
    node_tests.jupyter,
)

#: Binds what it can of the ports on its command line, in every way, until it is killed.
THIEF = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
def tries():
    for port in map(int, sys.argv[1].split(",")):
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""),
                                (socket.AF_INET6, "::")):
            for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,),
                            (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
                yield port, family, address, options
taken, told = [], False
while True:
    for port, family, address, options in tries():
        one = socket.socket(family)
        try:
            for option in options:
                one.setsockopt(socket.SOL_SOCKET, option, 1)
            one.bind((address, port))
            one.listen()
        except OSError:
            one.close()
        else:
            taken.append(one)
            print(port, flush=True)
    if not told:
        print("up", flush=True)
        told = True
"""


class Thief:
    """Tries for ever to bind those ports."""

    def __init__(self, ports) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", THIEF, ",".join(map(str, ports))],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = []
        while (line := self._popen.stdout.readline()) not in {"up\n", ""}:
            self.first.append(int(line))

    def end(self) -> list[int]:
        self._popen.kill()
        more, _ = self._popen.communicate(timeout=20)
        return self.first + [int(one) for one in more.split() if one != "up"]


def listening(place) -> set[int]:
    held = inet.tree_inodes(process.pid for process in place.tree.processes)
    found = inet.sockets_of(place.init_pid, held.keys())
    return {one.local.port for one in found if one.state is TcpState.LISTEN}


def told(agent) -> list[str]:
    """Which ports the node's status says are taken."""
    findings = agent.get("/v1/status").json()["findings"]
    return [one["message"] for one in findings if one["code"] == "port_in_use"]


def suspend(agent, place, checkpoint="cp") -> None:
    agent.suspend(place, checkpoint)


def test_ports_of_a_suspended_session_cannot_be_taken_before_it_is_back(
    agent, jupyter, places
):
    """The thief tries before, while it is suspended, while it comes back, and after.

    Of a user who binds more of them than one may keep, nothing is suspended.
    """
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, many_datagrams(600))
    failure = agent.capture(server.place, "cp0")[-1]["failure"]
    assert failure["code"] == "too_many_ports"
    assert "one user may keep 512" in failure["message"]
    assert server.run(kernel, "len(kept)") == "600"
    server.run(kernel, "for one in kept:\n    one.close()\nx = 5")

    ports = listening(server.place)
    assert len(ports) > 4
    thief = Thief(ports)
    try:
        suspend(agent, server.place)
        back = places("hold")
        restored = agent.restore(back, "cp")[-1]
    finally:
        taken = thief.end()
    assert taken == []
    assert restored.get("tree"), restored
    assert server.run(kernel, "x") == "5"
    assert told(agent) == []

    # Also where what the agent knows of them was lost.
    suspend(agent, back, "cp2")
    comes_back_without(agent, server, places, "cp2", "ports.json")
    assert server.run(kernel, "x") == "5"


def comes_back_without(agent, server, places, checkpoint, lost) -> None:
    """The agent's file, or its whole folder, is lost while nothing of it runs."""
    agent.kill()
    if lost:
        (agent.folder / "state" / lost).unlink()
    else:
        shutil.rmtree(agent.folder / "state")
    agent.start()
    wait_for(lambda: not can_bind(server.port))
    restored = agent.restore(places("hold"), checkpoint)[-1]
    assert restored.get("tree"), restored


@pytest.mark.long
def test_ports_are_held_again_though_the_agents_folder_was_lost(agent, jupyter, places):
    """All of it, or put back from a backup of before."""
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "x = 5")
    suspend(agent, server.place)
    comes_back_without(agent, server, places, "cp", "")
    assert server.run(kernel, "x") == "5"


@pytest.mark.long
def test_ports_taken_while_no_agent_was_there_are_told_and_held_again(
    agent, jupyter, places
):
    """Where no systemd keeps them meanwhile."""
    server = jupyter()
    port = server.port
    suspend(agent, server.place)
    agent.kill()
    thief = Thief([port])
    agent.start()
    assert told(agent) == [
        f"Port {port}, which the suspended session needs, is taken by another program."
    ]
    failure = agent.restore(places("hold"), "cp")[-1]["failure"]
    assert failure["code"] == "port_in_use"
    assert thief.end()

    assert told(agent) == []
    thief = Thief([port])
    restored = agent.restore(places("hold"), "cp")[-1]
    assert thief.end() == []
    assert restored.get("tree"), restored


def can_bind(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


DATAGRAMS = """
import socket
def bound(port, share):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, share)
    one.bind(("127.0.0.1", port))
    one.settimeout(5)
    return one
alone, first = bound(0, 0), bound(0, 1)
second = bound(first.getsockname()[1], 1)
"""

SAID = """
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for text, to in (b"one", alone), (b"two", second):
    sender.sendto(text, to.getsockname())
(alone.recv(9), second.recv(9), second.getsockname() == first.getsockname())
"""


@pytest.mark.long
def test_datagrams_that_are_alone_and_that_share_a_port_come_back(
    agent, jupyter, places
):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, DATAGRAMS)
    suspend(agent, server.place)
    restored = agent.restore(places("hold"), "cp")[-1]
    assert restored.get("tree"), restored
    assert server.run(kernel, SAID) == "(b'one', b'two', True)"


def many_datagrams(count: int) -> str:
    return textwrap.dedent(
        f"""
        import socket
        kept = []
        for _ in range({count}):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.bind(("127.0.0.1", 0))
            kept.append(one)
        """
    )


#: A session's listener on the machine's own address, and a neighbour's on another.
NEIGHBOUR = """
import socket, subprocess, sys, tempfile
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from jupyterhub_gpu_reclaim.node.workflows import filesystem

for words in "link set lo up", "address add 10.9.8.7/32 dev lo":
    subprocess.run(["ip", *words.split()], check=True)
neighbour = socket.create_server(("127.0.0.1", 5000))
entry = images.parse("file_entry", b"")
entry.type, entry.id = images.TYPE_INETSK, 7
isk = entry.isk
isk.id, isk.ino, isk.family, isk.type, isk.proto = 7, 9, socket.AF_INET, 1, 6
isk.state, isk.src_port = 10, 5000
isk.src_addr.append(int.from_bytes(ip_address("10.9.8.7").packed, sys.byteorder))
image = images.join(images.FILES_MAGIC, [images.serialize(entry)])
needed = list(filesystem.ports_needed(
    SimpleNamespace(read=lambda _: image), SimpleNamespace(cut=[])
))
kept = HeldPorts(Path(tempfile.mkdtemp()))
kept.hold("cp", "ann", needed)
assert kept.missing() == [], kept.missing()
try:
    socket.create_server(("10.9.8.7", 5000))
except OSError:
    print("held")
"""


def test_neighbour_on_the_same_port_of_another_address_does_not_free_it():
    """What listens on the machine's own address (Ray, Dask) comes back there."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", NEIGHBOUR],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "held\n", done.stderr


@pytest.mark.long
def test_connections_of_a_killed_session_do_not_keep_it_from_coming_back(
    agent, jupyter, places
):
    """Who closes first keeps the address for a minute (TIME_WAIT): nobody holds it."""
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "x = 5")
    suspend(agent, server.place)
    place = places("hold")
    agent.come_back(place, "cp")
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for client in clients:  # accepted, that is: the others would be reset
        client.sendall(b"GET /user/ada/api HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096)
    for process in place.tree.processes:
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not place.alive)
    for client in clients:
        client.close()
    waiting = f":{server.port:04X} 0100007F:"
    table = Path("/proc/net/tcp").read_text().splitlines()
    assert any(waiting in line and line.split()[3] == "06" for line in table)
    restored = agent.restore(places("hold"), "cp")[-1]
    assert restored.get("tree"), restored
    assert server.run(kernel, "x") == "5"
