"""Captures and restores through the API: twice, at once, called off, refused."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.agent import goes_on, wait_for

pytestmark = pytest.mark.shares_an_agent

HOLDS_A_FILE = """
import sys, time
file = open(sys.argv[1])
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""

#: A server that says when it could not accept.
ACCEPTS = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def accept():
    while True:
        try:
            listener.accept()
        except OSError as error:
            print(error, flush=True)
for _ in range(4):
    threading.Thread(target=accept).start()
"""


def step_of(events: list[dict], name: str, state: str = "done") -> dict:
    return next(
        event["step"]
        for event in events
        if event.get("step")
        and (event["step"]["step"], event["step"]["state"]) == (name, state)
    )


def test_capture_twice_attaches_repeats_its_end_and_says_what_it_took(agent, counter):
    with ThreadPoolExecutor(2) as both:
        heard = [*both.map(lambda _: agent.capture(counter, "cp", 3), range(2))]
    events, info = heard[0], heard[0][-1]["checkpoint"]
    assert info["id"] == "cp"
    assert heard[1][-1] == events[-1]
    assert agent.capture(counter, "cp")[-1]["checkpoint"] == info

    dump = step_of(events, "dump")
    assert dump["bytes"] > 1_000_000
    assert info["logical_bytes"] >= dump["bytes"]
    assert 0 < info["stored_bytes"] < info["logical_bytes"]
    assert 0 < info["frozen_seconds"] < 60
    assert info["generation"] == 3
    assert info["key"] == {"user": "ann", "server": ""}
    steps = {step["step"]: step for step in info["steps"]}
    assert set(steps) >= {"preflight", "dump", "commit"}
    assert {step["state"] for step in steps.values()} == {"done"}

    # The commit counts as frozen; files are saved beside the memory.
    assert steps["commit"] == step_of(events, "commit")
    assert steps["files"]["seconds"] <= dump["seconds"]
    frozen = sum(steps[name]["seconds"] for name in ("dump", "commit"))
    assert info["frozen_seconds"] >= frozen - 0.002  # each was rounded
    # What stands in the store is what was known before the commit.
    (stored,) = agent.get("/v1/checkpoints").json()
    assert stored["frozen_seconds"] < info["frozen_seconds"]
    assert stored["id"] == info["id"]


@pytest.mark.parametrize("order", ["capture", "nap"])
@pytest.mark.parametrize("seen", [-30.0, 30.0])
def test_order_long_after_its_session_was_seen_idle_is_refused(
    agent, counter, order, seen
):
    """Its user may be back by then; and a clock that was set tells nothing."""
    path = f"/v1/sessions/{counter.incarnation}/{order}"
    body = {"checkpoint": "cp"} if order == "capture" else {}
    refused = agent.events(path, body | {"seen": time.time() + seen})[-1]
    assert (refused["status"], refused["code"]) == (409, "order_late")
    assert re.search(r"[23]\d s after the session was seen idle", refused["message"])
    assert agent.tree(counter)["state"] == "running"
    assert goes_on(counter)


def test_order_in_time_is_carried_out_and_followed_however_late(agent, counter):
    path = f"/v1/sessions/{counter.incarnation}/capture"
    ends = [
        agent.events(path, {"checkpoint": "in-time", "seen": seen})[-1]
        for seen in (time.time() - 1, 0.0)
    ]
    assert ends[0]["checkpoint"]["id"] == "in-time"
    assert ends[1] == ends[0]


def test_release_of_a_tree_that_its_user_woke_is_refused_and_it_runs(agent, places):
    command = ("sh", "-c", "sleep 1000 & while :; do echo x; sleep 0.05; done")
    place = places("start", *command, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: place.output.stat().st_size and len(place.tree.processes) > 3)
    agent.capture(place, "cp")
    (sleeper,) = (
        p for p in place.tree.processes if p.name == "sleep" and p.ns_pid < 305
    )
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_for(
        lambda: sleeper.pid not in {p.pid for p in place.tree.processes if p.stopped}
    )

    path = f"/v1/sessions/{place.incarnation}/release"
    refused = agent.post(path, {"checkpoint": "cp"})

    assert (refused.status_code, refused.json()["code"]) == (409, "went_on")
    assert f"{sleeper.ns_pid} (sleep)" in refused.json()["message"]
    assert goes_on(place)
    tree = agent.tree(place)
    assert (tree["state"], tree["failure"]["code"]) == ("running", "went_on")
    assert agent.get("/v1/checkpoints").json() == []
    agent.captured(place, "cp-2")


def test_release_of_a_tree_of_which_one_has_died_since_ends_it(agent, counter):
    agent.capture(counter, "cp")
    os.kill(counter.tree.server.pid, signal.SIGKILL)
    wait_for(lambda: counter.tree.server is None or counter.tree.server.state in "ZX")
    agent.release(counter, "cp")
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp"]
    # It can be discarded now.
    assert agent.post("/v1/checkpoints/cp/discard").status_code == 204
    assert agent.get("/v1/checkpoints").json() == []


def test_kill_of_a_server_does_not_make_it_complain(agent, places):
    place = places("start", sys.executable, "-I", "-S", "-c", ACCEPTS, env={})
    wait_for(lambda: place.output.stat().st_size)
    assert agent.post(f"/v1/sessions/{place.incarnation}/kill").status_code == 204
    assert not place.alive
    assert "[Errno" not in place.output.read_text()  # unshare may say a word, too


def test_thaw_that_the_store_hindered_is_tried_again(agent, counter):
    agent.capture(counter, "cp")
    path = f"/v1/sessions/{counter.incarnation}/thaw"
    store = str(agent.folder / "store")
    subprocess.run(["mount", "--bind", store, store], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", store], check=True)
        hindered = agent.post(path).json()
        assert hindered["code"] == "store_denied"
        assert agent.tree(counter)["state"] == "captured"
        assert all(process.stopped for process in counter.tree.processes)
    finally:
        subprocess.run(["umount", store], check=True)

    assert agent.post(path).status_code == 204
    assert agent.get("/v1/checkpoints").json() == []
    assert goes_on(counter)


def test_restore_with_a_changed_file_names_it_and_keeps_the_checkpoint(
    agent, places, folder
):
    data = folder / "data.txt"
    data.write_text("0123456789")
    command = (sys.executable, "-I", "-S", "-c", HOLDS_A_FILE, str(data))
    place = places("start", *command, env={})
    wait_for(lambda: place.output.stat().st_size)
    agent.suspend(place, "shrunk")
    data.write_text("0123")
    holding = places("hold")

    failed = agent.restore(holding, "shrunk")[-1]["failure"]

    assert failed["code"] == "file_shrank"
    assert str(data) in failed["message"]
    tree = agent.tree(holding)
    assert (tree["state"], tree["failure"]["code"]) == ("holding", "file_shrank")
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["shrunk"]


def test_stopped_by_the_user_stays_stopped_after_thaw(agent, places):
    command = (
        "sh",
        "-c",
        "sleep 1000 & kill -STOP $!; while :; do echo x; sleep 0.05; done",
    )
    place = places("start", *command, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: place.tree.stopped)
    before = place.tree.stopped
    agent.capture(place, "cp")

    agent.post(f"/v1/sessions/{place.incarnation}/thaw")

    assert goes_on(place)
    assert place.tree.stopped == before


def test_session_that_ended_by_itself_is_unknown(agent, counter):
    os.kill(counter.tree.server.pid, signal.SIGKILL)
    wait_for(lambda: not counter.alive)
    assert agent.tree(counter)["status"] == 404
