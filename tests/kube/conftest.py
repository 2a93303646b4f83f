"""A cluster of two nodes on 127.0.0.1, and the service's side of it."""

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey
from jupyterhub_gpu_reclaim.hub.kube.pod import prepared
from jupyterhub_gpu_reclaim.hub.spawner.placement import Purpose
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.clients.agent_router import AgentRouter
from jupyterhub_gpu_reclaim.service.clients.agents import Agents
from jupyterhub_gpu_reclaim.service.clients.informer import Informer
from jupyterhub_gpu_reclaim.service.clients.kubernetes import Api
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.kube.schemas import as_json
from tests.kube.test_pod import a_pod
from tests.support.cluster import NAMESPACE, Cluster
from tests.support.nodes import (
    AGENT_LABELS,
    AGENT_NAME,
    AGENT_PORT,
    TOKEN,
    Node,
    agents_certificate,
)

MODEL = "nvidia.com/gpu.product"
ADA = SessionKey("ada")


async def until(condition, seconds: float = 10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {condition}")


def _connect(ip: str) -> AgentClient:
    address, ca_file = f"https://{AGENT_NAME}:{AGENT_PORT}", str(agents_certificate())
    return AgentClient(
        address, TOKEN, ca_file=ca_file, at=ip, quick=2, slow=5, silence=5
    )


class Service:
    def __init__(self, api: Api, *, node_labels=(MODEL,)) -> None:
        clock = SystemClock()
        self.api = api
        self.sessions = Informer(api, clock, namespace=NAMESPACE, selector=INCARNATION)
        labels = ",".join(f"{name}={value}" for name, value in AGENT_LABELS.items())
        self.agents = Informer(api, clock, namespace=NAMESPACE, selector=labels)
        self.fleet = AgentRouter(
            api,
            sessions=self.sessions,
            agents=Agents(self.agents, _connect),
            node_labels=node_labels,
        )

    async def knows(self, condition) -> None:
        await until(lambda: self._known(condition))

    def _known(self, condition) -> bool:
        try:
            return bool(condition(self.sessions.now()) and self.agents.now())
        except Exception:
            return False


@pytest.fixture
async def cluster():
    cluster = Cluster()
    cluster.open()
    Node(cluster, "one", {MODEL: "NVIDIA-H200"})
    Node(cluster, "two", {MODEL: "NVIDIA-H200"})
    try:
        yield cluster
    finally:
        await cluster.close()
    assert cluster.violations == []


@asynccontextmanager
async def service_of(cluster: Cluster, folder: Path, user: str = "service"):
    file = folder / f"kubeconfig-{user}"
    file.write_text(cluster.kubeconfig(user))
    api = await Api.open(str(file))
    service = Service(api)
    service.fleet.start()
    try:
        yield service
    finally:
        await service.fleet.stop()
        await api.close()


@pytest.fixture
async def service(cluster, tmp_path):
    async with service_of(cluster, tmp_path) as service:
        await service.knows(lambda pods: True)
        yield service


def session_pod(cluster: Cluster, key: SessionKey = ADA, mode="start", **more):
    """Have a session's pod made, as the spawner would; the pod as it is then."""
    incarnation = more.pop("incarnation", "a" * 32)
    name = f"jupyter-{key.user}{'--' + key.server if key.server else ''}"
    options = more.pop("options", {})
    held = mode == "hold"
    init = InitArguments(incarnation, key.user, key.server, "", holding=held)
    saved = Identity(api_token="saved", port=1) if held else None
    purpose = Purpose(init=init, saved=saved)
    pod = as_json(prepared(a_pod(name=name, **options), purpose))
    pod["metadata"]["namespace"] = NAMESPACE
    pod["status"] = {"phase": "Pending"}
    cluster.put("pods", pod)
    cluster.schedule(pod)
    return cluster.pod(name)
