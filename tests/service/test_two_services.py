"""Two services on one journal: real programs, one database, one node, one Hub.

What a rolling update or a second Hub does. Only one of them may act; the other waits
and says so, and takes over when the first has gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import HubState, Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from simulation.doubles.kernel import replaced
from simulation.doubles.spawner import substitutes
from tests.support import simulated_hub
from tests.support.service_program import ServiceProgram, preloaded
from tests.support.simulated_node import TOKEN, Nodes, simulated_nodes

if TYPE_CHECKING:
    from pathlib import Path

KEY = SessionKey("ada")


@pytest.fixture(scope="module")
def programs():
    return preloaded()


class Service(ServiceProgram):
    """One service as a program, with a state folder of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        folder = world.folder / name
        folder.mkdir(exist_ok=True)
        words = [
            f"--ReclaimService.journal_url={world.journal_url}",
            f"--ReclaimService.agent={world.agent_url}",
            f"--ReclaimService.agent_token_file={world.folder}/agent.token",
            "--ReclaimService.sample_interval=0.5",
            "--IdlePolicy.idle_after=0",
        ]
        super().__init__(
            world.programs,
            folder,
            *words,
            JUPYTERHUB_API_TOKEN="hub-token",
            JUPYTERHUB_API_URL=world.hub_url,
        )
        self.client = ServiceClient(self.spawner)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 where nobody listens."""
        try:
            answer = await AsyncHTTPClient().fetch(self.url + path, raise_error=False)
        except (OSError, HTTPClientError):
            return 0, ""
        return answer.code, answer.body.decode()

    async def ready(self) -> bool:
        return (await self.get("readyz"))[0] == 200

    async def waits(self) -> bool:
        status, text = await self.get("readyz")
        return status == 503 and json.loads(text)["code"] == "journal_held"

    async def ask(self, path: str) -> tuple[int, str]:
        """A POST of an administrator's program."""
        answer = await AsyncHTTPClient().fetch(
            f"{self.url}api/sessions/{KEY.path}/{path}",
            method="POST",
            body="",
            headers={"Authorization": "token root-token"},
            raise_error=False,
        )
        return answer.code, answer.body.decode()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.join(60)


class World:
    """Node, Hub and database, which last; services, which come and go."""

    def __init__(self, folder: Path, programs, nodes: Nodes) -> None:
        self.folder = folder
        self.programs = programs
        self.journal_url = f"sqlite:///{folder}/journal.sqlite"
        self.node = nodes.add()
        (folder / "agent.token").write_text(TOKEN)
        (folder / "node").mkdir()  # a real agent may listen in the folder itself
        node, self.agent_url = self.node.serve(folder / "node")
        self.works: ServiceClient | None = None  #: whom the Hub's spawner asks
        self.hub = simulated_hub.started(
            folder, self, users=[KEY.user], machine=self.node.machine
        )
        hub, self.hub_url = simulated_hub.serve(self.hub)
        self._servers = [node, hub]
        self.services: list[Service] = []

    def __getattr__(self, call: str):
        return getattr(self.works, call)

    def service(self, name: str) -> Service:
        service = Service(self, name)
        self.services.append(service)
        return service

    async def until(self, condition, limit: float = 120.0):
        """Wait until it holds; its value."""
        deadline = time.monotonic() + limit
        while True:
            value = condition()
            value = await value if asyncio.iscoroutine(value) else value
            if value:
                return value
            assert time.monotonic() < deadline, "\n".join(
                f"--- {each.name}\n{each.told()[-3000:]}" for each in self.services
            )
            await asyncio.sleep(0.05)

    def phase(self) -> str:
        where = f"file:{self.folder}/journal.sqlite?mode=ro"
        with closing(sqlite3.connect(where, uri=True)) as database:
            found = database.execute(
                "SELECT value ->> '$.phase' FROM notes WHERE kind = 'session'"
            ).fetchall()
        return found[0][0] if found else ""

    async def close(self) -> None:
        for service in self.services:
            service.close()
        for server in self._servers:
            server.stop()
            await server.close_all_connections()


@pytest.fixture
async def world(tmp_path, programs):
    with simulated_nodes() as nodes, replaced(substitutes(SystemClock())):
        world = World(tmp_path, programs, nodes)
        yield world
        await world.close()


async def _running(world: World, service: Service) -> None:
    world.works = service.client
    await world.hub.start(KEY)
    await world.until(lambda: world.phase() == "running" and not world.hub.pending)


async def _says_that_it_waits(second: Service, first: Service) -> None:
    assert await second.get("healthz") == await first.get("healthz")
    for path in ("readyz", "api/sessions", "metrics", "api/nothing"):
        status, text = await second.get(path)
        assert (status, json.loads(text)["code"]) == (503, "journal_held")
    for path in ("", "sessions/ada/-", "nothing"):
        status, text = await second.get(path)
        assert status == 503
        assert "Another service holds the journal" in text
    assert (await second.get("static/live.js"))[0] == 200
    with pytest.raises(Unreachable) as caught:
        await second.client.plan_start(Placement(key=KEY, incarnation="i1"))
    assert caught.value.reason is Reason.JOURNAL_HELD
    assert "another one holds the journal" in second.told()


async def test_second_service_waits_ends_nothing_and_takes_over_at_once(world):
    """How a lock is free again is told in ``controlplane/test_lock.py``."""
    first = world.service("first")
    await world.until(first.ready)
    await _running(world, first)
    second = world.service("second")
    await world.until(second.waits)
    await _says_that_it_waits(second, first)
    status, text = await first.ask("suspend")
    assert status == 202, text
    await world.until(lambda: world.phase() == "suspended")
    for _ in range(15):  # as it was three times the interval of its looks
        await asyncio.sleep(0.1)
        assert world.phase() == "suspended", second.told()[-3000:]
    assert await world.hub.server(KEY) is HubState.STOPPED
    first.signal(signal.SIGKILL)
    first.process.join(60)
    await world.until(second.ready)
    await _running(world, second)
    status, text = await second.ask("suspend")
    assert status == 202, text
    await world.until(lambda: world.phase() == "suspended")


async def test_service_whose_journal_another_one_has_taken_ends_itself(world):
    """As with a database whose locks hold nobody off, or that has let go of ours."""
    first = world.service("first")
    await world.until(first.ready)
    (world.folder / "journal.sqlite.lock").unlink()
    second = world.service("second")
    await world.until(second.ready)
    await world.until(lambda: not first.process.is_alive())
    assert "The journal was lost" in first.told()
    assert await second.ready()
