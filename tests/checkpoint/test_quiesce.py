"""No line is lost between a kernel, its server and a tab when these are cut apart."""

import contextlib
import os
import socket
import sys
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, listeners
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze, quiesce
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, TcpState

#: A server as Jupyter's is: what its kernel says goes to the tab while there is one,
#: and is kept while there is none. What it writes to a dead connection is lost.
SERVER = """
import select, socket, subprocess, sys, time
KERNEL = '''
import socket, sys, time
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
number = 0
while True:
    server.sendall(b"%d " % number)
    number += 1
    time.sleep(0.001)
'''
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
subprocess.Popen([sys.executable, "-c", KERNEL, str(port)])
kernel, _ = listener.accept()
print("port", port, flush=True)
tab, kept = None, b""
while True:
    ready, _, _ = select.select([kernel, listener] + [tab] * bool(tab), [], [])
    if tab in ready:
        try:
            gone = not tab.recv(100)
        except OSError:
            gone = True
        if gone:
            tab.close()
            tab = None
    if listener in ready:
        tab, _ = listener.accept()
        tab.sendall(kept)
        kept = b""
    if kernel in ready:
        said = kernel.recv(10)  # seldom a whole line, and never all there is
        time.sleep(0.0005)  # it has more to do than that
        if tab is None:
            kept += said
        else:
            try:
                tab.sendall(said)
            except OSError:
                tab.close()
                tab = None
"""


def received(tab: socket.socket) -> bytes:
    """All that a tab gets until its connection ends, however it ends."""
    said = b""
    try:
        while data := tab.recv(1 << 20):
            said += data
    except ConnectionError:
        pass
    return said


@pytest.fixture
def talk(places):
    place = places.start(sys.executable, "-c", SERVER)
    place.read_until("port ")
    return place, int(place.read_until("\n"))


def test_cut_in_silence_loses_no_output_of_a_kernel(talk):
    place, port = talk
    said = b""
    for turn in range(8):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as tab:
            while len(said) < 100 * (turn + 1):
                said += tab.recv(1000)
            cut = quiesce.cut_in_silence(place.tree)
            said += received(tab)
        assert len(cut) == 1
        freeze.thaw(place.tree)
    lines = said.split(b" ")[:-1]
    assert len(lines) > 100
    assert lines == [b"%d" % number for number in range(len(lines))]


def test_cut_in_silence_stops_the_kernel_and_then_the_server(talk):
    place, port = talk
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        quiesce.cut_in_silence(place.tree)
        tree = place.tree
        kernel = tree.processes[-1]
        assert tree.stopped == {kernel.ns_pid, tree.server.ns_pid}
        assert kernel.ppid == tree.server.pid


def test_tab_that_connects_again_at_once_is_not_taken_any_more(talk):
    place, port = talk
    address = ("127.0.0.1", port)
    with contextlib.ExitStack() as tabs:
        tab = tabs.enter_context(socket.create_connection(address, timeout=10))
        assert tab.recv(1)

        def come_back() -> None:
            received(tab)
            tabs.enter_context(socket.create_connection(address, timeout=10))

        coming = threading.Thread(target=come_back)
        coming.start()
        quiesce.cut_in_silence(place.tree)

        inodes = inet.tree_inodes([place.tree.server.pid])
        taken = [
            one.remote.port
            for one in inet.sockets_of(place.tree.init.pid, inodes)
            if one.local.port == port and one.state is TcpState.ESTABLISHED
        ]
        assert len(taken) == 1, "its kernel, and nobody else"
        freeze.thaw(place.tree)
        coming.join(60)
        assert not coming.is_alive(), "it hears again"


def can_connect(port: int) -> bool:
    with contextlib.suppress(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.3).close()
        return True
    return False


def test_thaw_lets_a_server_hear_again_that_a_killed_agent_has_left_deaf(talk):
    place, port = talk
    left = listeners.deaf(place.tree.init.pid, place.tree.server)
    left.__enter__()
    assert not can_connect(port)
    freeze.thaw(place.tree)
    assert can_connect(port)


def test_cut_in_silence_waits_no_longer_than_it_may_for_a_busy_server(places):
    busy = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
print("port", listener.getsockname()[1], flush=True)
while True:
    pass
"""
    place = places.start(sys.executable, "-c", busy)
    place.read_until("port ")
    port = int(place.read_until("\n"))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as tab:
        cut = quiesce.cut_in_silence(place.tree, patience=0.1)
        assert cut
        with pytest.raises(ConnectionResetError):
            tab.recv(1)


def test_cut_in_silence_leaves_a_program_in_a_terminal_running(places):
    program = """
import os, pty, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
pid, terminal = pty.fork()
if pid == 0:
    mine = socket.create_connection(listener.getsockname())
    while True:
        time.sleep(1)
kept, _ = listener.accept()
print("port", listener.getsockname()[1], flush=True)
time.sleep(100)
"""
    place = places.start(sys.executable, "-c", program)
    place.read_until("port ")
    quiesce.cut_in_silence(place.tree)
    assert place.tree.stopped == {place.tree.server.ns_pid}


def test_links_of_names_both_ends_within_the_list_only():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        inodes = [os.fstat(one.fileno()).st_ino for one in (near, far)]
        with Diag(os.getpid()) as diag:
            found = diag.sockets()
        assert inet.links_of(found, inodes[:1]) == frozenset(inodes)
        without = [one for one in found if one.inode != inodes[1]]
        assert inet.links_of(without, inodes[:1]) == frozenset()
