"""A session with tens of thousands of connections in everybody's network namespace."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.linux.sock_diag import (
    Diag,
    Endpoint,
    InetSocket,
    TcpState,
    address_of,
)
from jupyterhub_gpu_reclaim.sampling.connections import Connections
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler
from tests.support.nvml import NoCards
from tests.support.served import here

PAIRS = 10_000
#: Opens connections to itself, in as many programs as the limit of open files asks for.
CROWD = """
import os, resource, socket, sys
hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 50_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
left, each, held = int(sys.argv[1]), hard // 2 - 50, []
while left > each and os.fork():
    left -= each
listener = socket.create_server(("127.0.0.7", 0), backlog=100)
for _ in range(min(left, each)):
    held += [socket.create_connection(listener.getsockname()), listener.accept()[0]]
os.write(1, b"%d\\n" % os.getpid())
sys.stdin.read()
"""


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def crowd() -> Iterator[list[int]]:
    if os.geteuid() != 0:
        pytest.skip("needs root: reads who holds which socket")
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, str(PAIRS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as program:
        pids: list[int] = []
        while sum(map(open_files, pids)) < 2 * PAIRS:
            pids.append(int(program.stdout.readline()))
        yield pids
        program.stdin.close()


def session(name: str, pids: Sequence[int] = (), port: int = 1) -> SampleTarget:
    pids = pids or [os.getpid()]
    address = here(port)
    return SampleTarget(name, SessionKey(name), pids[0], pids[0], pids, address)


def test_neighbours_of_a_crowd_are_looked_at_once_and_quickly(crowd):
    """Ten sessions in one namespace with 20,000 sockets of somebody else's."""
    looked = Connections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            socket.create_connection(listener.getsockname()) as one,
            listener.accept()[0] as other,
        ):
            mine = [session(f"ada{n}", port=port) for n in range(10)]
            looked.look(mine)
            one.sendall(b"x" * 1000)
            other.recv(1000)
            tracemalloc.start()
            begun = time.process_time()
            found = looked.look([*mine, session("eve", crowd)])
            spent = time.process_time() - begun
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert [found[f"ada{n}"].moved for n in range(10)] == [1000] * 10
    assert "eve" not in found
    assert peak < 16 << 20
    assert spent < 5.0


async def test_session_with_too_many_files_is_missing_alone(crowd):
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=60.0)
    eve, ada = await sampler.sample_all([session("eve", crowd), session("ada")])
    sampler.client.close()
    assert eve.moved is None
    assert "over 16384 files" in eve.problem
    assert ada.moved == 0
    assert "connections" not in ada.problem


async def test_look_at_connections_does_not_begin_while_the_last_one_hangs(monkeypatch):
    begun, let_go = [], threading.Event()

    def hang(pid, inodes):
        begun.append(pid)
        let_go.wait(30)
        return []

    monkeypatch.setattr(Diag, "connections", hang)
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=1.0)
    mine = [session(name) for name in ("ada", "bob")]
    for _ in range(3):
        taken = await sampler.sample_all(mine)
    assert len(begun) == 1
    assert [one.moved for one in taken] == [None, None]
    assert all(one.memory for one in taken)
    let_go.set()
    while (await sampler.sample_all(mine))[0].moved is None:
        await asyncio.sleep(0.01)
    sampler.client.close()


def test_what_others_connect_to_on_the_same_port_is_not_a_sessions_own():
    """On another loopback address, so that a neighbour's session looks used."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket, sys\n"
            f"l = socket.create_server(('127.0.0.9', {port}))\n"
            "a = socket.create_connection(l.getsockname()); b = l.accept()[0]\n"
            "print(flush=True)\n"
            "for _ in sys.stdin: a.sendall(b'x' * 1000); b.recv(1000)\n"
            "print(flush=True)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as eve:
            eve.stdout.readline()
            looked, ada = Connections(), session("ada", port=port)
            looked.look([ada])
            eve.communicate(b"\n")
            assert looked.look([ada])["ada"].moved == 0


def test_neighbours_cut_does_not_read_a_crowd(crowd):
    begun = time.process_time()
    tracemalloc.start()
    inet.cut_external(os.getpid(), [], patience=0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert time.process_time() - begun < 2.0
    with Diag(os.getpid()) as diag:
        assert diag.connections(()) == []


def test_many_listeners_and_many_connections_are_not_multiplied():
    """20,000 of each took minutes."""
    local = address_of(bytes([127, 0, 0, 1]))

    def one(port: int, state: TcpState, inode: int) -> InetSocket:
        here = Endpoint(local, port)
        return InetSocket(socket.AF_INET, socket.IPPROTO_TCP, state, here, here, inode)

    listeners = [one(n, TcpState.LISTEN, n + 1) for n in range(20_000)]
    waiting = [one(40_000 - n, TcpState.ESTABLISHED, 0) for n in range(20_000)]
    begun = time.process_time()
    found = inet._at_listeners(
        [*listeners, *waiting, one(5, TcpState.ESTABLISHED, 0)],
        listeners,
        {TcpState.ESTABLISHED},
    )
    assert [each.local.port for each in found] == [5]
    assert time.process_time() - begun < 5.0
