"""Sessions in Docker's networks: each return has another address.

With a network of its own the Hub reaches a container by its address there, with
Docker's default network by a published port of the machine. The machine's network is
one that the test has made for itself (``tests/support/network.py``).
"""

import pytest

from tests.support.docker import agent_beside, daemon, hub_beside, own_folder, suspend
from tests.support.elsewhere import phase, wait

pytestmark = [pytest.mark.timeout(400), pytest.mark.root]

#: Of the default network, and of the one that is made.
GATEWAYS = {"bridge": "10.214.0.1", "sessions": "10.214.1.1"}
#: The Hub listens where containers reach it.
CONFIG = """
hub = c.JupyterHub.hub_bind_url.rpartition(":")[2]
c.JupyterHub.hub_bind_url = f"http://0.0.0.0:{{hub}}"
c.JupyterHub.hub_connect_url = f"http://{gateway}:{{hub}}"
c.DockerSpawner.network_name = {name!r}
"""

folder = pytest.fixture(own_folder)
agent = pytest.fixture(agent_beside)


@pytest.fixture
def docker(folder, network):
    for docker in daemon(folder, ("--bip=10.214.0.1/24",)):
        if network != "bridge":
            space = {"Subnet": "10.214.1.0/24", "Gateway": GATEWAYS[network]}
            made = docker.ask(
                "POST",
                "/networks/create",
                json={"Name": network, "IPAM": {"Config": [space]}},
            )
            assert made.is_success, made.text
        yield docker


@pytest.fixture
def hub(folder, agent, network):
    config = CONFIG.format(gateway=GATEWAYS[network], name=network)
    yield from hub_beside(folder, agent, config)


def address(docker, network):
    return docker.of("ann")["NetworkSettings"]["Networks"][network]["IPAddress"]


def published(docker):
    ports = docker.of("ann")["NetworkSettings"]["Ports"]
    return [one["HostPort"] for port in ports.values() for one in port or ()]


@pytest.mark.parametrize("network", GATEWAYS)
def test_session_comes_back_at_another_address(hub, docker, network):
    ann = hub.user("ann")
    ann.start_server()
    kernel = ann.server().start_kernel()
    with kernel:
        kernel.run("import os; x, pid = 42, os.getpid()")
    others = []
    for again in range(3):
        wait(lambda: phase(hub, "ann") == "running", hub)
        before = address(docker, network)
        assert bool(published(docker)) == (network == "bridge")
        suspend(hub, docker)
        others.append(docker.run_beside(network, "sleep", "600"))  # has its address
        if again:
            hub.restart()
            wait(hub.service_ready, hub)
        ann.start_server()
        with kernel:
            told = kernel.run("print(x, pid == os.getpid())")
        assert told.text.strip() == "42 True"
        assert address(docker, network) != before
    for other in others:
        docker.remove(other)
    hub.stop_server("ann")
    assert docker.containers() == []
