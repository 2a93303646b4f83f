"""An agent's container ends with the agent, and its session can be let go on.

A runtime takes a container for running as long as somebody holds its output: containerd
then tells the kubelet nothing, and the node is without an agent. Run by
``test_agent_container``.
"""

import os
import signal
import subprocess
import sys

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


def test_output_of_an_agent_that_was_killed_ends_and_its_session_is_let_go_on(
    contained, pods, folder
):
    home = folder / "home"
    home.mkdir()
    place = pods("start", "sh", "-c", COUNT, home=home)
    wait_for((home / "n").exists)
    contained.start()
    captured = place.call(contained, "capture", checkpoint="cp", generation=1)
    assert captured[-1].get("checkpoint"), (captured[-1], contained.written())

    os.kill(contained.pid, signal.SIGKILL)
    contained.end_container()

    wait_for(contained.output_has_ended, timeout=60)
    before = (home / "n").read_text()
    agent = [sys.executable, "-m", "jupyterhub_gpu_reclaim.node", "--recover"]
    subprocess.run(agent, env=contained.environment, check=True, timeout=60)
    wait_for(lambda: (home / "n").read_text() not in {before, ""})
