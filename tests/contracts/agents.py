"""The agents that have to keep the contract, each with its way to start sessions.

Another agent joins with a class like these and a fixture in :data:`AGENTS`.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from simulation.doubles.machine import GIB
from tests.node.test_rehearsal import HOLDER
from tests.support import agent as support
from tests.support import fake_cards
from tests.support.agent import COUNTER, Place, goes_on, running_agent, wait_for
from tests.support.fake_cards import FAKE, computes
from tests.support.simulated_node import TOKEN, Nodes, simulated_nodes

AGENTS = [pytest.param("real_agent", marks=pytest.mark.root), "agent_on_doubles"]


class RealAgent:
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
        for place in self._places.values():
            place.kill()
        for info in await self.agent.checkpoints():
            await self.agent.order(info.id, orders.Discard())
        self.agent.close()

    def _add(self, place: Place) -> Place:
        self._places[place.incarnation] = place
        return place


class AgentOnDoubles:
    """The agent over the simulator's kernel, behind its real routes and client."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes, self._node = nodes, nodes.add()
        self._folder = tempfile.TemporaryDirectory()
        self._server, address = self._node.serve(Path(self._folder.name))
        self.agent = AgentClient(address, TOKEN, quick=2, slow=5, silence=5)

    def slow_down(self) -> None:
        self._nodes.seconds = 0.5

    def run(self, key: SessionKey) -> str:
        return self._node.run(key).incarnation

    def run_stuck(self, key: SessionKey) -> str:
        place = self._node.run(key)
        place.tree.stuck = True
        return place.incarnation

    def run_on_gpu(self, key: SessionKey) -> str:
        return self._node.run(key, gpu=GIB).incarnation

    def hold(self, key: SessionKey) -> str:
        return self._node.hold(key).incarnation

    def runs(self, incarnation: str) -> bool:
        tree = self._node.machine.places[incarnation].tree
        return tree is not None and tree.runs and tree.contents == "work"

    async def close(self) -> None:
        self.agent.close()
        self._server.stop()
        await self._server.close_all_connections()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def agents_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[support.Agent]:
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
async def agent_on_doubles() -> AsyncIterator[AgentOnDoubles]:
    with simulated_nodes() as nodes:
        made = AgentOnDoubles(nodes)
        yield made
        await made.close()
