"""Names of UNIX sockets, inside of the session and outside, through a real return."""

import contextlib
import socket

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed, RolledBack
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


def test_datagram_sockets_with_a_path_lead_to_each_other_again(
    places, engine, tmp_path
):
    world = places.world()
    paths = [str(tmp_path / name) for name in "ab"]
    world(
        "a, b = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]\n"
        f"a.bind({paths[0]!r}); b.bind({paths[1]!r})\n"
        f"a.connect({paths[1]!r}); b.connect({paths[0]!r})\n"
    )
    for _ in range(2):
        world = engine.cycle(world, places)
    world("a.settimeout(5); b.settimeout(5)")
    world("a.send(b'to b'); b.send(b'to a')")
    assert world("a.recvfrom(99)") == (b"to a", paths[1])
    assert world("b.recvfrom(99)") == (b"to b", paths[0])


def test_datagram_that_comes_at_the_last_moment_ends_the_save_and_is_read(
    places, engine
):
    world = places.world()
    world("a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.send(b'')")
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, engine.image().sink)
    assert caught.value.reason is Reason.SOCKET_UNREAD
    assert caught.value.retryable
    assert world("b.recv(9)") == b""
    world = engine.cycle(world, places)
    assert world("a.send(b'x'), b.recv(9)") == (1, b"x")
