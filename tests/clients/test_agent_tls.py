"""Agents of a cluster: one name in all certificates, whatever the address is."""

import ssl

import pytest

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME as NAME
from tests.support.certificates import certificate
from tests.support.served import served
from tests.support.simulated_node import TOKEN, simulated_nodes


@pytest.fixture
async def agent(tmp_path, request):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    hours = -1.0 if "expired" in request.node.name else 1.0
    context.load_cert_chain(certificate(tmp_path, NAME, hours=hours))
    with simulated_nodes() as nodes:
        node = nodes.add()
        node.run(SessionKey("ada"), incarnation="i1")
        made = make_application(node.agent, TOKEN)
        async with served(made, ssl_options=context) as port:
            yield port


async def answer(port, name, ca_file, at="127.0.0.1"):
    address = f"https://{name}:{port}"
    client = AgentClient(
        address, TOKEN, ca_file=str(ca_file), at=at, quick=5, silence=5
    )
    try:
        events = [event async for event in client.follow("i1", orders.Capture("c1", 1))]
        return await client.trees(), events
    finally:
        client.close()


async def test_the_one_name_is_vouched_for_at_any_address(agent, tmp_path):
    trees, events = await answer(agent, NAME, tmp_path / f"{NAME}.pem")
    assert trees[0].incarnation == "i1"
    assert events[-1].checkpoint.id == "c1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["capture", "trees"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("another name", "hostname mismatch"),
        ("another authority", "self-signed certificate"),
        ("expired", "certificate has expired"),
    ],
)
async def test_who_cannot_prove_to_be_an_agent_gets_no_token_and_is_told_why(
    agent, tmp_path, fault, words, call
):
    """It is no silence, which might pass by itself."""
    own = tmp_path / f"{NAME}.pem"
    name = "somebody" if fault == "another name" else NAME
    ca = certificate(tmp_path, "other") if fault == "another authority" else own
    address = f"https://{name}:{agent}"
    client = AgentClient(address, TOKEN, ca_file=str(ca), at="127.0.0.1", quick=5)
    calls = {
        "trees": client.trees,
        "capture": lambda: anext(client.follow("i1", orders.Capture("c1", 1))),
    }
    try:
        with pytest.raises(Unreachable) as refused:
            await calls[call]()
    finally:
        client.close()
    assert refused.value.reason is Reason.AGENT_UNTRUSTED
    assert f"certificate is refused: {words}" in refused.value.message
