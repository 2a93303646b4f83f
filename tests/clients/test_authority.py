"""In whose name the service asks its agents, and what it does if one knows better."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.models import BELIEVED, SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import HIGHEST, Term
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.journal.lease import Lease
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.clients.agents import named
from tests.controlplane.doubles import TOKEN, NodeInMemory, serve_node

KEY = SessionKey("ada")


class World:
    """One agent, and services with a lease each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.node = NodeInMemory()
        self._server, self._address = serve_node(self.node)
        self._open = []

    def service(self, journal: str = "one") -> tuple[Lease, AgentClient]:
        """One that has taken over that journal."""
        rows = Journal(f"sqlite:///{self._folder}/{journal}.sqlite")
        lease = Lease(rows, SystemClock(), 0.0)
        while not lease.take():
            pass
        client = AgentClient(
            self._address, TOKEN, lease=lease, quick=2, slow=2, silence=2
        )
        self._open += [rows, client]
        return lease, client

    async def close(self) -> None:
        for each in self._open:
            each.close()
        self._server.stop()
        await self._server.close_all_connections()


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path)
    yield world
    await world.close()


async def test_former_service_hears_that_it_is_one_and_changes_nothing(world):
    place = world.node.run(KEY, "work")
    _, former = world.service()
    assert await former.trees()
    _, client = world.service()
    assert await client.trees()
    for ask in (
        lambda: former.kill(place.incarnation),
        lambda: former.discard("c"),
        former.trees,
        lambda: anext(former.capture(place.incarnation, "c", 1)),
        lambda: anext(former.next_wake(place.incarnation)),
    ):
        with pytest.raises(Unreachable) as caught:
            await ask()
        assert caught.value.reason is Reason.JOURNAL_HELD
    assert world.node.calls == []
    assert (await client.kill(place.incarnation)).state is TreeState.GONE


async def test_service_with_an_older_journal_goes_on_above_what_the_agent_knows(world):
    place = world.node.run(KEY, "work")
    _, former = world.service()
    leases = [world.service() for _ in range(3)]
    await leases[-1][1].trees()
    lease, client = world.service("put-back")
    assert lease.term == 1
    events = [event async for event in client.capture(place.incarnation, "c", 1)]
    assert events[-1].checkpoint.id == "c"
    assert lease.term == 5
    with pytest.raises(Unreachable):
        await former.thaw(place.incarnation)
    assert (await client.thaw(place.incarnation)).state is TreeState.RUNNING


async def test_number_that_was_given_twice_is_not_the_same_service(world):
    _, former = world.service()
    await former.trees()
    lease, client = world.service("lost")
    await client.trees()
    assert lease.term == 2


class NeverHigh:
    """A lease that is raised, and another service is quicker each time."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.raised = 0

    @property
    def stamp(self):
        return self._lease.stamp

    def rise(self, above: int) -> None:
        self.raised += 1


async def test_two_installations_with_the_same_agents_do_not_ask_for_ever(world):
    other, client = world.service()
    other.rise(9)
    await client.trees()
    lease, second = world.service("another")
    second._authority._lease = slow = NeverHigh(lease)
    with pytest.raises(Unreachable) as caught:
        await second.trees()
    assert caught.value.reason is Reason.AGENT_UNREACHABLE
    assert slow.raised == 3


@pytest.mark.parametrize("term", [BELIEVED + 1, HIGHEST])
async def test_agent_that_obeys_what_no_service_can_have_been_is_silent(world, term):
    lease, client = world.service()
    await world.node.terms.hear(Term(number=term, holder="x"), order=False)
    with pytest.raises(Unreachable):
        await client.trees()
    assert lease.term == 1


async def test_term_that_cannot_be_raised_now_is_no_answer(world, monkeypatch):
    _, client = world.service()
    await client.trees()
    lease, other = world.service("other")

    def broken(above: int) -> None:
        raise StoreError(Reason.INTERNAL, detail="journal: it is away")

    monkeypatch.setattr(lease, "rise", broken)
    with pytest.raises(Unreachable) as caught:
        await other.trees()
    assert caught.value.reason is Reason.AGENT_UNREACHABLE


def test_node_that_refuses_a_former_service_is_not_silent():
    for reason, told in (
        (Reason.JOURNAL_HELD, Reason.JOURNAL_HELD),
        (Reason.AGENT_UNREACHABLE, Reason.NODE_SILENT),
    ):
        with pytest.raises(Unreachable) as caught, named("one"):
            raise Unreachable(reason)
        assert caught.value.reason is told
