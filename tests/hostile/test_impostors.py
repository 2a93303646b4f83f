"""Somebody who listens where the service or an agent should, while it is away."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.auth.handshake import NONCE, PROOF, Vouching
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Identity,
    Placement,
    SessionKey,
    StartPlan,
)
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.controlplane.doubles import TOKEN, NodeInMemory
from tests.service.conftest import SPAWNER_TOKEN, service

__all__ = ["service"]

KEY = SessionKey("ada")
PLACE = Placement(key=KEY, incarnation="i2", checkpoint="c1")
HEARD: list[str] = []


class Listens(RequestHandler):
    """Writes down all that it is told, and answers what would be welcome."""

    def prepare(self) -> None:
        HEARD.append(str(self.request.headers) + repr(self.request.body))
        word = self.request.path.rpartition("/")[2]
        answer = {"hello": {"run": "r"}}.get(word, {"action": "cold"})
        for header in (NONCE, PROOF):
            self.set_header(header, self.request.headers.get(NONCE, "") or "x")
        self.finish(json.dumps(answer) + "\n")


@pytest.fixture
async def impostor():
    """An address where somebody else listens."""
    HEARD.clear()
    server = HTTPServer(Application([(".*", Listens)]))
    server.listen(0, "127.0.0.1")
    yield next(iter(server._sockets.values())).getsockname()[1], server
    server.stop()
    await server.close_all_connections()


async def test_impostor_hears_no_secret_and_is_not_believed(impostor):
    port, _ = impostor
    client = ServiceClient(f"http://127.0.0.1:{port}", SPAWNER_TOKEN)
    with pytest.raises(Unreachable):
        await client.plan_start(PLACE)
    with pytest.raises(Unreachable):
        async for _ in client.progress(KEY, 0):
            pass
    client.close()
    assert HEARD
    assert not [heard for heard in HEARD if SPAWNER_TOKEN in heard]
    assert not [heard for heard in HEARD if "Authorization" in heard]
    assert not [heard for heard in HEARD if "i2" in heard]


async def test_impostor_after_the_service_is_not_believed_either(service, impostor):
    """The spawner had known it. What is heard opens nothing of the next one."""
    port, _ = impostor
    client = ServiceClient(
        service.url.removesuffix("/services/gpu-reclaim/"), SPAWNER_TOKEN
    )
    await client.placed(PLACE)
    client._http._base = f"http://127.0.0.1:{port}"
    with pytest.raises(Unreachable):
        await client.plan_start(PLACE)
    client.close()
    assert not [heard for heard in HEARD if SPAWNER_TOKEN in heard]
    (token,) = {
        line.partition(": ")[2]
        for heard in HEARD
        for line in heard.splitlines()
        if line.startswith("Authorization")
    }
    answer = await restarted(service).call(
        "api/spawner/plan-start", token.split()[-1], "POST", {}
    )
    assert answer.code == 401


def restarted(service):
    """The same service, in its next run."""
    object.__setattr__(service.context, "run", "the next one")
    return service


async def test_spawner_takes_up_a_service_that_was_restarted(service):
    service.control.plan = StartPlan(
        action="restore", checkpoint="c1", identity=Identity(api_token="old", port=1)
    )
    address = service.url.removesuffix("/services/gpu-reclaim/")
    client = ServiceClient(address, SPAWNER_TOKEN)
    first = await client.plan_start(PLACE)
    restarted(service)
    assert await client.plan_start(PLACE) == first
    client.close()


async def test_proofs_are_for_one_answer_alone():
    vouching = Vouching(b"secret" * 6)
    proof = vouching.proof("n1", 200, b"body")
    assert vouching.is_proved(proof, "n1", 200, b"body")
    for other in (("n2", 200, b"body"), ("n1", 401, b"body"), ("n1", 200, b"bodx")):
        assert not vouching.is_proved(proof, *other)
    sealed = vouching.sealed("n1", 0, b"line")
    assert vouching.opened("n1", 0, sealed) == b"line"
    assert vouching.opened("n1", 1, sealed) is None
    assert vouching.opened("n2", 0, sealed) is None
    assert vouching.opened("n1", 0, b"line") is None


# --- where an agent should be --------------------------------------------------------
ORDERS = {
    "ready": (),
    "trees": (),
    "samples": (),
    "checkpoints": (),
    "identity": ("the-one",),
    "preflight": ("i1",),
    "thaw": ("i1",),
    "release": ("i1", "the-one"),
    "kill": ("i1",),
    "cancel": ("i1",),
    "discard": ("the-one",),
}
STREAMS = {"capture": ("i1", "the-one", 1), "restore": ("i1", "the-one")}


class Agents:
    """An agent at a TCP port, which it leaves and takes again."""

    def __init__(self) -> None:
        self.node = NodeInMemory()
        self.server = HTTPServer(Application())
        self.port = 0

    def start(self) -> None:
        self.server = HTTPServer(make_application(self.node, TOKEN))
        self.take(self.server)

    def take(self, server: HTTPServer) -> None:
        (made,) = bind_sockets(self.port, "127.0.0.1")
        self.port = made.getsockname()[1]
        server.add_socket(made)

    async def stop(self) -> None:
        self.server.stop()
        await self.server.close_all_connections()


@pytest.fixture
async def agents():
    """An agent that runs."""
    made = Agents()
    made.start()
    yield made
    await made.stop()


@pytest.fixture
async def taken(agents):
    """Who takes that agent's port once it is told to; what it hears is kept."""
    HEARD.clear()
    server = HTTPServer(Application([(".*", Listens)]))

    async def take() -> None:
        await agents.stop()
        agents.take(server)

    yield take
    server.stop()
    await server.close_all_connections()


def agent_client(agents) -> AgentClient:
    address = f"http://127.0.0.1:{agents.port}"
    return AgentClient(address, TOKEN, quick=5, slow=5, silence=5)


async def ask_for_everything(client) -> None:
    """Every call of the client's; none of them may believe who answers."""
    HEARD.clear()
    for name, words in ORDERS.items():
        with pytest.raises(Unreachable):
            await getattr(client, name)(*words)
    for name, words in STREAMS.items():
        with pytest.raises(Unreachable):
            async for _ in getattr(client, name)(*words):
                pass
    assert len(HEARD) == len(ORDERS) + len(STREAMS)


async def test_impostor_of_an_agent_hears_no_token_and_no_order(agents, taken):
    await taken()
    client = agent_client(agents)
    await ask_for_everything(client)
    client.close()
    text = "".join(HEARD)
    assert TOKEN not in text
    assert "Authorization" not in text
    assert "the-one" not in text


async def test_impostor_after_the_agent_is_not_believed_and_hears_what_is_void(
    agents, taken
):
    client = agent_client(agents)
    assert await client.trees() == []
    await taken()
    await ask_for_everything(client)
    client.close()
    shown = {
        line.partition(": ")[2]
        for heard in HEARD
        for line in heard.splitlines()
        if line.startswith("Authorization")
    }
    assert len(shown) == 1
    assert TOKEN not in "".join(HEARD)
    await agents.stop()
    agents.port = 0
    agents.start()
    with httpx.Client(headers={"Authorization": shown.pop()}) as thief:
        url = f"http://127.0.0.1:{agents.port}/v1/sessions"
        answer = await asyncio.to_thread(thief.get, url)
    assert answer.status_code == 401


async def test_service_takes_up_an_agent_that_was_restarted(agents):
    client = agent_client(agents)
    place = agents.node.run(KEY, "work")
    assert len(await client.trees()) == 1
    for asks in (client.trees, client.trees):
        await agents.stop()
        agents.start()
        assert len(await asks()) == 1
    await agents.stop()
    agents.start()
    events = [e async for e in client.capture(place.incarnation, "c1", 1)]
    assert events[-1].checkpoint.id == "c1"
    client.close()


class RepeatsAnAgent(RequestHandler):
    """Answers with what the agent has once said to somebody, proof and all."""

    said: dict[str, tuple[int, bytes, str]] = {}  # noqa: RUF012

    def prepare(self) -> None:
        status, body, proof = self.said[self.request.path]
        self.set_status(status)
        self.set_header(PROOF, proof)
        self.finish(body)


async def test_answer_that_the_agent_gave_before_is_not_believed_again(agents):
    """Anybody may say hello, and keep what is answered."""
    url = f"http://127.0.0.1:{agents.port}"
    with httpx.Client(headers={NONCE: "mine"}) as thief:
        for path in ("/v1/hello", "/readyz"):
            answer = await asyncio.to_thread(thief.get, url + path)
            proved = (answer.status_code, answer.content, answer.headers[PROOF])
            RepeatsAnAgent.said[path] = proved
    await agents.stop()
    server = HTTPServer(Application([(".*", RepeatsAnAgent)]))
    agents.take(server)
    client = agent_client(agents)
    with pytest.raises(Unreachable):
        await client.ready()
    client.close()
    server.stop()
    await server.close_all_connections()
