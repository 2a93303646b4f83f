"""Names of UNIX sockets, inside of the session and outside, through a real return."""

import contextlib
import socket

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.checkpoint.conftest import fingerprints

SENDERS = """
def sender(path, name=""):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if name:
        one.bind(name)
    one.connect(path)
    return one
def send(one, what):
    try:
        return one.send(what)
    except OSError as error:
        return type(error).__name__
"""


def test_sender_to_a_name_outside_comes_back_even_if_that_is_gone(
    places, engine, tmp_path
):
    names = {"path": str(tmp_path / "log"), "abstract": f"\0{tmp_path}"}
    world = places.world()
    world(SENDERS)
    image = engine.image()
    with contextlib.ExitStack() as stack:
        servers = {}
        for kind, name in names.items():
            servers[kind] = stack.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            )
            servers[kind].bind(name)
            servers[kind].settimeout(20)
            own = f"\0{tmp_path} own {kind}"
            world(f"{kind} = sender({name!r}), sender({name!r}, {own!r})")
        result = engine.dump(world.place, image.sink, stopped=())
        opened = fingerprints(world.place)

        def back():
            world.place.kill()
            place = places.hold()
            proceed(engine.restore(place, image, result, opened=opened), ())
            return world.at(place)

        world = back()
        for kind, server in servers.items():
            assert world(f"send({kind}[0], b'again')") == 5, kind
            assert server.recv(99) == b"again", kind
    world = back()
    for kind in names:
        answers = world(f"[send(one, b'again') for one in {kind}]")
        assert all(str(one).endswith("Error") for one in answers), (kind, answers)


def test_return_to_a_name_that_another_file_has_says_so(places, engine, tmp_path):
    name = tmp_path / "server"
    world = places.world()
    world(f"one = socket.socket(socket.AF_UNIX); one.bind({str(name)!r}); one.listen()")
    saved = engine.save(world.place, stopped=())
    name.unlink()
    name.write_text("of somebody else")

    with pytest.raises(RestoreFailed, match="another file has its name") as failed:
        saved.restore(places.hold())

    assert failed.value.reason is Reason.FILE_DENIED
    assert name.read_text() == "of somebody else"


PAIRS = """
servers, speakers = {}, {}
def pair(kind, name, client):
    one = servers[kind] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(name)
    other = speakers[kind] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.bind(client)
    other.connect(name)
    for n in range(5):
        other.send(b"%d" % n * 1000)
    other.send(b""); other.send(b"last")
def take(kind):
    servers[kind].settimeout(5)
    return servers[kind].recvfrom(1 << 20)
def is_empty(kind):
    servers[kind].settimeout(0)
    return select.select([servers[kind]], [], [], 0)[0] == []
"""


def test_datagrams_that_wait_in_named_sockets_come_back(places, engine, tmp_path):
    """With a path, a path that is deleted, an abstract name; and in a pair."""
    world = places.world()
    world(PAIRS)
    deleted = str(tmp_path / "deleted")
    kinds = {
        "path": str(tmp_path / "here"),
        "deleted": deleted,
        "abstract": f"\0{tmp_path} here",
    }
    clients = {kind: f"\0{tmp_path} client {kind}" for kind in kinds}
    for kind, name in kinds.items():
        world(f"pair({kind!r}, {name!r}, {clients[kind]!r})")
    world(f"os.unlink({deleted!r})")
    paths = [str(tmp_path / name) for name in "ab"]
    world(
        "a, b = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]\n"
        f"a.bind({paths[0]!r}); b.bind({paths[1]!r})\n"
        f"a.connect({paths[1]!r}); b.connect({paths[0]!r})\n"
        "a.send(b'to b'); b.send(b'to a')"
    )
    for _ in range(2):
        world = engine.cycle(world, places)
    for kind in kinds:
        got = [world(f"take({kind!r})")[0] for _ in range(7)]
        assert got == [b"%d" % n * 1000 for n in range(5)] + [b"", b"last"], kind
        assert world(f"is_empty({kind!r})"), kind
        # The client is heard as before, by its own name.
        assert world(f"speakers[{kind!r}].send(b'new')") == 3, kind
        assert world(f"take({kind!r})") == (b"new", clients[kind].encode()), kind
    world("a.settimeout(5); b.settimeout(5)")
    assert world("a.recv(99), b.recv(99)") == (b"to a", b"to b")
