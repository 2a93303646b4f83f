"""A server that is deleted while it starts: an answer in time, and nothing is left."""

import threading
import time

import pytest

from tests.hub.test_traps import gone, rows
from tests.support.hub import wait_until
from tests.support.long_stories import but

#: Seconds that a deletion may take; the Hub itself waits for one of them.
IN_TIME = 30.0


def _pending(hub, name, server):
    found = hub.server(name, server)
    return found is not None and found["pending"] == "spawn"


def planned(hub, service, name):
    """The service has been asked, and has not answered yet."""
    service.late["plan-start"] = 2.0
    return lambda: _pending(hub, name, "small")


def launched(hub, service, name):
    """Its programs run, and the spawner has not said so."""
    held = hub.folder / f"held-start-of-{name}"
    held.touch()
    return held.read_text


def unanswered(hub, service, name):
    """It has been started, and has not answered the Hub; ``mute`` never does."""
    return lambda: service.called("placed")


@pytest.mark.parametrize(
    ("server", "moment"),
    but(
        [("small", planned), ("small", launched), ("mute", unanswered)],
        ("small", launched),
    ),
)
def test_server_deleted_in_its_start_leaves_nothing(hub, service, name, server, moment):
    hub.user(name)
    reached = moment(hub, service, name)
    where = f"users/{name}/servers/{server}"
    start = threading.Thread(target=hub.api, args=("POST", where))
    start.start()
    wait_until(reached, 30, hub.log)

    since = time.monotonic()
    answer = hub.api("DELETE", where, json={"remove": True})
    assert time.monotonic() - since < IN_TIME
    assert answer.status_code in {202, 204}, answer.text
    start.join(30)
    wait_until(lambda: hub.server(name, server) is None, 20, hub.log)
    wait_until(lambda: gone(service, name, server), 60)
    made = "select note from api_tokens where note like ?"
    assert rows(hub, made, f"Server at /user/{name}/%") == []

    (hub.folder / f"held-start-of-{name}").unlink(missing_ok=True)
    service.late.clear()
    if server == "small":  # and the name is free for another one
        hub.start_server(name, server)
        hub.stop_server(name, server)
