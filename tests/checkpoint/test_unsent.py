"""Data that a connection of the session has not sent yet, through real returns."""

from __future__ import annotations

import pytest

PAIR = """
import hashlib, struct
def made(size):
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    sender.setsockopt(socket.SOL_SOCKET, 32, size)  # SO_SNDBUFFORCE
    sender.setblocking(False)
    receiver = listener.accept()[0]
    listener.close()
    return sender, receiver
def fill(sender, size):
    data = b"".join(struct.pack("=I", n) for n in range(size // 4))
    assert sender.send(data) == len(data)
    return hashlib.sha256(data).hexdigest()
def drain(receiver, size):
    receiver.settimeout(30)
    data = b""
    while len(data) < size:
        part = receiver.recv(1 << 20)
        assert part, len(data)
        data += part
    return hashlib.sha256(data).hexdigest()
"""


def told(world, size):
    """The digest of what was sent and waits."""
    return world(f"digest = fill(sender, {size}); digest")


@pytest.mark.parametrize("first", ["sender", "receiver"])
@pytest.mark.parametrize("size", [300_000, 1_000_000, 8_000_000])
def test_unsent_data_comes_back_whole_whoever_is_first(places, engine, size, first):
    world = places.world()
    world(PAIR)
    world(f"sender, receiver = made({size})")
    other = "receiver" if first == "sender" else "sender"
    # By their numbers: CRIU restores what has the lower one first.
    world(f"os.dup2({first}.fileno(), 200); {first}.detach()")
    world(f"{first} = socket.socket(fileno=200)")
    world(f"os.dup2({other}.fileno(), 300); {other}.detach()")
    world(f"{other} = socket.socket(fileno=300)")
    sent = told(world, size)
    for _ in range(2):  # a second generation has the same
        world = engine.cycle(world, places)
    limits = world("[sender.getsockopt(1, n) for n in (7, 72)]")
    assert limits == [2 * size, 1]
    assert world(f"drain(receiver, {size})") == sent
    # Both directions go on, and nothing came twice.
    assert world("sender.send(b'more'); receiver.recv(99)") == b"more"
    assert world("receiver.send(b'back'); time.sleep(0.1); sender.recv(99)") == b"back"


@pytest.mark.parametrize("sends", ["parent", "child"])
def test_unsent_data_between_two_programs(places, engine, sends):
    size = 1_000_000
    world = places.world()
    world(PAIR)
    world(f"sender, receiver = made({size})")
    sent = told(world, size)
    kept, given = ("sender", "receiver")[:: 1 if sends == "parent" else -1]
    code = (
        "import socket,sys,hashlib,time; one = socket.socket(fileno=int(sys.argv[1]));"
        "sys.stdin.readline(); one.settimeout(30); data = b''\n"
        "while sys.argv[2] == 'receiver' and len(data) < 1000000:\n"
        "  data += one.recv(1 << 20)\n"
        "print(hashlib.sha256(data).hexdigest(), flush=True); sys.stdin.readline()"
    )
    world(
        f"child = subprocess.Popen([sys.executable, '-c', {code!r},"
        f" str({given}.fileno()), {given!r}], stdin=subprocess.PIPE,"
        f" stdout=subprocess.PIPE, text=True, pass_fds=[{given}.fileno()])"
    )
    world(f"{given}.close()")
    world = engine.cycle(world, places)
    told_by_child = world(
        "child.stdin.write('go\\n'); child.stdin.flush();"
        "child.stdout.readline().strip()"
    )
    got = told_by_child if kept == "sender" else world(f"drain(receiver, {size})")
    assert got == sent


def test_unsent_data_before_an_end_comes_back_with_the_end(places, engine):
    """It has said that no more follows, and that stands behind what is unsent."""
    size = 1_000_000
    world = places.world()
    world(PAIR)
    world(f"sender, receiver = made({size})")
    sent = told(world, size)
    world("sender.shutdown(socket.SHUT_WR)")
    world = engine.cycle(world, places)
    assert world(f"drain(receiver, {size})") == sent
    assert world("receiver.recv(1)") == b""
    world("receiver.send(b'answer')")
    assert world("time.sleep(0.1); sender.recv(99)") == b"answer"


def test_unsent_data_with_a_small_limit_of_what_may_wait(places, engine):
    size = 500_000
    world = places.world()
    world(PAIR)
    world(f"sender, receiver = made({size})")
    sent = told(world, size)
    world("sender.setsockopt(socket.IPPROTO_TCP, 25, 1000)")  # TCP_NOTSENT_LOWAT
    world = engine.cycle(world, places)
    assert world(f"drain(receiver, {size})") == sent
