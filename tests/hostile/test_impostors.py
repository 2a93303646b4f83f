"""Somebody who listens where the service should, while it is away."""

from __future__ import annotations

import json

import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.clients.service import ServiceClient
from jupyterhub_gpu_reclaim.errors import Unreachable
from jupyterhub_gpu_reclaim.models import (
    Identity,
    Placement,
    SessionKey,
    StartPlan,
)
from jupyterhub_gpu_reclaim.vouching import NONCE, PROOF, Vouching
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
        self.finish(json.dumps(answer))


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
