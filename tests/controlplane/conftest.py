"""A world with one node, one Hub, and as many controllers in turn as a test likes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from jupyterhub_gpu_reclaim.sampling.window import Window
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from simulation.loop import VirtualLoop
from tests.controlplane.doubles import (
    TOKEN,
    HubInMemory,
    NodeInMemory,
    serve_hub,
    serve_node,
)
from tests.support import simulated

KEY = SessionKey("ada")
DELETED = Deletion(user="ada")  # without a file
QUICK = Settings(
    sample_interval=0.05,
    tick_interval=0.05,
    warn_for=0.0,
    grace=60.0,
    orphan_grace=0.3,
    release_limit=30.0,
    settle_limit=5.0,
    backoff=30.0,
    pace=0.01,
)


class World:
    """Node and Hub, which last; controllers, which come and go.

    Args:
        folder: for the journals and the agent's socket.
        new_journal: a journal without rows.
    """

    def __init__(self, folder: Path, new_journal: Path) -> None:
        self._folder = folder
        for name in ("journal.sqlite", "empty.sqlite"):
            shutil.copyfile(new_journal, folder / name)
        self.node = NodeInMemory()
        self.hub = HubInMemory(self.node)
        self.settings = QUICK
        self.silence = 5.0  # seconds until an agent that says nothing is given up
        # The same for a question, as in the product. Both sides live in this process:
        # where it gets no processor for so long, the answer counts as none.
        self.hub_patience = self.agent_patience = 15.0
        self.url = f"sqlite:///{folder}/journal.sqlite"
        self.verdict = Decision(
            reclaim=False, code="recently_active", message="Active."
        )
        self.controllers: list[Controller] = []
        self._journals: list[Journal] = []
        self._servers = []
        self._clients = []
        self._addresses = ("", "")

    def open(self) -> None:
        node, agent_address = serve_node(self.node, self._folder)
        hub, hub_address = serve_hub(self.hub)
        self._servers = [node, hub]
        self._addresses = (agent_address, hub_address + "/hub/api")

    def clients(self, journal=None) -> tuple[AgentClient, HubClient]:
        address = self._addresses[0]
        patience = {"quick": self.agent_patience, "slow": 5, "silence": self.silence}
        agent = AgentClient(address, TOKEN, journal=journal, **patience)
        hub = HubClient(
            self._addresses[1], "hub-token", quick=self.hub_patience, slow=20.0
        )
        self._clients += [agent, hub]
        return agent, hub

    async def controller(self, journal: Journal | None = None, **more) -> Controller:
        """A new service on the same journal; the Hub's spawner talks to it."""
        journal = journal or Journal(self.url)
        agent, hub = self.clients(journal if journal.term else None)
        self._journals.append(journal)
        controller = Controller(
            **{
                "journal": journal,
                "agent": agent,
                "hub": hub,
                "decide": lambda view, now: [self.verdict],
                "window": lambda: Window(span=60, interval=1),
                "clock": SystemClock(),
                "settings": self.settings,
                **more,
            }
        )
        self.controllers.append(controller)
        self.hub.controller = controller
        await controller.start()
        return controller

    async def kill(self, controller: Controller) -> None:
        """The service is gone, whatever it was doing."""
        self.hub.controller = None
        await controller.stop()

    def change(self, **settings: object) -> None:
        """Other settings, for the controllers that are made from now on."""
        self.settings = dataclasses.replace(self.settings, **settings)

    async def journal_lost(self, controller: Controller) -> Controller:
        """A new service, with an empty journal; the rest goes on as it is."""
        await self.kill(controller)
        self.url = self.url.replace(".sqlite", "-lost.sqlite")
        return await self.controller()

    async def running(self, contents: str = "work", key: SessionKey = KEY) -> str:
        """A session that the Hub has started."""
        place = self.node.run(key, contents)
        self.hub.run(key, place.incarnation)
        return place.incarnation

    async def suspended_afresh(self, controller: Controller) -> None:
        """Puts the suspended session aside; a new one is suspended beside it."""
        await controller.users.start_fresh(KEY, "ada")
        assert await self.hub.start(KEY) == "cold"
        await self.until(lambda: self.phase(controller) == "running")
        await controller.users.suspend(KEY, "ada")
        await self.until(lambda: self.phase(controller) == "suspended")

    async def until(self, condition, limit: float = 30.0):
        """Wait until it holds; its last value."""
        deadline = time.monotonic() + limit
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {limit} s"
            await asyncio.sleep(0.005)
        return value

    def phase(self, controller: Controller, key: SessionKey = KEY) -> str:
        try:
            return controller.users.session(key).phase.value
        except Exception:
            return ""

    async def close(self) -> None:
        for controller in self.controllers:
            await controller.stop()
        for task in list(self.hub.tasks):
            task.cancel()
        for resource in self._clients + self._journals:
            resource.close()
        for server in self._servers:
            server.stop()
            await server.close_all_connections()


def pytest_asyncio_loop_factories(config, item):
    """The simulator's loop, where a file takes the simulator's world."""
    simulated_one = vars(item.module).get("world") is simulated.world
    return {"loop": VirtualLoop if simulated_one else asyncio.new_event_loop}


@pytest.fixture(scope="session")
def new_journal(tmp_path_factory) -> Path:
    """A journal without rows: to make its tables takes as long as many a test."""
    path = tmp_path_factory.mktemp("journal") / "new.sqlite"
    Journal(f"sqlite:///{path}").close()
    return path


@pytest.fixture
async def world(new_journal):
    # In memory, if there is such a folder: a journal waits for the disk at each write.
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gpu-reclaim-world-", dir=where) as folder:
        world = World(Path(folder), new_journal)
        world.open()
        yield world
        await world.close()


async def running(world, **settings):
    """A session that the control plane knows to run; its incarnation."""
    world.change(**settings)
    incarnation = await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    return controller, incarnation


async def suspended(world, **settings):
    """One that was suspended by its user."""
    controller, _ = await running(world, **settings)
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller


def away(world, *names: str):
    """These calls of the node fail, until what is returned is called."""
    before = {name: getattr(world.node, name) for name in names}

    async def fails(*_args, **_more):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    for name in names:
        setattr(world.node, name, fails)

    def back() -> None:
        for name, call in before.items():
            setattr(world.node, name, call)

    return back
