"""An agent that is gone for good leaves nobody frozen."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import listeners
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node import watchdog
from tests.support.agent import Agent, criu_folder, goes_on, wait_for


@pytest.fixture
def agent(folder):
    """One whose sessions wait a second for another agent, when it has ended."""
    made = Agent(folder, criu_folder())
    made.start("--AgentApp.thaw_after_seconds=1")
    yield made
    made.kill()
    print(made.log.read_text())


def stands(place) -> bool:
    return all(process.stopped for process in place.tree.processes)


def test_captured_tree_whose_agent_never_returns_goes_on_and_its_checkpoint_is_dropped(
    agent, counter
):
    """It is older than what runs: a release by it would lose what came since."""
    agent.capture(counter, "cp")
    with contextlib.ExitStack() as stack:
        agent.kill()
        state = agent.folder / "state"
        wait_for(lambda: stack.enter_context(watchdog.lock(state)))

        time.sleep(3)  # longer than the agent's absence would be tolerated

        assert stands(counter)  # another holds the lock
    assert goes_on(counter)

    agent.start()

    assert agent.tree(counter)["state"] == "running"
    assert agent.get("/v1/checkpoints").json() == []
    assert agent.capture(counter, "cp-2")[-1]["checkpoint"]["id"] == "cp-2"


def test_tree_of_a_capture_whose_agent_was_killed_goes_on(agent, counter):
    agent.capture(counter, "cp", until=lambda event: "dump" in str(event))

    agent.kill()

    assert goes_on(counter)


@pytest.fixture
def pair(places):
    """A server that listens, and a child of it that counts."""
    program = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
os.write(1, b"%d " % listener.getsockname()[1])
if os.fork() == 0:
    while True:
        os.write(1, b".")
        time.sleep(0.05)
time.sleep(3000)
"""
    place = places("start", sys.executable, "-I", "-S", "-c", program, env={})
    wait_for(lambda: "." in place.output.read_text())
    return place


def test_what_a_capture_has_begun_with_is_undone_where_its_agent_was_killed(
    agent, pair
):
    """It stops what talks to the server, and makes the server deaf; that one runs."""
    child = pair.tree.processes[-1]
    address = ("127.0.0.1", int(pair.output.read_text().split()[0]))
    deaf = listeners.deaf(pair.tree.init.pid, pair.tree.server)
    until = {"step": "connections", "state": "begun"}.items()
    agent.capture(pair, "cp", until=lambda event: until <= event["step"].items())
    agent.popen.send_signal(signal.SIGSTOP)
    deaf.__enter__()
    processes.send(child, signal.SIGSTOP)
    agent.kill()

    assert goes_on(pair)
    socket.create_connection(address, timeout=20).close()


def test_lock_is_free_after_the_holder_only(tmp_path):
    with watchdog.lock(tmp_path) as first, watchdog.lock(tmp_path) as second:
        assert (first, second) == (True, False)
    with watchdog.lock(tmp_path) as again:
        assert again


def test_watchdog_of_an_agent_with_nothing_frozen_ends_with_it(agent):
    (pid,) = watchdogs(agent)

    agent.terminate()

    wait_for(lambda: not watchdogs(agent))
    assert pid


#: Starts a watchdog as an agent does, and is gone.
BRIEF_AGENT = """
import sys
from pathlib import Path
from jupyterhub_gpu_reclaim.node import watchdog
state, patience = sys.argv[1:]
words = (Path(state), "local", "", float(patience), 1.0, 1.0, 1.0)
print(watchdog.start(watchdog.Watched(*words)))
"""


@pytest.mark.long
def test_watchdogs_of_agents_that_end_again_and_again_do_not_add_up(tmp_path):
    (tmp_path / watchdog.RECORDS).mkdir()
    (tmp_path / watchdog.RECORDS / "inc.json").touch()

    def after_an_agent(patience: int) -> int:
        command = [sys.executable, "-c", BRIEF_AGENT, str(tmp_path), str(patience)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as ended:
            return int(ended.stdout.read())  # to its end: the watchdog does not hold it

    def waits(pid: int) -> bool:
        said = tmp_path / watchdog.WAITS
        return said.exists() and not watchdog_has_ended(pid) and bool(said.read_text())

    first = after_an_agent(1000)
    started = [first]
    try:
        wait_for(lambda: waits(first))
        later, other = after_an_agent(1000), after_an_agent(2000)
        started += [later, other]
        wait_for(lambda: watchdog_has_ended(later))
        assert not watchdog_has_ended(first)
        assert not watchdog_has_ended(other), "it was started with another patience"
        os.kill(first, signal.SIGKILL)
        next_one = after_an_agent(1000)
        started.append(next_one)
        time.sleep(watchdog._LOOKS + 1)
        assert not watchdog_has_ended(next_one), "nobody else waits so"
    finally:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def watchdog_has_ended(pid: int) -> bool:
    return processes.start_time(pid) is None


def watchdogs(agent) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                watchdog.__name__.encode() in words
                and str(agent.folder / "state").encode() in words
            ):
                found.append(int(entry.name))
    return found
