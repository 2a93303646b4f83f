"""The agent is killed at every step and started again: nothing is lost or doubled."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.agent import goes_on, wait_for
from tests.support.long_stories import but

pytestmark = pytest.mark.shares_an_agent

CAPTURE_STEPS = ["preflight", "connections", "dump", "files", "commit"]
RESTORE_STEPS = ["check", "files", "programs", "memory", "answer"]


def at(step: str, state: str):
    return lambda event: (
        event.get("step")
        and (event["step"]["step"], event["step"]["state"]) == (step, state)
    )


#: Begin and end of each step; an end is mostly the next one's begin.
MOMENTS = but(
    [(step, state) for step in CAPTURE_STEPS for state in ("begun", "done")],
    *(("dump", "begun"), ("commit", "begun"), ("commit", "done")),
)


def settled(agent, place) -> dict:
    """The tree after the agent was killed and started again."""
    agent.kill()
    agent.start()
    return agent.tree(place)


def remains(agent) -> list[str]:
    """Everything that stands in the agent's store, but its locks."""
    store = Path(agent.store)
    return [str(path) for path in store.glob("[!t]*/**/*") if path.is_file()]


@pytest.mark.parametrize(("step", "state"), MOMENTS)
def test_capture_agent_killed_tree_runs_or_is_captured(agent, counter, step, state):
    agent.capture(counter, "cp", until=at(step, state))

    tree = settled(agent, counter)

    saved = [one["id"] for one in agent.get("/v1/checkpoints").json()]
    if tree["state"] == "captured":
        assert saved == ["cp"]
        assert all(one.stopped for one in counter.tree.processes)
        repeated = agent.capture(counter, "cp")
        assert repeated[-1]["checkpoint"]["id"] == "cp"
        assert agent.post(f"/v1/sessions/{counter.incarnation}/thaw").status_code == 204
    else:
        assert tree["state"] == "running"
        if step != "preflight":
            repeated = agent.capture(counter, "cp")
            assert repeated[-1]["failure"]["code"] == "agent_restarted"
    assert goes_on(counter)
    assert agent.get("/v1/checkpoints").json() == []
    assert remains(agent) == []
    agent.captured(counter, "cp-2")


@pytest.mark.parametrize("step", but(RESTORE_STEPS, "programs", "memory"))
def test_restore_agent_killed_tree_runs_or_nothing_is_left(
    agent, counter, places, step
):
    agent.suspend(counter, "cp")
    holding = places("hold")
    agent.restore(holding, "cp", until=at(step, "begun"))

    tree = settled(agent, holding)

    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp"]
    if tree["state"] != "running":
        assert tree["state"] == "holding"
        assert not holding.tree.processes
        holding.kill()
        holding = agent.come_back(places("hold"), "cp")
    assert goes_on(holding)


def test_recovery_captured_tree_is_found_and_one_that_goes_on_is_not_called_saved(
    agent, counter
):
    agent.capture(counter, "cp")
    agent.kill()
    shutil.rmtree(agent.folder / "state")

    agent.start()

    tree = agent.tree(counter)
    assert (tree["state"], tree["checkpoint"]) == ("captured", "cp")

    agent.kill()
    (record,) = (agent.folder / "state" / "records").glob("*.json")
    record.write_bytes(record.read_bytes().replace(b'"captured"', b'"capturing"'))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGCONT)

    agent.start()

    assert agent.tree(counter)["state"] == "running"
    assert agent.get("/v1/checkpoints").json() == []
    assert goes_on(counter)


def test_agent_terminated_in_the_middle_of_a_capture_rolls_back(agent, counter):
    agent.capture(counter, "cp", until=at("dump", "begun"))

    begun = time.monotonic()
    status = agent.terminate()

    assert status == 0
    assert time.monotonic() - begun < 45
    assert goes_on(counter) or agent.get("/v1/checkpoints")
    agent.start()
    assert agent.tree(counter)["state"] in {"running", "captured"}
    wait_for(lambda: agent.get("/readyz").json()["ready"])
