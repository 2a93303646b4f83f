"""An agent obeys one service: whose order comes late, or by nobody, is refused."""

import asyncio
import json

import httpx
import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import HIGHEST, TERM, Term
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.operations.known_term import (
    FILE,
    KnownTerm,
    act_for_itself,
)
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from tests.support.agent import goes_on, wait_for

FIRST, SECOND = Term(number=1, holder="a"), Term(number=2, holder="b")


def asked(agent, term: str, method: str, path: str, **more) -> httpx.Response:
    with agent.client() as client:
        return client.request(method, path, headers={TERM: term}, **more)


def of_session(place, order: str) -> str:
    return f"/v1/sessions/{place.incarnation}/{order}"


# --- the real agent


def test_order_of_a_former_service_is_refused_also_by_the_next_agent(agent, counter):
    kill = of_session(counter, "kill")
    assert asked(agent, "1 a", "GET", "/v1/sessions").status_code == 200
    assert asked(agent, "2 b", "GET", "/v1/sessions").status_code == 200

    for _ in range(2):
        held = asked(agent, "1 a", "POST", kill)
        assert (held.status_code, held.json()["code"]) == (409, "former_service")
        assert held.json()["term"] == "2"
        assert "its term: 1; the agent serves term 2" in held.json()["message"]
        for method, path, body in (
            ("POST", of_session(counter, "capture"), {"checkpoint": "c"}),
            ("POST", of_session(counter, "restore"), {"checkpoint": "c"}),
            ("POST", of_session(counter, "release"), {"checkpoint": "c"}),
            ("POST", of_session(counter, "nap"), {}),
            ("POST", of_session(counter, "wake"), {}),
            ("POST", of_session(counter, "thaw"), {}),
            ("POST", of_session(counter, "cancel"), {}),
            ("POST", "/v1/checkpoints/c/discard", {}),
            ("POST", "/v1/checkpoints/c/mark", {"said": {}, "word": 1}),
            # what it saw would not be safe from the orders of the other one
            ("GET", "/v1/sessions", None),
        ):
            answer = asked(agent, "1 a", method, path, json=body)
            assert answer.json()["code"] == "former_service", path
        assert goes_on(counter)
        agent.kill()
        agent.start(wait=False)
        wait_for(agent._answers)

    assert json.loads((agent.folder / "state" / FILE).read_text())["number"] == 2
    assert asked(agent, "2 b", "GET", "/v1/status").json()["term"] == 2
    assert asked(agent, "2 b", "POST", kill).status_code == 204


def test_order_without_a_term_is_obeyed_where_no_service_has_said_one(agent, counter):
    kill = of_session(counter, "kill")
    assert asked(agent, "1 a", "GET", "/v1/sessions").status_code == 200
    refused = agent.post(kill)
    assert (refused.status_code, refused.json()["code"]) == (409, "former_service")
    assert agent.get("/v1/sessions").status_code == 200
    assert goes_on(counter)


@pytest.mark.parametrize(
    "term", ["0 a", "-1 a", "1", "x a", f"{HIGHEST + 1} a", "1 a b", "1 é"]
)
def test_what_is_no_term_is_refused_and_not_remembered(agent, term):
    answer = asked(agent, term.encode(), "GET", "/v1/sessions")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert agent.get("/v1/status").json()["term"] == 0


# --- what it goes by


async def heard(known: KnownTerm, term: Term | None, *, order: bool) -> bool:
    """Whether a request is taken up, in a task of its own."""
    done = asyncio.create_task(known.hear(term, order=order))
    await asyncio.wait({done})
    error = done.exception()
    assert error is None or error.reason is Reason.FORMER_SERVICE
    return error is None


async def test_number_given_twice_is_of_the_holder_who_was_there_first(tmp_path):
    known = KnownTerm(tmp_path)
    assert await heard(known, FIRST, order=True)
    assert not await heard(known, Term(number=1, holder="b"), order=False)
    assert await heard(known, SECOND, order=False)
    assert not await heard(known, FIRST, order=True)


async def test_term_that_cannot_be_written_holds_and_is_written_later(tmp_path, caplog):
    state = tmp_path / "state"
    known = KnownTerm(state)
    assert await heard(known, SECOND, order=True)
    assert not await heard(known, FIRST, order=True)
    assert caplog.text.count("cannot be written") == 1  # a service asks all the time
    state.mkdir()
    assert await heard(known, SECOND, order=False)
    assert KnownTerm(state).number == 2


@pytest.mark.parametrize("text", ["", "{", '{"number": 0, "holder": "a"}'])
async def test_file_that_is_not_understood_is_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    known = KnownTerm(tmp_path)
    assert known.number == 0
    assert await heard(known, FIRST, order=True)


# --- an order that has to wait


@pytest.fixture
def node(recovery, tmp_path):
    return LocalNode(
        placements=recovery.placements,
        operations=recovery.operations,
        sampler=None,
        tools=recovery.tools,
        term=KnownTerm(tmp_path),
        describe=lambda: NodeStatus(host="here", version="1"),
    )


async def test_kill_that_waits_for_a_restore_is_refused_if_it_is_late_by_then(
    node, counter
):
    async def until_called_off(operation: Operation):
        while not operation.cancel.is_set:
            await asyncio.sleep(0.01)
        await over.wait()

    async def kill():
        await node.term.hear(FIRST, order=True)
        await node.kill(counter.incarnation, orders.Kill())

    over = asyncio.Event()
    operation = Operation("restore", SessionKey("ann"), "c")
    node.operations.begin(counter.incarnation, operation, until_called_off)
    late = asyncio.create_task(kill())
    while not operation.cancel.is_set:
        await asyncio.sleep(0.01)
    await node.term.hear(SECOND, order=False)
    over.set()
    with pytest.raises(Refused) as caught:
        await late
    assert caught.value.reason is Reason.FORMER_SERVICE
    assert goes_on(counter)


async def test_tree_that_is_being_killed_is_told_as_ending(node, counter):
    begun, over = asyncio.Event(), asyncio.Event()

    async def kill(_):
        begun.set()
        await over.wait()

    node.operations.begin(
        counter.incarnation,
        Operation("kill", SessionKey("ann"), ""),
        kill,
    )
    await begun.wait()
    (tree,) = await node.trees()
    assert (tree.state, tree.ending) == (TreeState.RUNNING, True)
    over.set()
    await node.operations.last(counter.incarnation).wait()
    assert not (await node.tree(counter.incarnation)).ending


async def test_what_an_agent_does_by_itself_needs_no_service(tmp_path):
    known = KnownTerm(tmp_path)
    await known.hear(FIRST, order=True)
    await asyncio.create_task(known.hear(SECOND, order=False))

    async def caused_by_the_order() -> None:
        with pytest.raises(Refused):
            known.confirm()
        act_for_itself()
        known.confirm()

    await asyncio.create_task(caused_by_the_order())
