"""What we rely on in the double of an API server and in a real one.

``KUBECONFIG=… pytest -m cluster tests/contracts/test_api_server.py`` asks that of any
cluster, as an administrator. It needs no node there.
"""

import asyncio
import contextlib
import os
import uuid
from types import SimpleNamespace

import msgspec
import pytest
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.exceptions import ApiException

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.service.clients.kubernetes import GRACE_SECONDS, Api
from tests.support.cluster import Cluster

KINDS = ["double", pytest.param("real", marks=pytest.mark.cluster)]


@pytest.fixture(params=KINDS)
async def server(request, tmp_path):
    """The service's client, the library's own, and a namespace."""
    if request.param == "real" and "cluster" not in request.config.option.markexpr:
        pytest.skip("needs a cluster: pytest -m cluster")
    double, file = Cluster(), os.environ.get("KUBECONFIG", "")
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    if request.param == "double":
        double.open()
        file = str(tmp_path / "kubeconfig")
        (tmp_path / "kubeconfig").write_text(double.kubeconfig("admin"))
    settings = client.Configuration()
    await config.load_kube_config(config_file=file, client_configuration=settings)
    api = await Api.open(file)
    async with client.ApiClient(settings) as library:
        core = client.CoreV1Api(library)
        if request.param == "real":
            await core.create_namespace({"metadata": {"name": namespace}})
            async with asyncio.timeout(30):
                while not await accounts(core, namespace):
                    await asyncio.sleep(0.1)
        yield SimpleNamespace(api=api, core=core, namespace=namespace)
        if request.param == "real":
            await core.delete_namespace(namespace)
    await api.close()
    await double.close()


async def accounts(core, namespace):
    """A pod is refused until its namespace has its account."""
    listed = await core.list_namespaced_service_account(namespace)
    return listed.items


def pod(name, *, node=None, label="yes"):
    container = {"name": "c", "image": "registry.example.org/none:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"contract": label}},
        "spec": {"containers": [container], "nodeName": node},
    }


async def made(server, *args, **more):
    body = pod(*args, **more)
    await server.core.create_namespaced_pod(server.namespace, body)
    [found] = [p for p in await listed(server) if p.metadata.name == args[0]]
    return found


async def listed(server, selector="contract"):
    return (await server.api.pods(server.namespace, selector)).items


@contextlib.asynccontextmanager
async def watched(server, selector="contract"):
    """Calls for what comes next: its kind and the pod."""
    version = (await server.api.pods(server.namespace, selector)).metadata
    events = server.api.watch(server.namespace, selector, version.resource_version)

    async def next_one():
        async with asyncio.timeout(10):
            while (event := await anext(events))[0] == "BOOKMARK":
                pass
        return event

    yield next_one
    await events.aclose()


async def test_pod_that_is_made_is_told_after_the_version_of_a_list(server):
    async with watched(server) as tell:
        await made(server, "ann")
        kind, told = await tell()
        assert (kind, told.metadata.name) == ("ADDED", "ann")


async def test_pod_without_the_label_is_neither_listed_nor_told(server):
    async with watched(server, "contract=yes") as tell:
        body = pod("bob", label="no")
        await server.core.create_namespaced_pod(server.namespace, body)
        await made(server, "ann")
        assert (await tell())[1].metadata.name == "ann"
    assert [p.metadata.name for p in await listed(server, "contract=yes")] == ["ann"]


async def test_pod_of_that_name_is_made_once(server):
    await made(server, "ann")
    with pytest.raises(ApiException) as caught:
        await server.core.create_namespaced_pod(server.namespace, pod("ann"))
    assert caught.value.status == 409


async def test_another_pod_of_the_same_name_is_not_deleted(server):
    one = await made(server, "ann", node="gone")
    meta = msgspec.structs.replace(one.metadata, uid=str(uuid.uuid4()))
    await server.api.delete(msgspec.structs.replace(one, metadata=meta))
    [left] = await listed(server)
    assert not left.metadata.deletion_timestamp


async def test_pod_of_no_node_is_gone_at_once(server):
    one = await made(server, "ann")
    async with watched(server) as tell:
        await server.api.delete(one)
        kind, told = await tell()
        while kind == "MODIFIED":
            kind, told = await tell()
        assert (kind, told.metadata.uid) == ("DELETED", one.uid)
    await server.api.delete(one)  # a missing one is fine


async def test_pod_of_a_node_stays_until_that_has_ended_it(server):
    one = await made(server, "ann", node="gone")
    async with watched(server) as tell:
        await server.api.delete(one)
        kind, told = await tell()
        assert kind == "MODIFIED"
        assert told.metadata.deletion_timestamp
        [left] = await listed(server)
        raw = await server.core.read_namespaced_pod("ann", server.namespace)
        assert raw.metadata.deletion_grace_period_seconds == GRACE_SECONDS
        options = client.V1DeleteOptions(grace_period_seconds=0)  # as the kubelet does
        await server.core.delete_namespaced_pod(
            left.metadata.name, server.namespace, body=options
        )
        while (answer := await tell())[0] == "MODIFIED":
            pass
        assert (answer[0], answer[1].metadata.uid) == ("DELETED", one.uid)
    assert await listed(server) == []


async def test_list_in_pieces_has_each_pod_once(server, monkeypatch):
    monkeypatch.setattr("jupyterhub_gpu_reclaim.service.clients.kubernetes.PAGE", 2)
    names = [f"ann-{n}" for n in range(5)]
    for name in names:
        await server.core.create_namespaced_pod(server.namespace, pod(name))
    assert [p.metadata.name for p in await listed(server)] == names


async def test_node_that_is_not_there_is_not_found(server):
    with pytest.raises(NotFound):
        await server.api.node("gone")
