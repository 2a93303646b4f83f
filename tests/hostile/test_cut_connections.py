"""A session cannot take part in how its cut connections are told to its programs."""

import socket

from tests.checkpoint.test_resets import READ, RESET, connect, suspend_and_return

#: Where a reset connects to, if only for a moment and only in the kernel.
BAIT = """
def bait(host, family):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, 9))
    one.listen()
    one.setblocking(False)
    return one
baits = [bait("127.0.0.1", socket.AF_INET), bait("::1", socket.AF_INET6)]
def caught():
    found = []
    for one in baits:
        try:
            found.append(one.accept())
        except BlockingIOError:
            pass
    return found
"""


def test_listener_where_a_reset_connects_to_gets_nobody(places, engine):
    world = places.world()
    world(READ + BAIT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with connect(world, server, "one"), connect(world, server, "two"):
            place, _ = suspend_and_return(engine, places, world.place)
        world = world.at(place)
        assert world("read(one), read(two)") == (RESET, RESET)
        assert world("caught()") == []
