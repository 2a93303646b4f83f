"""A real Hub, the real KubeSpawner and the real service, on the cluster's double."""

import itertools

import pytest

from demo.stack import free_port
from tests.kube.conftest import MODEL
from tests.support.cluster import NAMESPACE
from tests.support.elsewhere import (
    Elsewhere,
    phase,
    reclaim,
    wait,
)
from tests.support.hub import HubUnderTest, proxy_command
from tests.support.nodes import (
    AGENT_PORT,
    SERVER_PORT,
    TOKEN,
    Node,
    agents_certificate,
)

_numbers = itertools.count(1)

CONFIG = """
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.port = {port}
c.KubeSpawner.image = "quay.io/jupyter/base:latest"
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.volumes = [
    {{"name": "home", "persistentVolumeClaim": {{"claimName": "{{pvc_name}}"}}}}
]
c.KubeSpawner.volume_mounts = [{{"name": "home", "mountPath": "/home/jovyan"}}]
c.KubeSpawner.extra_containers = [{{"name": "side", "image": "busybox"}}]
c.KubeSpawner.profile_list = [{{
    "display_name": "GPU", "slug": "gpu", "default": True,
    "kubespawner_override": {{"extra_resource_limits": {{"nvidia.com/gpu": "1"}}}},
}}]
c.KubeSpawner.modify_pod_hook = lambda spawner, pod: (
    pod.metadata.labels.update({{"of-the-admin": "yes"}}) or pod
)
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 1, "slow_stop_timeout": 1}}
from jupyterhub_gpu_reclaim.hub.config import configure
c.JupyterHub.load_roles.append({{
    "name": "tests-reclaim",
    "services": ["tests"],
    "scopes": ["custom:gpu-reclaim:manage", "access:services!service=gpu-reclaim"],
}})
configure(
    c,
    placement="kubernetes",
    agent_token_file="{folder}/token",
    state_dir="{folder}/service",
    service_port={service_port},
    idle_after=0,
    sample_interval=0.5,
    kubeconfig="{folder}/service.kubeconfig",
    namespace={namespace!r},
    agent_ca_file={agent_ca_file!r},
    agent_port={agent_port},
)
"""


@pytest.fixture(scope="module")
def elsewhere():
    elsewhere = Elsewhere()
    elsewhere.cluster.gpus = 16  # most of the tests leave a session
    for name in ("one", "two"):
        elsewhere.do(Node, elsewhere.cluster, name, {MODEL: "NVIDIA-H200"})
    yield elsewhere
    elsewhere.close()


@pytest.fixture(scope="module")
def hub(elsewhere, tmp_path_factory):
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    folder = tmp_path_factory.mktemp("hub")
    (folder / "token").write_text(TOKEN)
    for who in ("service", "hub"):
        text = elsewhere.cluster.kubeconfig(who)
        (folder / f"{who}.kubeconfig").write_text(text)
    hub = HubUnderTest(
        folder,
        CONFIG.format(
            folder=folder,
            namespace=NAMESPACE,
            port=SERVER_PORT,
            agent_port=AGENT_PORT,
            agent_ca_file=str(agents_certificate()),
            service_port=free_port(),
        ),
        env={"KUBECONFIG": str(folder / "hub.kubeconfig")},
    )
    try:
        yield hub.start()
    finally:
        hub.close()


def start(hub, user):
    hub.api("POST", f"users/{user}")
    answer = hub.api("POST", f"users/{user}/server")
    assert answer.status_code in {201, 202}, answer.text
    return wait(lambda: (s := hub.server(user)) and s["ready"] and s, hub)


@pytest.fixture
def user():
    """A new name for every try: the Hub and the cluster outlive a test that failed."""
    return f"user{next(_numbers)}"


def notebook(pod):
    return next(c for c in pod["spec"]["containers"] if c["name"] == "notebook")


def env_of(pod):
    return {e["name"]: e.get("value") for e in notebook(pod)["env"]}


def test_a_session_is_suspended_and_comes_back_on_the_other_node(hub, elsewhere, user):
    cluster = elsewhere.cluster
    first = start(hub, user)
    pod = cluster.pod(f"jupyter-{user}")
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"]["of-the-admin"] == "yes"
    assert wait(lambda: phase(hub, user) == "running", hub)
    token, node = env_of(pod)["JUPYTERHUB_API_TOKEN"], pod["spec"]["nodeName"]
    free = cluster.gpus

    for _ in range(2):
        assert reclaim(hub, "POST", f"sessions/{user}/-/suspend").ok
        wait(lambda: phase(hub, user) == "suspended", hub)
        wait(lambda: cluster.pod(f"jupyter-{user}") is None, hub)
        assert cluster.gpus == free + 1
        assert hub.server(user)["state"]["gpu_reclaim"]["phase"] == "suspended"
        for each in cluster.nodes:
            each.schedulable = each.name != node

        second = start(hub, user)
        held = cluster.pod(f"jupyter-{user}")
        assert held["metadata"]["uid"] != pod["metadata"]["uid"]
        assert held["spec"]["nodeName"] != node
        assert "@sha256:" in notebook(held)["image"]
        assert held["spec"]["nodeSelector"] == {MODEL: "NVIDIA-H200"}
        assert env_of(held)["JUPYTERHUB_API_TOKEN"] == token
        wait(lambda: phase(hub, user) == "running", hub)
        assert second["url"] == first["url"]
        pod, node = held, held["spec"]["nodeName"]
    works = [work for node in cluster.nodes for work in node.works()]
    assert len(works) == 1
    assert works[0].startswith("work of ")
    assert cluster.violations == []
    for each in cluster.nodes:
        each.schedulable = True


def test_an_agent_that_moves_in_the_middle_of_a_capture_goes_on(hub, elsewhere, user):
    cluster = elsewhere.cluster
    start(hub, user)
    wait(lambda: phase(hub, user) == "running", hub)
    name = cluster.pod(f"jupyter-{user}")["spec"]["nodeName"]
    node = next(n for n in cluster.nodes if n.name == name)
    place = next(p for p in node.places.values() if p.key.user == user)
    node.nodes.held = "dump"
    assert reclaim(hub, "POST", f"sessions/{user}/-/suspend").ok
    wait(lambda: phase(hub, user) == "suspending", hub)
    wait(lambda: place.tree.frozen, hub)  # the order has come there
    elsewhere.do(node.stop_agent)
    elsewhere.do(node.start_agent)
    node.nodes.held = ""
    wait(lambda: phase(hub, user) == "suspended", hub)
    wait(lambda: cluster.pod(f"jupyter-{user}") is None, hub)


def test_a_node_lost_before_the_release_is_named_and_what_is_saved_comes_back(
    hub, elsewhere, user
):
    cluster = elsewhere.cluster
    start(hub, user)
    wait(lambda: phase(hub, user) == "running", hub)
    pod = cluster.pod(f"jupyter-{user}")
    node = next(n for n in cluster.nodes if n.name == pod["spec"]["nodeName"])

    async def lose(*_):
        node.lost = True
        await node.silence_agent()
        raise OSError

    node.agent.release = lose
    assert reclaim(hub, "POST", f"sessions/{user}/-/suspend").ok
    wait(lambda: node.lost, hub)
    wait(lambda: not hub.server(user)["pending"], hub)
    refused = hub.api("POST", f"users/{user}/server")
    assert refused.status_code == 409
    assert f"agent on {node.name}" in refused.json()["message"]
    assert cluster.pod(f"jupyter-{user}")["metadata"]["uid"] == pod["metadata"]["uid"]
    # the cloud's controller has removed the node, and with it the pod
    node.schedulable = False
    elsewhere.do(cluster.drop, "pods", cluster.pod(f"jupyter-{user}"))
    wait(lambda: phase(hub, user) == "suspended", hub)
    start(hub, user)
    assert cluster.pod(f"jupyter-{user}")["spec"]["nodeName"] != node.name
    wait(lambda: phase(hub, user) == "running", hub)
    assert cluster.violations == []
    del node.agent.release
    node.lost, node.schedulable = False, True
    elsewhere.do(node.stop_agent)
    elsewhere.do(node.start_agent)
