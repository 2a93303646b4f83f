"""The agents that have to keep the contract, each with its way to start sessions.

Another agent joins with a class like these and a fixture in :data:`AGENTS`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from benchmarks.simulated_gpus import GB, Gpus
from benchmarks.simulated_gpus import Place as SimulatedPlace
from benchmarks.simulated_node import SimulatedAgent
from jupyterhub_gpu_reclaim.common.models import TreeState
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.controlplane.doubles import TOKEN, NodeInMemory, serve_node
from tests.node.test_rehearsal import HOLDER
from tests.support import fake_cards
from tests.support.agent import COUNTER, Place, goes_on, running_agent, wait_for
from tests.support.fake_cards import FAKE, computes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from tests.support import agent as support

AGENTS = [
    pytest.param("real_agent", marks=pytest.mark.root),
    "agent_in_memory",
    "simulated_agent",
]


class AgentUnderContract(Protocol):
    """An agent, and where its sessions come from."""

    agent: Agent

    def run(self, key: SessionKey) -> str:
        """Start a session; its incarnation."""

    def run_stuck(self, key: SessionKey) -> str:
        """Start a session that would not come back; its incarnation."""

    def run_on_gpu(self, key: SessionKey) -> str:
        """Start a session whose program has memory on a GPU; its incarnation."""

    def slow_down(self) -> None:
        """Have orders take a moment, in which others can be given."""

    def hold(self, key: SessionKey) -> str:
        """Start an init that waits for a tree; its incarnation."""

    def runs(self, incarnation: str) -> bool:
        """Whether its programs go on now, with what they had in memory."""


class RealAgent:
    """The agent's program, and counters in namespaces, which CRIU captures.

    Args:
        program: its agent; card and driver are false.
        device: stands for the card's file.
    """

    def __init__(self, program: support.Agent, device: Path) -> None:
        self.agent = AgentClient(program.listen, program.token)
        self._folder = program.folder
        self._device = device
        self._places: dict[str, Place] = {}
        self._on_gpu: set[str] = set()
        self._words: tuple[str, ...] = ()  # to a program with the card

    def slow_down(self) -> None:
        self._words = ("large",)  # all but what is on a GPU takes long enough

    def run(self, key: SessionKey) -> str:
        command = (sys.executable, "-I", "-S", "-c", COUNTER)
        place = self._add(Place(self._folder, "start", *command, env={}, user=key.user))
        wait_for(lambda: place.output.stat().st_size)
        return place.incarnation

    def run_stuck(self, key: SessionKey) -> str:
        path = self._folder / "another's"
        path.write_text("secret")
        os.chown(path, 54321, 54321)
        path.chmod(0o600)
        command = (sys.executable, "-I", "-S", "-c", HOLDER, str(path))
        place = self._add(Place(self._folder, "start", *command, env={}, user=key.user))
        wait_for(lambda: place.output.stat().st_size)
        return place.incarnation

    def run_on_gpu(self, key: SessionKey) -> str:
        driver = self._folder / "cuda"
        for former in driver.iterdir():  # of a session with the same pids
            former.unlink()
        program = (str(FAKE / "user.py"), str(driver), str(self._device))
        command = (sys.executable, "-I", "-S", *program, *self._words)
        place = self._add(Place(self._folder, "start", *command, env={}, user=key.user))
        self._on_gpu.add(place.incarnation)
        computes(place)
        return place.incarnation

    def hold(self, key: SessionKey) -> str:
        return self._add(Place(self._folder, "hold", user=key.user)).incarnation

    def runs(self, incarnation: str) -> bool:
        place = self._places[incarnation]
        if incarnation in self._on_gpu:
            return place.alive and computes(place) is None
        return place.alive and goes_on(place)

    async def close(self) -> None:
        """End its sessions and delete their checkpoints."""
        for place in self._places.values():
            place.kill()
        for info in await self.agent.checkpoints():
            await self.agent.discard(info.id)
        self.agent.close()

    def _add(self, place: Place) -> Place:
        self._places[place.incarnation] = place
        return place


class AgentInMemory:
    """The control plane's tests' node, behind the agent's real routes and client."""

    def __init__(self) -> None:
        self._node = NodeInMemory()
        self._folder = tempfile.TemporaryDirectory()
        self._server, address = serve_node(self._node, Path(self._folder.name))
        self.agent = AgentClient(address, TOKEN, quick=2, slow=5, silence=5)
        self._names = itertools.count(1)

    def slow_down(self) -> None:
        self._node.step_seconds = 0.3

    def run(self, key: SessionKey) -> str:
        return self._node.run(key, "work").incarnation

    def run_stuck(self, key: SessionKey) -> str:
        place = self._node.run(key, "work")
        place.stuck = "It has an odd file open."
        return place.incarnation

    def run_on_gpu(self, key: SessionKey) -> str:
        place = self._node.run(key, "work")
        place.gpu_memory = GB
        return place.incarnation

    def hold(self, key: SessionKey) -> str:
        name = f"held-{next(self._names)}"
        self._node.hold(key, name)
        return name

    def runs(self, incarnation: str) -> bool:
        place = self._node.places[incarnation]
        return (place.state, place.contents) == (TreeState.RUNNING, "work")

    async def close(self) -> None:
        self.agent.close()
        self._server.stop()
        await self._server.close_all_connections()
        self._folder.cleanup()


class Hurried:
    """A clock for which a second of the simulation is a millisecond."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)


class AgentOfTheSimulation:
    """The benchmarks' cluster."""

    def __init__(self) -> None:
        self.agent = SimulatedAgent(Hurried(), Gpus(8))
        self._names = itertools.count(1)

    def slow_down(self) -> None:
        """Each order gives way to the others already."""

    def run(self, key: SessionKey) -> str:
        return self._put(key, TreeState.RUNNING)

    def run_stuck(self, key: SessionKey) -> str:
        name = self.run(key)
        self.agent.places[name].stuck = "It has an odd file open."
        return name

    def run_on_gpu(self, key: SessionKey) -> str:
        name = self.run(key)
        self.agent.places[name].gpu_memory = GB
        return name

    def hold(self, key: SessionKey) -> str:
        return self._put(key, TreeState.HOLDING)

    def runs(self, incarnation: str) -> bool:
        return self.agent.places[incarnation].state is TreeState.RUNNING

    def _put(self, key: SessionKey, state: TreeState) -> str:
        name = f"i{next(self._names)}"
        self.agent.put(SimulatedPlace(key, name, state, GB, time.time()))
        return name


@pytest.fixture(scope="module")
def agents_program(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[support.Agent]:
    """The program, one for all tests of a module; with a false driver."""
    false_driver = fake_cards.library(tmp_path_factory)
    with (
        tempfile.TemporaryDirectory(prefix="gra-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        fake_cards.driver(false_driver, Path(folder), patch)
        program = running_agent(Path(folder))
        yield program
        program.terminate()
        shutil.rmtree(Path(folder, "store"), ignore_errors=True)


@pytest.fixture
async def real_agent(agents_program: support.Agent) -> AsyncIterator[RealAgent]:
    with fake_cards.device_file() as device:
        made = RealAgent(agents_program, device)
        yield made
        await made.close()


@pytest.fixture
async def agent_in_memory() -> AsyncIterator[AgentInMemory]:
    made = AgentInMemory()
    yield made
    await made.close()


@pytest.fixture
async def simulated_agent() -> AgentOfTheSimulation:
    return AgentOfTheSimulation()
