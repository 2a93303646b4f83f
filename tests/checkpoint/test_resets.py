"""A connection that did not come back reads as reset, in every way to wait for it."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.cut_connections import (
    CutConnections,
    unread_ends,
)
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.processes import Process
from tests.checkpoint.conftest import World, fingerprints

#: Downloads of every kind, each waiting for what does not come; how each of them ended
#: is told in one call of the system, so that no two of them mix their lines.
DOWNLOADS = """
import asyncio, errno, os, select, socket, threading, urllib.request
def connect(host, **options):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family)
    if options.get("only_v6") is not None:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, options["only_v6"])
    one.connect((host, PORT))
    got = b""
    while not got.endswith(b"half"):
        got += one.recv(100)
    return one
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def told(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[getattr(error, "reason", error).errno]
def run(name, begin, rest):
    state = begin()
    say("ready")
    say("end", name, *[told(lambda: call(state)) for call in rest])
read = lambda one: one.recv(100)
write = lambda one: one.send(b"x")
fill = lambda one: one.sendall(bytes(64 << 20))
asked = lambda one: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
def polled(kind):
    def wait(one):
        poll = getattr(select, kind)()
        poll.register(one, select.POLLIN)
        return hex(poll.poll()[0][1])
    return wait
def registered(flags):
    def begin():
        one = connect("127.0.0.1")
        one.setblocking(False)
        poll = select.epoll()
        poll.register(one, select.EPOLLIN | flags)
        return one, poll
    return begin
def awaited(both):
    return hex(both[1].poll()[0][1])
def chosen(one):
    return [len(them) for them in select.select([one], [], [one])]
def begin_asyncio():
    return connect("127.0.0.1")
def by_asyncio(one):
    async def get():
        reader, writer = await asyncio.open_connection(sock=one)
        return await reader.read()
    return asyncio.run(get())
def by_urllib():
    answer = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/")
    assert answer.read(4) == b"half"
    return answer
v4 = lambda: connect("127.0.0.1")
WAYS = {
    "recv": (v4, [read, read, write]),
    "send": (v4, [fill, write, read]),
    "poll": (v4, [polled("poll"), read]),
    "epoll": (v4, [polled("epoll"), asked, read]),
    "level": (registered(0), [awaited, lambda both: read(both[0])]),
    "edge": (registered(select.EPOLLET), [awaited, lambda both: read(both[0])]),
    "select": (v4, [chosen, read]),
    "asyncio": (v4, [by_asyncio]),
    "urllib": (by_urllib, [lambda answer: answer.read()]),
    "mapped": (lambda: connect("::ffff:127.0.0.1"), [read, read]),
    "v6": (lambda: connect("::1"), [read, read]),
    "only": (lambda: connect("::1", only_v6=1), [read, read]),
}
for name, (begin, rest) in WAYS.items():
    threading.Thread(target=run, args=(name, begin, rest)).start()
threading.Event().wait()
"""
ENDS = {
    "recv": "ECONNRESET ENOTCONN EPIPE",
    "send": "ECONNRESET EPIPE ENOTCONN",
    "poll": "0x18 ECONNRESET",  # POLLERR | POLLHUP
    "epoll": "0x18 104 ENOTCONN",
    "level": "0x18 ECONNRESET",
    "edge": "0x18 ECONNRESET",
    "select": "[1, 0, 0] ECONNRESET",
    "asyncio": "ECONNRESET",
    "urllib": "ECONNRESET",
    "mapped": "ECONNRESET ENOTCONN",
    "v6": "ECONNRESET ENOTCONN",
    "only": "ECONNRESET ENOTCONN",
}
HALF = b"HTTP/1.0 200 OK\r\n\r\nhalf"


def entries_of(image):
    entries = list(images.file_entries(image["files.img"]))
    inet.close_external(entries, (), image.gone)
    return entries


def suspend_and_return(engine, places, place, *, cut=True):
    """Away and back as the agent does it; the new place and the image."""
    image, tree = engine.image(), place.tree
    gone: frozenset[int] = frozenset()
    if cut:
        # Nobody of the tree runs, so nobody notices before the capture.
        freeze.freeze(place.init_pid, place.init_start, timeout=20)
        pids = [process.pid for process in tree.processes]
        gone = frozenset(inet.cut_external(place.init_pid, pids, patience=0))
    result = engine.dump(place, image.sink, stopped=())
    gone |= unread_ends(place.tree.processes)
    image.gone = gone
    opened = fingerprints(place)
    place.kill()
    place = places.hold()
    proceed(engine.restore(place, image, result, opened=opened, cut=gone), ())
    return place, image


@pytest.fixture
def server():
    """A server outside of any session, on both loopback addresses."""
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
    ) as made:
        made.settimeout(20)
        yield made


@pytest.mark.parametrize("cut", [True, False])
def test_cut_connection_is_an_error_after_the_return_not_a_clean_end(
    places, engine, server, cut
):
    code = f"PORT = {server.getsockname()[1]}\n{DOWNLOADS}"
    place = places.start(sys.executable, "-c", code)
    peers = []
    for _ in ENDS:
        peers.append(server.accept()[0])
        peers[-1].sendall(HALF)
    for _ in ENDS:
        place.read_until("ready\n")
    place, _ = suspend_and_return(engine, places, place, cut=cut)
    for peer in peers:
        peer.close()
    lines = [place.read_until("\n").split(maxsplit=2) for _ in ENDS]
    assert {name: end.strip() for _, name, end in lines} == ENDS


READ = """
def read(one):
    try:
        return one.recv(100)
    except OSError as error:
        return type(error).__name__, error.errno
"""
RESET, UNCONNECTED = ("ConnectionResetError", 104), ("OSError", 107)


def connect(world: World, server: socket.socket, name: str) -> socket.socket:
    """A connection of that name from the session; its other end."""
    port = server.getsockname()[1]
    world(f"{name} = socket.create_connection(('127.0.0.1', {port}))")
    return server.accept()[0]


def test_reset_that_nobody_has_read_is_there_after_the_next_return(
    places, engine, server
):
    world = places.world()
    world(READ)
    with connect(world, server, "one"), connect(world, server, "two"):
        for _ in range(2):
            place, image = suspend_and_return(engine, places, world.place)
            world = world.at(place)
            # Nothing is kept of the connection that it was made of.
            assert world("one.getsockname()") == ("0.0.0.0", 0)
            ports = {one.port for one in inet.ports_of(entries_of(image))}
            assert ports == {world.port}
            assert world("one.getsockopt(1, socket.SO_REUSEADDR)") == 0
    assert world("read(one), read(one)") == (RESET, UNCONNECTED)
    place, _ = suspend_and_return(engine, places, world.place)
    world = world.at(place)
    assert world("read(one), read(two)") == (UNCONNECTED, RESET)
    # It can be used again, as any that was never connected.
    port = server.getsockname()[1]
    world(f"one.connect(('127.0.0.1', {port})); one.send(b'anew')")
    with server.accept()[0] as peer:
        assert peer.recv(9) == b"anew"


def test_end_that_was_not_read_is_a_reset_after_the_return(places, engine, server):
    """What waits in the kernel's buffers is lost, and the end would look like all."""
    world = places.world()
    world(READ)
    for name in ("broken", "unread", "whole", "half_read"):
        with connect(world, server, name) as peer:
            if name == "broken":
                linger = struct.pack("ii", 1, 0)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                continue
            # Both sides have said that they are done, so nothing is left to be cut.
            world(f"{name}.shutdown(socket.SHUT_WR)")
            assert peer.recv(1) == b""
            peer.sendall(b"all of it")
        assert world(f"len(select.select([{name}], [], [])[0])") == 1
    assert world("whole.recv(99), whole.recv(99)") == (b"all of it", b"")
    assert world("half_read.recv(3)") == b"all"
    place, image = suspend_and_return(engine, places, world.place)
    world = world.at(place)
    assert world("read(broken), read(unread), read(half_read)") == (RESET,) * 3
    assert world("read(whole)") == b""
    # The ports of the dead are nobody's.
    assert {one.port for one in inet.ports_of(entries_of(image))} == {world.port}


CHILD = """
import socket, sys
from pathlib import Path
from tests.support.network import be_alone
def no_loopback():
    import ctypes
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
def no_ipv6():
    assert be_alone()
    Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("1")
{network}()
one = socket.socket(socket.{family})
{options}
print(one.fileno(), flush=True)
sys.stdin.readline()
try:
    one.recv(1)
except OSError as error:
    print(error.errno, flush=True)
"""
ONLY = "one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)"
DEVICE = "one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')"
REUSE = "one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)"


def reset(process, descriptors, ended):
    """As it is done to a tree that has come back, of one process."""
    saved = SimpleNamespace(descriptors=descriptors)
    back = Return(0, None, saved, {}, None, None)
    back.tree = SimpleNamespace(processes=[process])
    kind = CutConnections()
    kind._ended = frozenset(ended)
    kind.after_restore(back)


@pytest.mark.parametrize(
    ("network", "family", "options", "errno"),
    [
        ("be_alone", "AF_INET", "", 104),
        ("be_alone", "AF_INET", DEVICE, 104),
        ("be_alone", "AF_INET", REUSE, 104),
        ("be_alone", "AF_INET6", "", 104),
        ("be_alone", "AF_INET6", ONLY, 104),
        ("no_ipv6", "AF_INET6", "", 104),
        # Nothing can be connected: no wait, and still no clean end.
        ("no_ipv6", "AF_INET6", ONLY, 107),
        ("no_loopback", "AF_INET", "", 107),
        ("no_loopback", "AF_INET6", "", 107),
    ],
)
def test_reset_in_any_network_is_an_error(network, family, options, errno):
    code = CHILD.format(network=network, family=family, options=options)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as child:
        fd = int(child.stdout.readline())
        start = processes.start_time(child.pid)
        process = Process(child.pid, 7, os.getpid(), "child", "S", start, 0)
        reset(process, {(7, fd): (4, 5), (7, 0): (4, 6)}, [5, 6, 8])
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == f"{errno}\n"


def test_reset_leaves_listeners_and_living_connections_alone(server):
    with (
        socket.create_connection(server.getsockname()[:2]) as living,
        server.accept()[0] as peer,
        socket.socket(type=socket.SOCK_DGRAM) as datagram,
    ):
        held = [one.fileno() for one in (living, server, datagram)]
        start = processes.start_time(os.getpid())
        process = Process(os.getpid(), 7, 1, "ourselves", "S", start, 0)
        descriptors = {(7, fd): (4, fd) for fd in held}
        reset(process, descriptors, held)
        assert unread_ends([process]).isdisjoint(os.fstat(fd).st_ino for fd in held)
        peer.send(b"still")
        assert living.recv(9) == b"still"
