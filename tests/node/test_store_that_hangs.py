"""A user comes back while the store hangs: the session runs at once all the same."""

import sys
import threading
import time

import pytest

from tests.node.test_nap import nap, wake
from tests.support.agent import goes_on, wait_for
from tests.support.fake_cards import computes
from tests.support.gate import Gate
from tests.support.long_stories import but
from tests.support.object_store import faulty, s3_server

pytestmark = pytest.mark.shares_an_agent(card=True)

#: How long who comes back may wait for a session that was just being suspended: not
#: for a store that never answers.
AT_ONCE = 8.0
#: It counts, and its memory is more than what a store's writers hold on to.
LARGE = """
import os, sys, time
ballast = os.urandom(48 << 20)
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""
#: Where the store hangs: the request from which on nothing is answered any more.
MOMENTS = {
    "the announcement": ("PUT", "/writing/cp-1"),
    "the packs": ("PUT", "/packs/cp-1/"),
    "a look at a pack": ("GET", "/packs/cp-1/"),
    "the index": ("PUT", "/packs/cp-1/index"),
    "the manifest": ("PUT", "/manifests/cp-1"),
    "a look at the manifest": ("GET", "/manifests/cp-1"),
}


@pytest.fixture(scope="module")
def s3(shared_agent):
    with s3_server(shared_agent.folder) as server:
        server.bucket("sessions")
        yield server


@pytest.fixture(scope="module")
def gate(shared_agent, s3):
    made, agent = Gate(), shared_agent
    with faulty(s3.endpoint, made) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        lines = [
            f"c.AgentApp.store_options = {options!r}",
            f"c.AgentApp.store_options_file = {str(s3.options_file)!r}",
        ]
        path = agent.folder / "agent.py"
        path.write_text("\n".join(["c = get_config()", *lines]))
        agent.kill()
        (agent.folder / "master.key").unlink()  # a first start
        agent.store = "s3://sessions/hub"
        agent.start(f"--config={path}")
        yield made
        agent.kill()


@pytest.fixture
def agent(agent, gate, s3):
    yield agent
    gate.open()

    def is_empty() -> bool:
        # What was held up may arrive after a list: a manifest, too.
        for one in agent.get("/v1/checkpoints").json():
            agent.post(f"/v1/checkpoints/{one['id']}/discard")
        return names(s3) == ["hub/identity"]

    wait_for(is_empty, 60)


def names(s3) -> list[str]:
    found = s3.client.list_objects_v2(Bucket="sessions")
    return [one["Key"] for one in found.get("Contents", [])]


@pytest.fixture
def large(places):
    place = places("start", sys.executable, "-I", "-S", "-c", LARGE, env={})
    wait_for(lambda: place.output.stat().st_size)
    return place


class Order(threading.Thread):
    """An order whose events are heard to the end, beside the test."""

    def __init__(self, work) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.events: list[dict] = []
        self.start()

    def run(self) -> None:
        self.events = self._work()


def call_off(agent, place, order: Order) -> float:
    """Cancel what is under way; seconds until it has ended and the session counts."""
    begun = time.monotonic()
    agent.cancel(place)
    size = place.output.stat().st_size
    wait_for(lambda: place.output.stat().st_size > size, 60)
    order.join(60)
    seconds = time.monotonic() - begun
    assert not order.is_alive()
    return seconds


def checkpoints(agent) -> list[dict]:
    return agent.get("/v1/checkpoints").json()


def suspends(agent, place, checkpoint: str, generation: int) -> None:
    """A suspend works now, and can be taken back."""
    agent.captured(place, checkpoint, generation)
    agent.post(f"/v1/sessions/{place.incarnation}/thaw").raise_for_status()
    assert goes_on(place)


# One while memory is streamed, and one in the commit; the others hang likewise.
@pytest.mark.parametrize("moment", but(MOMENTS, "the packs", "the manifest"))
def test_suspend_that_is_called_off_lets_the_session_go_on_at_once(
    agent, gate, request, moment
):
    # What a small one holds is sent in the commit, that of a large one while it stops.
    place = request.getfixturevalue("large" if "pack" in moment else "counter")
    gate.shut_at(*MOMENTS[moment])
    order = Order(lambda: agent.capture(place, "cp-1"))
    gate.wait_until_shut()
    seconds = call_off(agent, place, order)
    state = agent.tree(place)["state"]
    gate.open()
    assert order.events[-1]["failure"]["code"] == "cancelled", order.events[-1]
    wait_for(lambda: not agent.tree(place)["operation"])
    assert checkpoints(agent) == []
    suspends(agent, place, "cp-2", 2)
    assert (seconds < AT_ONCE, state) == (True, "running"), seconds


@pytest.mark.long
def test_session_stands_still_for_its_save_as_short_as_with_a_fast_store(
    agent, gate, large
):
    fast = saved(agent, large, "cp-1", 1)
    agent.post(
        "/v1/checkpoints/cp-1/discard"
    ).raise_for_status()  # nothing is known again
    gate.slow_down(0.1)
    slow = saved(agent, large, "cp-2", 2)
    gate.open()
    assert behind(slow) > 2 * behind(fast)  # the store is what was slow
    # Two runs on a busy machine: with the store's pace it would be many times as long.
    assert slow["frozen_seconds"] < 2 * fast["frozen_seconds"] + 0.2


def saved(agent, place, checkpoint: str, generation: int) -> dict:
    events = agent.save(place, checkpoint, generation)
    assert events[-1].get("checkpoint"), events[-1]
    return {**events[-1]["checkpoint"], "events": events}


def behind(info: dict) -> float:
    """Seconds that the store took for a save, behind a session that went on."""
    ended = [e["step"] for e in info["events"] if (e["step"] or {}).get("state")]
    steps = {step["step"]: step["seconds"] for step in ended if step["state"] == "done"}
    return steps["save"] + steps["commit"]


@pytest.mark.parametrize("moment", but(MOMENTS, "the manifest"))
def test_suspend_calls_a_save_off_at_once(agent, gate, request, moment):
    place = request.getfixturevalue("large" if "pack" in moment else "counter")
    gate.shut_at(*MOMENTS[moment])
    save = Order(lambda: agent.save(place, "cp-1"))
    gate.wait_until_shut()
    assert goes_on(place)
    begun = time.monotonic()
    suspend = Order(lambda: agent.capture(place, "cp-2", 2))
    save.join(60)
    seconds = time.monotonic() - begun
    gate.open()
    suspend.join(60)
    assert save.events[-1]["failure"]["code"] == "cancelled", save.events[-1]
    assert suspend.events[-1].get("checkpoint"), suspend.events[-1]
    wait_for(lambda: [one["id"] for one in checkpoints(agent)] == ["cp-2"])
    agent.post(f"/v1/sessions/{place.incarnation}/thaw").raise_for_status()
    assert goes_on(place)
    assert seconds < AT_ONCE


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "moment", but(["the announcement", "the packs", "the manifest"], "the packs")
)
def test_wake_calls_the_save_of_a_nap_off_at_once(agent, gate, start, moment):
    session = start()
    computes(session)
    nap(agent, session)
    gate.shut_at(*MOMENTS[moment])
    save = Order(lambda: agent.save(session, "cp-1"))
    gate.wait_until_shut()
    begun = time.monotonic()
    woken = wake(agent, session)
    seconds = time.monotonic() - begun
    assert woken["tree"]["state"] == "running", woken
    computes(session)
    gate.open()
    save.join(60)
    assert save.events[-1]["failure"]["code"] == "cancelled", save.events[-1]
    wait_for(lambda: checkpoints(agent) == [])
    assert seconds < AT_ONCE
