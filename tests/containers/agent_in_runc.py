"""An agent's container ends with the agent, though a helper of it lives on.

A runtime takes a container for running as long as somebody holds its output: containerd
then tells the kubelet nothing, and the node is without an agent. Run by
``test_containerd``.
"""

import os
import signal

import pytest

from tests.support.agent import criu_folder, wait_for
from tests.support.agent_container import AgentContainer

#: Without children, whose ends may interrupt CRIU.
COUNT = "n=0; while :; do n=$((n + 1)); echo $n > /home/ann/n; done"


@pytest.fixture
def contained(folder, pods):
    del pods  # says why it cannot run here
    made = AgentContainer(folder, criu_folder())
    yield made
    made.remove()


def test_output_of_an_agent_that_was_killed_ends_though_its_watchdog_waits(
    contained, pods, folder
):
    home = folder / "home"
    home.mkdir()
    place = pods("start", "sh", "-c", COUNT, home=home)
    wait_for((home / "n").exists)
    contained.start("--AgentApp.thaw_after_seconds=3")
    captured = place.call(contained, "capture", checkpoint="cp", generation=1)
    assert captured[-1].get("checkpoint"), (captured[-1], contained.written())

    os.kill(contained.pid, signal.SIGKILL)
    contained.end_container()

    wait_for(contained.output_has_ended, timeout=2)
    before = (home / "n").read_text()
    wait_for(lambda: (home / "n").read_text() not in {before, ""})
    log = folder / "state" / "watchdog.log"
    wait_for(lambda: "its agent did not come back" in log.read_text())  # said after it
