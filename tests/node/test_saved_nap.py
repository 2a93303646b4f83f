"""A suspend of a nap that is saved: what stood since is not stored again.

Agent, CRIU and store are real; the card is false.
"""

import re

import pytest

from tests.node.test_nap import nap, wake
from tests.support.agent import wait_for
from tests.support.fake_cards import take_card

pytestmark = pytest.mark.usefixtures("driver")

#: As no compressor makes it smaller.
MUCH = "import os; much = bytearray(os.urandom(60 << 20)); much[:4] = b'then'"
SAID = re.compile(r"bytearray\(b'(\w+)'\)")


@pytest.fixture
def server(jupyter, driver, device):
    server = jupyter()
    server.kernel = server.start_kernel()
    take_card(server, server.kernel, driver, device)
    server.run(server.kernel, MUCH)
    return server


def suspend(agent, place) -> None:
    agent.suspend(place, "cp")


def come_back(agent, server, places) -> str:
    """What the memory begins with when the session has come back."""
    server.place = agent.come_back(places("hold"), "cp")
    wait_for(lambda: agent.tree(server.place)["state"] == "running")
    return SAID.search(server.run(server.kernel, "much[:4]"))[1]


def test_memory_of_what_has_stood_since_is_not_stored_again(agent, server, places):
    """From one save point to the next, and also by the next agent."""
    nap(agent, server.place)
    assert agent.save(server.place, "nap")[-1]["checkpoint"]["stored_bytes"] > 60 << 20
    again = agent.save(server.place, "nap-2", 2)[-1]["checkpoint"]
    assert again["stored_bytes"] < 20 << 20
    agent.kill()
    agent.start()
    wait_for(lambda: agent.tree(server.place)["state"] == "napping")

    suspend(agent, server.place)
    (info,) = (c for c in agent.get("/v1/checkpoints").json() if c["id"] == "cp")
    assert info["stored_bytes"] < 20 << 20
    assert info["deduplicated_bytes"] > 60 << 20
    assert info["parent"] == "nap-2"

    assert agent.post("/v1/checkpoints/nap-2/discard").status_code < 300
    assert come_back(agent, server, places) == "then"


@pytest.mark.long
def test_what_was_awake_in_between_is_saved_as_it_is(agent, server, places):
    other = server.start_kernel("other.ipynb")
    server.run(other, "counted = 1")
    nap(agent, server.place)
    agent.saved(server.place, "nap")
    wake(agent, server.place)
    server.run(server.kernel, "much[:4] = b'late'")
    nap(agent, server.place)
    agent.saved(server.place, "nap-2", 2)
    server.run(other, "counted += 1")
    suspend(agent, server.place)
    assert come_back(agent, server, places) == "late"
    assert server.run(other, "counted").startswith("2")
