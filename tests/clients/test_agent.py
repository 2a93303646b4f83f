"""The agent's client on the agent's real routes, over a socket and over TCP."""

import asyncio

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.support.served import served_at
from tests.support.simulated_node import TOKEN, simulated_nodes

KEY = SessionKey("ada")


@pytest.fixture
async def node():
    with simulated_nodes() as nodes:
        yield nodes.add()


@pytest.fixture
async def client(node, tmp_path):
    server, address = node.serve(tmp_path)
    client = AgentClient(address, TOKEN, quick=2, slow=2, silence=2)
    yield client
    client.close()
    server.stop()
    await server.close_all_connections()


async def test_agent_tells_how_its_node_is(client):
    assert client.nodes() == [""]
    status = await client.status()
    assert (status.host, status.cards, status.ready) == ("memory", [], True)


@pytest.mark.parametrize("address", ["unix:/nonexistent/x", "https://127.0.0.1:9"])
async def test_agent_that_is_not_there_is_unreachable(address):
    client = AgentClient(address, TOKEN, quick=1)
    with pytest.raises(Unreachable) as caught:
        await client.trees()
    assert caught.value.reason is Reason.AGENT_UNREACHABLE
    with pytest.raises(Unreachable):
        _ = [e async for e in client.follow("i1", orders.Capture("c1", 1))]
    client.close()


async def test_agent_token_is_read_anew_and_a_wrong_one_is_unreachable(node, tmp_path):
    server, address = node.serve(tmp_path)
    file = tmp_path / "token"
    client = AgentClient(address, file, quick=2)
    with pytest.raises(Unreachable, match="does not answer"):
        await client.trees()
    file.write_text("wrong\n")
    with pytest.raises(Unreachable) as caught:
        await client.trees()
    assert "token" in caught.value.detail
    file.write_text(TOKEN + "\n")
    assert await client.trees() == []
    client.close()
    server.stop()


class _Strange(RequestHandler):
    async def prepare(self) -> None:
        if "capture" in self.request.path:
            self.write(b'{"step":{"step":"a","title":"A"}}\n{"step"')
            await self.flush()
            await asyncio.sleep(30)
        self.finish(b"<html>")


async def test_agent_that_is_something_else_or_falls_silent_is_unreachable(tmp_path):
    strange = Application([(".*", _Strange)])
    async with served_at(tmp_path / "agent.sock", strange) as address:
        client = AgentClient(address, TOKEN, quick=1, silence=0.3)
        with pytest.raises(Unreachable):
            await client.trees()
        events = client.follow("i1", orders.Capture("c1", 1))
        assert (await anext(events)).step.step == "a"
        with pytest.raises(Unreachable) as caught:
            await anext(events)
        assert "silent" in caught.value.detail
        client.close()
