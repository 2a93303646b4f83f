"""In whose name the service asks its agents, and what it does if one knows better."""

import fcntl
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.models import BELIEVED, SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import HIGHEST, Term
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.support.simulated_node import TOKEN, Node, simulated_nodes

KEY = SessionKey("ada")


class World:
    """One agent, and services with a journal each, or one after the other."""

    def __init__(self, folder: Path, node: Node) -> None:
        self._folder = folder
        self.node = node
        self._server, self._address = node.serve(folder)
        self._open = []
        self._held: dict[str, Journal] = {}

    def service(self, journal: str = "one") -> tuple[Journal, AgentClient]:
        """One that has taken that journal, from a former one that still asks."""
        if journal in self._held:
            fcntl.flock(self._held[journal]._lock, fcntl.LOCK_UN)
        self._held[journal] = rows = Journal(
            f"sqlite:///{self._folder}/{journal}.sqlite"
        )
        assert rows.take()
        client = AgentClient(
            self._address, TOKEN, journal=rows, quick=2, slow=2, silence=2
        )
        self._open += [rows, client]
        return rows, client

    async def close(self) -> None:
        for each in self._open:
            each.close()
        self._server.stop()
        await self._server.close_all_connections()


@pytest.fixture
async def world(tmp_path):
    with simulated_nodes() as nodes:
        world = World(tmp_path, nodes.add())
        yield world
        await world.close()


async def test_former_service_hears_that_it_is_one_and_changes_nothing(world):
    place = world.node.run(KEY)
    _, former = world.service()
    assert await former.trees()
    _, client = world.service()
    assert await client.trees()
    for ask in (
        lambda: former.order(place.incarnation, orders.Kill()),
        lambda: former.order("c", orders.Discard()),
        former.trees,
        lambda: anext(former.follow(place.incarnation, orders.Capture("c", 1))),
        lambda: anext(former.follow(place.incarnation, orders.NextWake())),
    ):
        with pytest.raises(Unreachable) as caught:
            await ask()
        told = {"another service has taken it", "a service that has been replaced"}
        assert any(each in caught.value.detail for each in told)
    assert place.tree.runs
    assert world.node.nodes.store.saved == {}
    await client.order(place.incarnation, orders.Kill())


async def test_service_with_an_older_journal_goes_on_above_what_the_agent_knows(world):
    place = world.node.run(KEY)
    _, former = world.service()
    later = [world.service() for _ in range(3)]
    await later[-1][1].trees()
    journal, client = world.service("put-back")
    assert journal.term == 1
    assert await client.trees()
    events = [
        event
        async for event in client.follow(place.incarnation, orders.Capture("c", 1))
    ]
    assert events[-1].checkpoint.id == "c"
    assert journal.term == 5
    with pytest.raises(Unreachable):
        await former.order(place.incarnation, orders.Thaw())
    await client.order(place.incarnation, orders.Thaw())
    assert (await client.tree(place.incarnation)).state is TreeState.RUNNING


async def test_number_that_was_given_twice_is_not_the_same_service(world):
    _, former = world.service()
    await former.trees()
    journal, client = world.service("lost")
    await client.trees()
    assert journal.term == 2


class NeverHigh:
    """A journal whose term is raised, and another service is quicker each time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.raised = 0

    @property
    def stamp(self):
        return self._journal.stamp

    def rise(self, above: int) -> None:
        self.raised += 1


async def test_two_installations_with_the_same_agents_do_not_ask_for_ever(world):
    other, client = world.service()
    other.rise(9)
    await client.trees()
    journal, second = world.service("another")
    second._authority._journal = slow = NeverHigh(journal)
    with pytest.raises(Unreachable) as caught:
        await second.trees()
    assert caught.value.reason is Reason.AGENT_UNREACHABLE
    assert slow.raised == 3


@pytest.mark.parametrize("term", [BELIEVED + 1, HIGHEST])
async def test_agent_that_obeys_what_no_service_can_have_been_is_silent(world, term):
    journal, client = world.service()
    await world.node.agent.term.hear(Term(number=term, holder="x"), order=False)
    with pytest.raises(Unreachable):
        await client.trees()
    assert journal.term == 1


async def test_term_that_cannot_be_raised_now_is_no_answer(world, monkeypatch):
    _, client = world.service()
    await client.trees()
    journal, other = world.service("other")

    def broken(above: int) -> None:
        raise StoreError(Reason.INTERNAL, detail="journal: it is away")

    monkeypatch.setattr(journal, "rise", broken)
    with pytest.raises(Unreachable) as caught:
        await other.trees()
    assert caught.value.reason is Reason.AGENT_UNREACHABLE
