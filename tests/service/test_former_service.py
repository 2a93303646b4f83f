"""An order of a former service that arrives after the next one has taken over.

Two real services on one journal, a real agent with a real session, and between the
first of them and the agent a wire that can hold one order up.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from tests.service import test_two_services as two
from tests.support import agent as support
from tests.support.agent import goes_on, running_agent

KEY = SessionKey("ann")

programs = two.programs
places = pytest.fixture(support.places)
counter = pytest.fixture(support.counter)


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="grf-", dir="/tmp"))  # a socket stands in it
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def agent(folder):
    made = running_agent(folder)
    yield made
    made.kill()


class Wire:
    """Carries requests to the agent; one with that word waits until it is let go."""

    def __init__(self, agent: Path, word: bytes) -> None:
        self._agent = agent
        self._word = word
        self.holds = asyncio.Event()
        self.let_go = asyncio.Event()
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def open(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._carry, path)

    async def _carry(self, reader, writer) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._agent)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            held = self._word in head.split(b"\r\n")[0]
            if held:
                self.holds.set()
                await self.let_go.wait()
            far_writer.write(head)
            back = asyncio.create_task(self._back(far_reader, writer))
            there = asyncio.create_task(self._there(reader, far_writer))
            heard = await back
            there.cancel()
            if held:
                self.answer.set_result(heard)
        except asyncio.IncompleteReadError:
            pass
        finally:
            far_writer.close()
            writer.close()

    async def _there(self, reader, writer) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def _back(self, reader, writer) -> bytes:
        heard = b""
        while data := await reader.read(65536):
            heard += data
            with contextlib.suppress(OSError):
                writer.write(data)
        return heard

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def world(folder, agent, programs):
    world = two.World(folder, programs)
    (folder / "agent.token").write_text(agent.token)
    yield world
    await world.close()


async def test_kill_that_a_former_service_has_sent_does_not_end_what_its_successor_has(
    world, agent, counter, folder
):
    wire = Wire(folder / "agent.sock", b"/kill")
    await wire.open(folder / "wire.sock")
    world.agent_url = f"unix:{folder}/wire.sock"
    first = world.service("first")
    await world.until(first.ready)
    world.hub.run(KEY, counter.incarnation)
    await world.until(lambda: world.phase() == "running")
    # Its spawner gives it up, and the order to end it is under way …
    placement = Placement(key=KEY, incarnation=counter.incarnation)
    given_up = asyncio.create_task(first.client.cancelled(placement))
    await wire.holds.wait()
    assert world.phase() == "stopped"

    world.agent_url = agent.listen
    second = world.service("second")
    await world.until(second.waits)
    first.signal(signal.SIGKILL)
    with pytest.raises(Unreachable):
        await given_up
    await world.until(second.ready)
    # … while the Hub says that it runs: it is the session after all.
    await world.until(lambda: world.phase() == "running")
    await world.until(lambda: _term_known_to(agent) == 2)
    wire.let_go.set()
    answer = await wire.answer

    assert b"409 Conflict" in answer
    assert b"former_service" in answer
    assert await asyncio.to_thread(goes_on, counter)
    assert _term_known_to(agent) == 2
    assert world.phase() == "running"
    wire.close()


def _term_known_to(agent) -> int:
    return agent.get("/v1/status").json()["term"]


async def test_service_whose_journal_was_lost_goes_on_above_what_its_agents_know(
    world, agent, counter, folder
):
    """The journal is begun anew, and counts its services from the beginning."""
    world.agent_url = agent.listen
    for term in (1, 2):  # so that the next one's first term is not the highest
        former = world.service("former")
        await world.until(former.ready)
        await world.until(lambda: _term_known_to(agent) == term)  # noqa: B023 - at once
        former.signal(signal.SIGKILL)
        former.process.join(20)
    for path in folder.glob("journal.sqlite*"):
        path.unlink()

    service = world.service("former")
    world.hub.controller = service.client
    await world.until(service.ready)
    world.hub.run(KEY, counter.incarnation)
    await world.until(lambda: world.phase() == "running")
    placement = Placement(key=KEY, incarnation=counter.incarnation)
    await service.client.cancelled(placement)

    await world.until(lambda: not counter.alive)
    assert _term_known_to(agent) == 3
    assert "term 2 was known; ours is higher now" in service.told()
