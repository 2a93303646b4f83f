"""Nobody keeps another's suspended session from coming back by its ports, and no user
takes the ports of the whole machine.

The attacker is a program of another user, on the same network.
"""

import socket
import subprocess
import sys
import textwrap

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState
from tests.node.conftest import agent, folder, jupyter, places
from tests.support.agent import wait_for
from tests.support.ran import ran

__all__ = ["agent", "folder", "jupyter", "places"]

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
    findings = agent.get("/v1/status").json()["findings"]
    assert "port_in_use" not in {one["code"] for one in findings}

    # Also where what the agent knows of them was lost.
    suspend(agent, back, "cp2")
    agent.kill()
    (agent.folder / "state" / "ports.json").unlink()
    agent.start()
    wait_for(lambda: not can_bind(server.port))
    agent.come_back(places("hold"), "cp2")
    assert server.run(kernel, "x") == "5"


def can_bind(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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
import os, socket, subprocess, sys, tempfile
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
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
saved = SimpleNamespace(read=lambda _: image), SimpleNamespace(cut=[])
needed = list(inet.ports_of(filesystem.entries_in(*saved, os.getpid())))
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
    done = ran(["unshare", "--net", sys.executable, "-c", NEIGHBOUR], timeout=60)
    assert done.stdout == "held\n", done.stderr
