"""Datagrams to a name outside of the session, as to /dev/log, through a real return."""

from __future__ import annotations

import socket

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from tests.checkpoint.conftest import fingerprints

SENDERS = """
def sender(name):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if name:
        one.bind(name)
    one.connect({path!r})
    return one
def send(one, what):
    try:
        return one.send(what)
    except OSError as error:
        return type(error).__name__
"""


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_sender_to_a_name_outside_comes_back_even_if_that_is_gone(
    places, engine, tmp_path, kind, stays
):
    path = str(tmp_path / "log") if kind == "path" else f"\0{tmp_path}"
    own = f"\0{tmp_path} own"
    world = places.world()
    world(SENDERS.format(path=path))
    image = engine.image()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.settimeout(20)
        world(f"one = sender(''); named = sender({own!r})")
        result = engine.dump(world.place, image.sink, stopped=())
        opened = fingerprints(world.place)
        world.place.kill()
        if not stays:
            server.close()
        place = places.hold()
        proceed(engine.restore(place, image, result, opened=opened), ())
        world = world.at(place)
        if stays:
            assert world("send(one, b'again')") == 5
            assert server.recv(99) == b"again"
        else:
            assert world("send(one, b'again')").endswith("Error")
            assert world("send(named, b'again')").endswith("Error")


def named_pair(tmp_path, kind):
    """A socket with that kind of name, and a sender with an abstract one, connected."""
    name = str(tmp_path / "here") if kind == "path" else f"\0{tmp_path} here"
    return f"""
server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
server.bind({name!r})
speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
speaker.bind({str(tmp_path) + " client"!r}.join(["\\0", ""]))
speaker.connect({name!r})
def take():
    server.settimeout(5)
    return server.recvfrom(1 << 20)
"""


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_datagrams_that_wait_in_a_named_socket_come_back(
    places, engine, tmp_path, kind, is_deleted
):
    world = places.world()
    world(named_pair(tmp_path, kind))
    world("for n in range(5): speaker.send(b'%d' % n * 1000)")
    world("speaker.send(b''); speaker.send(b'last')")
    if is_deleted and kind == "path":
        world(f"os.unlink({str(tmp_path / 'here')!r})")
    for _ in range(2):
        world = engine.cycle(world, places)
    got = [world("take()")[0] for _ in range(7)]
    assert got == [b"%d" % n * 1000 for n in range(5)] + [b"", b"last"]
    world("server.settimeout(0)")
    assert world("select.select([server], [], [], 0)[0] == []")
    # The client is heard as before, by its own name.
    assert world("speaker.send(b'new')") == 3
    assert world("take()") == (b"new", f"\0{tmp_path} client".encode())


def test_datagrams_that_wait_in_a_connected_named_socket_come_back(
    places, engine, tmp_path
):
    world = places.world()
    paths = [str(tmp_path / name) for name in "ab"]
    world(
        "a, b = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]\n"
        f"a.bind({paths[0]!r}); b.bind({paths[1]!r})\n"
        f"a.connect({paths[1]!r}); b.connect({paths[0]!r})\n"
        "a.send(b'to b'); b.send(b'to a')"
    )
    world = engine.cycle(world, places)
    world("a.settimeout(5); b.settimeout(5)")
    assert world("a.recv(99), b.recv(99)") == (b"to a", b"to b")
