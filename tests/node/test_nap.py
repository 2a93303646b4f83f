"""Naps through the real agent; card and driver are false.

The program ends when it runs while its card is away, so each of these tests also shows
that it does not.
"""

import json
import os
import signal

import pytest

from jupyterhub_gpu_reclaim.linux import processes
from tests.support.agent import wait_for
from tests.support.fake_cards import computes, holders

pytestmark = pytest.mark.usefixtures("driver")


@pytest.fixture
def session(start):
    place = start()
    computes(place)
    return place


def order(agent, place, name: str, until=None) -> list[dict]:
    return agent.events(f"/v1/sessions/{place.incarnation}/{name}", {}, until)


def nap(agent, place) -> dict:
    return order(agent, place, "nap")[-1]


def wake(agent, place) -> dict:
    return order(agent, place, "wake")[-1]


def state(agent, place) -> str:
    return agent.tree(place)["state"]


def program(place):
    """The one that uses the card."""
    return place.tree.server


def naps(place) -> bool:
    """The program stands without a card, and its child computes."""
    computes(place, "c")
    return processes.is_stopped(program(place)) and not holders(place)


def test_session_naps_and_wakes_and_the_rest_of_it_runs_on(agent, session):
    events = order(agent, session, "nap")
    assert events[-1]["tree"]["state"] == "napping"
    steps = {e["step"]["step"] for e in events if e.get("step")}
    assert steps == {"preflight", "gpu"}
    assert naps(session)
    assert state(agent, session) == "napping"

    assert wake(agent, session)["tree"]["state"] == "running"
    computes(session)
    assert holders(session) == 1  # the child has no use for it


def test_orders_that_are_repeated_find_it_done(agent, session):
    assert wake(agent, session)["tree"]["state"] == "running"
    nap(agent, session)
    assert nap(agent, session)["tree"]["state"] == "napping"
    assert naps(session)
    for _ in range(3):
        wake(agent, session)
        computes(session)
        nap(agent, session)
    assert naps(session)


def test_session_without_a_gpu_does_not_nap(agent, counter):
    failure = nap(agent, counter)["failure"]
    assert failure["code"] == "gpu_unused"


def test_what_the_driver_cannot_move_out_goes_on_running(agent, session, monkeypatch):
    agent.kill()
    monkeypatch.setenv("FAKE_CUDA_REFUSAL", "801")
    agent.start()
    assert nap(agent, session)["failure"]["code"] == "gpu_unsupported"
    computes(session)
    assert state(agent, session) == "running"


def test_suspend_from_a_nap_comes_back_awake_in_another_place(agent, session, places):
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    path = f"/v1/sessions/{session.incarnation}/release"
    assert agent.post(path, {"checkpoint": "cp"}).json()["state"] == "gone"

    place = places("hold")
    assert agent.restore(place, "cp")[-1]["tree"]["state"] == "running"
    computes(place)
    assert holders(place) == 1
    assert nap(agent, place)["tree"]["origin"] == "cp"
    assert naps(place)


def test_suspend_that_is_taken_back_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    assert state(agent, session) == "captured"
    path = f"/v1/sessions/{session.incarnation}/thaw"
    assert agent.post(path).json()["state"] == "napping"
    assert naps(session)
    assert agent.get("/v1/checkpoints").json() == []
    wake(agent, session)
    computes(session)


def test_suspend_that_is_called_off_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)

    def call_off(event) -> bool:
        if (event.get("step") or {}).get("step") == "dump":
            agent.post(f"/v1/sessions/{session.incarnation}/cancel")
            return True
        return False

    agent.capture(session, "cp", until=call_off)
    wait_for(lambda: state(agent, session) == "napping")
    assert naps(session)
    wake(agent, session)
    computes(session)


def test_napping_session_is_killed(agent, session):
    nap(agent, session)
    path = f"/v1/sessions/{session.incarnation}/kill"
    assert agent.post(path).json()["state"] == "gone"
    assert not session.alive


def stage_of(agent) -> str:
    """The recorded stage of the nap; empty where there is none."""
    for record in (agent.folder / "state" / "records").glob("*.json"):
        return (json.loads(record.read_bytes()).get("nap") or {}).get("stage", "")
    return ""


def test_agent_that_is_started_again_holds_the_nap(agent, session):
    nap(agent, session)
    agent.kill()
    assert stage_of(agent) == "asleep"
    agent.start()
    assert state(agent, session) == "napping"
    assert naps(session)
    wake(agent, session)
    computes(session)
    assert stage_of(agent) == ""


@pytest.mark.parametrize("name", ["nap", "wake"])
@pytest.mark.parametrize("begun", ["preflight", "gpu"])
def test_agent_killed_on_the_way_the_next_one_wakes_or_holds(
    agent, session, name, begun
):
    if name == "wake":
        nap(agent, session)

    def kill(event) -> bool:
        if (event.get("step") or {}).get("step") == begun:
            agent.kill()
            return True
        return False

    order(agent, session, name, until=kill)
    agent.kill()
    agent.start()
    wait_for(lambda: not agent.tree(session)["operation"])
    if stage_of(agent) == "asleep":
        assert naps(session)
        wake(agent, session)
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


@pytest.mark.parametrize("stage", ["falling", "waking"])
def test_nap_that_was_left_half_done_is_ended_by_the_next_agent(agent, session, stage):
    nap(agent, session)
    agent.kill()
    (record,) = (agent.folder / "state" / "records").glob("*.json")
    text = record.read_bytes().replace(b'"asleep"', b'"%s"' % stage.encode())
    record.write_bytes(text)
    agent.start()
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


def test_nap_whose_programs_have_ended_is_over(agent, session):
    nap(agent, session)
    os.kill(program(session).pid, signal.SIGKILL)
    wait_for(lambda: state(agent, session) in {"running", "gone"})
    assert stage_of(agent) == ""
