"""The nearest real thing on one machine: everything real but the API server.

A Hub with KubeSpawner, the service, an agent with CRIU and a store, and pods that are
containers of runc, named as a kubelet names them.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from demo.stack import free_port
from tests.support.agent import Agent, criu_folder
from tests.support.cluster import NAMESPACE
from tests.support.containers import PLACEMENT, PORT
from tests.support.elsewhere import (
    SERVICE_OF_A_CLUSTER,
    Elsewhere,
    phase,
    reclaim,
    suspended,
    wait,
)
from tests.support.hub import HubUnderTest, proxy_command
from tests.support.long_stories import but
from tests.support.nodes import agents_certificate
from tests.support.real_node import RealNode

#: An address of this machine that containers reach by their default route.
HUB_IP = f"10.214.{secrets.randbelow(250)}.{secrets.randbelow(250) + 1}"
CONFIG = """
c.JupyterHub.hub_bind_url = "http://{ip}:{hub_port}"
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.port = {port}
c.KubeSpawner.image = "quay.io/jupyter/base:latest"
c.KubeSpawner.notebook_dir = "/home/ann"
c.KubeSpawner.args = ["--allow-root"]
c.Spawner.environment.update({{
    "PATH": "{bin}:/usr/bin:/bin", "HOME": "/home/ann", "SHELL": "/bin/bash",
}})
c.SessionPodSpawner.session_python = "{python}"
c.SessionPodSpawner.realm = "{realm}"
c.Spawner.poll_interval = 1
"""
CONFIG += SERVICE_OF_A_CLUSTER


@pytest.fixture
def folder():
    if shutil.which("runc") is None:
        pytest.skip("needs runc: apt-get install runc")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    path = Path(tempfile.mkdtemp(prefix="grk-", dir="/tmp"))
    address = ("ip", "addr", "add", f"{HUB_IP}/32", "dev", "lo")
    subprocess.run(address, check=True)
    yield path
    subprocess.run([*address[:2], "del", *address[3:]], check=False)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def elsewhere(folder):
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.close()


@pytest.fixture
def agent(folder, elsewhere):
    address = f"127.88.{secrets.randbelow(250)}.{secrets.randbelow(250) + 1}"
    port = free_port()
    made = Agent(folder, criu_folder())
    made.listen = f"{address}:{port}"
    shown = f"--AgentApp.certificate={agents_certificate()}"
    made.start(PLACEMENT, shown, wait=False)
    elsewhere.do(RealNode, elsewhere.cluster, folder, (address, port))
    yield port
    made.kill()
    print(made.log.read_text()[-3000:])


@pytest.fixture
def hub(folder, elsewhere, agent):
    for who in ("service", "hub"):
        text = elsewhere.cluster.kubeconfig(who)
        (folder / f"{who}.kubeconfig").write_text(text)
    config = CONFIG.format(
        folder=folder,
        realm=folder.name,
        namespace=NAMESPACE,
        port=PORT,
        ip=HUB_IP,
        hub_port=free_port(),
        agent_port=agent,
        agent_ca_file=str(agents_certificate()),
        service_port=free_port(),
        bin=Path(sys.executable).parent,
        python=sys.executable,
    )
    environment = {"KUBECONFIG": str(folder / "hub.kubeconfig")}
    hub = HubUnderTest(folder, config, env=environment)
    try:
        yield hub.start()
    finally:
        hub.close()


@pytest.mark.parametrize("times", but([1, 2], 1))
def test_a_kernel_goes_on_in_another_pod(hub, elsewhere, times):
    user = hub.user("ada")
    user.start_server()
    kernel = user.server().start_kernel()
    with kernel:
        kernel.run("import os; x = [1, 2]; pid = os.getpid()")
    first = elsewhere.cluster.pod("jupyter-ada")
    for _ in range(times):
        wait(lambda: phase(hub, "ada") == "running", hub)
        assert reclaim(hub, "POST", "sessions/ada/-/suspend").ok
        suspended(hub, "ada")
        wait(lambda: elsewhere.cluster.pod("jupyter-ada") is None, hub)
        user.start_server()
        with kernel:
            assert kernel.run("x.append(3); print(os.getpid() == pid)").text == "True\n"
    with kernel:
        assert kernel.run("print(x)").text == f"{[1, 2, *[3] * times]}\n"
    second = elsewhere.cluster.pod("jupyter-ada")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["status"]["podIP"] != first["status"]["podIP"]
    assert elsewhere.cluster.violations == []
