"""The nodes' health: who is silent and since when, and the page of nodes."""

import asyncio
import json

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.drain import Drain, NodeNotice
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.node_status import (
    CardStatus,
    NodeHealth,
    NodeStatus,
    no_return,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service import node_watch
from jupyterhub_gpu_reclaim.service.node_watch import NodeWatch
from tests.service.conftest import PREFIX
from tests.support.forms import Browser
from tests.support.manual_clock import ManualClock

GB = 10**9
UP = NodeStatus(
    host="vm",
    version="1.0",
    criu="4.2",
    cards=[],
    store_free=900 * GB,
)
NOW = 1_700_000_000.0


class Machines:
    """Agents that answer, refuse or hang, as a test says."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.hung: set[str] = set()
        self.noticed: list[NodeNotice] = []
        self.forbidden = False

    def nodes(self) -> list[str]:
        return ["b", "a"]

    async def status(self, node: str) -> NodeStatus:
        if node in self.hung:
            await asyncio.Event().wait()
        if node in self.gone:
            raise Unreachable(Reason.NODE_SILENT, node=node, detail="cut off")
        card = CardStatus(name="H200", total=9, free=4, busy_percent=7.0)
        return msgspec.structs.replace(UP, cards=[card], state_free=5)

    async def node_notices(self) -> list[NodeNotice]:
        if self.forbidden:
            raise Unreachable(Reason.CLUSTER_FORBIDS, verb="get", resource="nodes")
        return self.noticed


class Drains:
    def __init__(self) -> None:
        self.told: list[list[NodeNotice]] = []
        self.follow = self.told.append

    def of(self, node: str) -> None:
        del node


async def test_notices_of_before_stand_while_they_are_not_known():
    machines, drains = Machines(), Drains()
    watch = NodeWatch(machines, ManualClock(NOW), lambda _: None, drains)
    machines.noticed = [NodeNotice("a", "cordoned")]
    await watch.ask()
    machines.forbidden = True
    await watch.ask()
    assert drains.told == [machines.noticed]
    machines.forbidden, machines.noticed = False, []
    await watch.ask()
    assert drains.told[1:] == [[]]


async def test_agent_that_does_not_answer_is_silent_since_it_was_asked(monkeypatch):
    monkeypatch.setattr(node_watch, "ANSWER_SECONDS", 0.05)
    machines, clock, told = Machines(), ManualClock(NOW), []
    watch = NodeWatch(machines, clock, told.append, Drains())
    await watch.ask()
    assert [(one.node, one.faults) for one in watch.now()] == [("a", []), ("b", [])]
    machines.gone, machines.hung = {"a"}, {"b"}
    clock.advance(5)
    for _ in range(2):
        await watch.ask()
        clock.advance(5)
    a, b = watch.now()
    assert (a.silent_since, b.silent_since) == (NOW + 5, NOW + 5)
    assert b.faults
    assert (a.status.host, a.status.criu) == ("vm", "4.2")  # what was known stays,
    assert (a.status.store_free, a.status.state_free) == (None, None)  # no figure
    (card,) = a.status.cards
    assert (card.name, card.free, card.busy_percent) == ("H200", None, None)
    assert {node: (why.code, why.message) for node, why in told[-1].items()} == {
        "a": ("node_silent", "The agent on a does not answer."),  # users see that
        "b": ("node_silent", "The agent on b does not answer."),
    }
    said = [one.faults[0].message for one in (a, b)]
    assert said == [
        "The agent on a does not answer (cut off).",
        "The agent on b does not answer (no answer within 0.05 s).",
    ]
    assert "kubectl" in a.faults[0].hint
    machines.gone = machines.hung = set()
    await watch.ask()
    assert told[-1] == {}
    assert not any(one.faults for one in watch.now())


def test_faults_of_a_node_have_a_code_and_a_cure():
    full = msgspec.structs.replace(UP, store_free=0)
    (fault,) = NodeHealth(node="b", status=full).faults
    assert fault.code == "store_full"
    assert "more needed, 0 B free" in fault.message
    drain = Drain(node="", by="root", since=NOW)
    (fault,) = NodeHealth(node="", status=UP, drain=drain).faults
    assert fault.code == "node_closed"
    assert "since 2023-11-14 22:13 UTC" in fault.message
    assert "jupyterhub-gpu-reclaim undrain" in fault.hint


async def test_watch_says_which_nodes_are_closed():
    drain = Drain(node="b", by="root", since=NOW)
    drains = Drains()
    drains.of = {"b": drain}.get
    watch = NodeWatch(Machines(), ManualClock(NOW), lambda _: None, drains)
    await watch.ask()
    assert [one.drain for one in watch.now()] == [None, drain]


UNREADABLE = finding(Reason.KEY_MISSING, why="/etc/m.key is not there")
CLOSED = Drain(node="", by="root", since=NOW)
HELD = {
    "store": (
        NodeHealth(node="", status=msgspec.structs.replace(UP, findings=[UNREADABLE])),
        "the store that holds it cannot be used",
        "store",
    ),
    "agent": (
        NodeHealth(node="", status=UP, silent_since=NOW),
        "its machine does not answer, or cannot work",
        "nodes",
    ),
    "closed": (
        NodeHealth(node="", status=UP, drain=CLOSED),
        "its machine is closed for maintenance",
        "nodes",
    ),
}


@pytest.mark.parametrize("what", HELD)
async def test_suspended_session_says_that_it_cannot_come_back_now(service, what):
    """Its user hears that it is kept; an administrator also what is wrong."""
    node, why, cure = HELD[what]
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    service.control.put("ada", "live")
    service.control.nodes_known = [node]
    told = f"It is kept, but cannot be resumed at the moment: {why}."
    ada, root = Browser(service, "token-ada"), Browser(service, "token-root")
    for answer in (
        await ada.get(""),
        await ada.get("sessions/ada/-"),
    ):
        page = answer.body.decode()
        assert page.count(told) == 1  # of the one that is suspended
        assert node.faults[0].code not in page
        assert "m.key" not in page
    page = (await root.get("sessions/ada/-")).body.decode()
    assert told in page
    assert f'<a href="{PREFIX}{cure}" data-focus="cure">' in page
    assert node.faults[0].code in page
    answer = await service.call("api/sessions/ada/-/why", "token-ada")
    last = json.loads(answer.body)[-1]
    assert (last["code"], last["message"]) == (node.faults[0].code, told)
    others = [NodeHealth(node="b", status=UP)]
    for nodes in (others, [node, *others], []):
        service.control.nodes_known = nodes
        assert told not in (await ada.get("sessions/ada/-")).body.decode()


def test_neither_a_full_store_nor_a_drained_node_of_a_cluster_prevents_a_return():
    full = msgspec.structs.replace(UP, store_free=0)
    drain = Drain(node="b", by="root", since=NOW)
    drained = NodeHealth(node="b", status=full, drain=drain)
    assert no_return([NodeHealth(node="a", status=full), drained]) is None


async def test_nodes_and_troubles_are_for_managers_and_escaped(service):
    evil = "<b>node</b>"
    note = finding(Reason.FEW_WATCHES, fatal=False, limit=128)
    status = msgspec.structs.replace(UP, host=evil, findings=[note])
    service.control.nodes_known = [NodeHealth(node=evil, status=status)]
    service.control.put(evil, facts={"node": evil})
    service.control.silent_parts = lambda: ["Hub"]
    root = Browser(service, "token-root")
    for path in ("nodes", "all", "store"):
        page = (await root.get(path)).body.decode()
        assert "The Hub does not answer." in page, path
        assert evil not in page
    assert (await service.call("nodes")).code == 403
    told = msgspec.json.decode(
        (await service.call("api/nodes", "token-root")).body, type=list[NodeHealth]
    )
    assert told == service.control.nodes_known
    assert (await service.call("api/nodes")).code == 403
