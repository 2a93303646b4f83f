"""Sessions with a real card, through the real agent, CRIU and store.

``pytest -m gpu`` runs them, on a machine with an NVIDIA card (driver 570 or later) and
the frameworks that its users have; what a machine lacks is skipped by name.
"""

import ast
import os
import socket
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from tests.checkpoint.conftest import REPL
from tests.support.agent import Agent, Jupyter, criu_folder, short_folder, wait_for
from tests.support.agent import places as make_places

PATIENCE = 90
#: Frameworks find the driver by it, and cuBLAS is deterministic with it. The last is
#: what spawners set: PyTorch's ranks meet through libuv. JAX uses every card that it
#: sees, and one process with much on several is refused.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0",
    "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "UV_USE_IO_URING": "0",
    "HWLOC_COMPONENTS": "-opencl,-cuda,-nvml,-gl",
}


def pytest_collection_modifyitems(config, items) -> None:
    here = Path(__file__).parent
    wanted = "gpu" in (config.option.markexpr or "")
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU; -m gpu runs it")
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)
            if not wanted:
                item.add_marker(skip)


def pytest_runtest_logreport(report) -> None:
    """Tell at once what failed: a lent machine's time may be over before the end."""
    if report.failed and "tests/gpu/" in report.nodeid:
        print(f"\n{report.nodeid}\n{report.longreprtext[-1500:]}", flush=True)


@pytest.fixture(scope="session")
def driver():
    made = Driver()
    if not made.present():
        pytest.skip("there is no GPU, or its driver is older than 570")
    yield made
    made.close()


@pytest.fixture(scope="session")
def folder():
    with short_folder() as path:
        yield path


@pytest.fixture(scope="session")
def agent(folder, driver):
    if os.geteuid() != 0:
        pytest.skip("needs root: the agent enters namespaces")
    with Agent(folder, criu_folder()) as made:
        made.start()
        yield made


places = pytest.fixture(make_places)


class Session:
    def __init__(self, agent: Agent, places, cards: str = "0") -> None:
        self._agent, self._places = agent, places
        self._generation = 0
        env = {**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": cards}
        self.place = places("start", sys.executable, "-c", REPL, env=env)
        wait_for(lambda: "\n" in self._said(), PATIENCE)
        self._port = int(self._said().split("port ")[1].split()[0])
        self.seconds: dict[str, float] = {}

    def _said(self) -> str:
        return self.place.output.read_text()

    def __call__(self, code: str):
        """The value of the last line; everything before is run."""
        address = ("127.0.0.1", self._port)
        with (
            socket.create_connection(address, timeout=PATIENCE) as client,
            client.makefile("rw") as lines,
        ):
            lines.write(repr(code) + "\n")
            lines.flush()
            kind, answer = ast.literal_eval(lines.readline())
            assert kind == "ok", answer
            return answer

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.place.tree.processes]

    def capture(self) -> dict:
        """The last event of a capture; the tree stands, if it succeeded."""
        self._generation += 1
        name = f"{self.place.incarnation[:8]}-{self._generation}"
        events = self._agent.capture(self.place, name, self._generation)
        self._keep(events)
        return events[-1]

    def call_off(self, step: str) -> str:
        """Call a capture off as soon as that step has begun; how it ended, by code."""
        self._generation += 1
        name = f"{self.place.incarnation[:8]}-{self._generation}"
        path = f"/v1/sessions/{self.place.incarnation}/cancel"

        def begun(event: dict) -> bool:
            if (event.get("step") or {}).get("step") == step:
                assert self._agent.post(path).status_code < 300
            return False

        event = self._agent.capture(self.place, name, self._generation, begun)[-1]
        assert event["failure"], event
        return event["failure"]["code"]

    def thaw(self) -> None:
        path = f"/v1/sessions/{self.place.incarnation}/thaw"
        assert self._agent.post(path).status_code == 204

    def order(self, name: str) -> dict:
        """Let it nap, or wake it; what it is then."""
        path = f"/v1/sessions/{self.place.incarnation}/{name}"
        events = self._agent.events(path, {})
        self._keep(events)
        assert events[-1].get("tree"), events[-1]
        return events[-1]["tree"]

    @property
    def state(self) -> str:
        return self._agent.tree(self.place)["state"]

    def leave(self) -> str:
        """Save it and end it; the checkpoint."""
        last = self.capture()
        info = last.get("checkpoint")
        assert info, (last, self._agent.log.read_text()[-3000:])
        path = f"/v1/sessions/{self.place.incarnation}/release"
        answer = self._agent.post(path, {"checkpoint": info["id"]})
        assert answer.status_code == 204, answer.text
        self.place.kill()
        return info["id"]

    def come_back(self, checkpoint: str) -> None:
        self.place = self._places("hold")
        events = self._agent.restore(self.place, checkpoint)
        assert events[-1].get("tree"), events[-1]
        self._keep(events)
        self._agent.post(f"/v1/checkpoints/{checkpoint}/discard")

    def cycle(self) -> None:
        """Save it, end it, bring it back."""
        self.come_back(self.leave())

    def _keep(self, events: list[dict]) -> None:
        for event in events:
            step = event.get("step")
            if step and step["state"] == "done":
                self.seconds[step["step"]] = step["seconds"]


@pytest.fixture
def session(agent, places):
    return lambda cards="0": Session(agent, places, cards)


@pytest.fixture
def jupyter(folder, places):
    made = []

    def make() -> Jupyter:
        made.append(Jupyter(folder, places, env=ENVIRONMENT))
        return made[-1]

    yield make
    for one in made:
        one.client.close()
