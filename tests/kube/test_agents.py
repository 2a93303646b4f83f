"""Which agent of a cluster is asked where any will do."""

import asyncio
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.agents import Agents


class Pods:
    def now(self):
        return [
            SimpleNamespace(
                node=node,
                ready=True,
                status=SimpleNamespace(pod_ip=node, phase="Running"),
                metadata=SimpleNamespace(deletion_timestamp=None),
            )
            for node in ("one", "two")
        ]


@pytest.fixture
def agents():
    return Agents(Pods(), lambda ip: SimpleNamespace(ip=ip, close=lambda: None))


def silent_one(asked: list[str], seconds: float):
    """A question that the agent on the first node does not answer, after a while."""

    async def ask(client) -> str:
        asked.append(client.ip)
        if client.ip == "one":
            await asyncio.sleep(seconds)
            raise Unreachable(Reason.AGENT_UNREACHABLE)
        return client.ip

    return ask


async def test_question_goes_on_to_the_next_agent_however_long_it_took(agents):
    asked: list[str] = []
    assert await agents.anyone(silent_one(asked, 0.05)) == "two"
    assert asked == ["one", "two"]


async def test_order_does_not_go_to_another_agent_when_it_has_become_old(agents):
    """What it was decided by may have changed: only a new decision may give it."""
    asked: list[str] = []
    with pytest.raises(Unreachable):
        await agents.anyone(silent_one(asked, 0.05), seconds=0.01)
    assert asked == ["one"]


async def test_order_that_nobody_took_goes_to_the_next_agent_at_once(agents):
    asked: list[str] = []
    assert await agents.anyone(silent_one(asked, 0.0), seconds=5) == "two"
    assert asked == ["one", "two"]
