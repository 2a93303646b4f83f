"""Data that a connection of the session has not sent yet, through real returns."""

PAIR = """
import array, hashlib
def made(size):
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    sender.setsockopt(socket.SOL_SOCKET, 32, size)  # SO_SNDBUFFORCE
    sender.setblocking(False)
    receiver = listener.accept()[0]
    listener.close()
    return sender, receiver
def fill(sender, size):
    data = array.array("I", range(size // 4)).tobytes()
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


#: Reads what waits for it, or keeps what it has sent until the other has read it.
CHILD = """
import socket, sys, hashlib
one = socket.socket(fileno=int(sys.argv[1]))
sys.stdin.readline(); one.settimeout(30); data = b""
while sys.argv[2] == "receiver" and len(data) < 1000000:
    data += one.recv(1 << 20)
print(hashlib.sha256(data).hexdigest(), flush=True); sys.stdin.readline()
"""


def make(world, name: str, size: int, waits: int = 0) -> str:
    """A pair of that name, with so much that waits; the digest of that."""
    world(f"sender, receiver = made({size}); digest = fill(sender, {waits or size})")
    return world(f"pairs[{name!r}] = [sender, receiver]; digest")


def number(world, name: str, first: str) -> None:
    order = (0, 1) if first == "sender" else (1, 0)
    world(
        f"for end in {order}:\n"
        "    old = pairs[{0!r}][end]; new = next(numbers)\n"
        "    os.dup2(old.fileno(), new); old.close()\n"
        "    pairs[{0!r}][end] = socket.socket(fileno=new)\n1".format(name)
    )


def give(world, name: str, end: int) -> None:
    """Let a child have that end of a pair, and nobody else."""
    kind = ("sender", "receiver")[end]
    world(
        f"end = pairs[{name!r}][{end}]; children[{name!r}] = subprocess.Popen("
        f"[sys.executable, '-c', {CHILD!r}, str(end.fileno()), {kind!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,"
        " pass_fds=[end.fileno()]); end.close()"
    )


def test_unsent_data_comes_back_whole_in_each_of_many_connections(places, engine):
    """Of all sizes, whichever end is first; between programs; before an end."""
    world = places.world()
    world(PAIR)
    world("import itertools; pairs, children, numbers = {}, {}, itertools.count(200)")
    sizes = {
        f"{size} bytes, {first} first": (size, first)
        for size in (300_000, 1_000_000, 8_000_000)
        for first in ("sender", "receiver")
    }
    sent = {}
    for name, (size, first) in sizes.items():
        sent[name] = make(world, name, size)
        number(world, name, first)
    # The limit of what may wait unsent is small.
    sent["few may wait"] = make(world, "few may wait", 500_000)
    world("pairs['few may wait'][0].setsockopt(socket.IPPROTO_TCP, 25, 1000)")
    # It has said that no more follows, and that stands behind what is unsent.
    sent["ends"] = make(world, "ends", 1_000_000)
    world("pairs['ends'][0].shutdown(socket.SHUT_WR)")
    for end, name in enumerate(("child sends", "child reads")):
        sent[name] = make(world, name, 1_000_000)
        give(world, name, end)

    for _ in range(2):  # a second generation has the same
        world = engine.cycle(world, places)

    limits = {
        name: world(f"[pairs[{name!r}][0].getsockopt(1, n) for n in (7, 72)]")
        for name in sizes
    }
    assert limits == {name: [2 * size, 1] for name, (size, _) in sizes.items()}
    waits = {name: size for name, (size, _) in sizes.items()}
    waits |= {"few may wait": 500_000, "ends": 1_000_000, "child sends": 1_000_000}
    got = {name: world(f"drain(pairs[{name!r}][1], {waits[name]})") for name in waits}
    ask = "one.stdin.write('go\\n'); one.stdin.flush(); one.stdout.readline().strip()"
    got["child reads"] = world(f"one = children['child reads']; {ask}")
    assert got == sent
    # Both directions go on, and nothing came twice.
    for name in sizes:
        world(f"sender, receiver = pairs[{name!r}]")
        assert world("sender.send(b'more'); receiver.recv(99)") == b"more", name
        assert world("receiver.send(b'back'); sender.setblocking(True)") is None, name
        assert world("sender.recv(99)") == b"back", name
    world("sender, receiver = pairs['ends']")
    assert world("receiver.recv(1)") == b""
    assert world("receiver.send(b'answer'); sender.setblocking(True)") is None
    assert world("sender.recv(99)") == b"answer"
