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
