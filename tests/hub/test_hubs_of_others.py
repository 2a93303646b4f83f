"""Hubs as they are: their authenticators, roles, lists; called as in the tutorial."""

import html
import os
import re

import pytest

from demo.stack import free_port
from tests.support.hub import HubUnderTest, proxy_command, wait_until

#: The tutorial's call, on ports and folders of the test.
CALL = """
from jupyterhub_gpu_reclaim.hub.config import configure
configure(
    c,
    idle_after=30 * 60,
    min_age=10 * 60,
    cool_down=10 * 60,
    agent="unix:{folder}/agent.sock",
    agent_token_file="{folder}/agent.token",
    state_dir="{folder}/state",
    service_port={port},
)
"""
#: A spawner of its own, with ours mixed in as docs/how-to/another-spawner.md says.
OWN = """
from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner
class Own(LocalProcessSpawner):
    def get_state(self):
        return {**super().get_state(), "own": True}
class Both(Own, ReclaimLocalSpawner):
    pass
c.JupyterHub.spawner_class = Both
"""
MANAGE = "custom:gpu-reclaim:manage"


#: Lists that are assigned below the call do not take our service out again.
BELOW = """
c.JupyterHub.cleanup_servers = True
c.JupyterHub.services, c.JupyterHub.load_roles = [], []
c.JupyterHub.services.append({
    "name": "cull-idle",
    "command": ["sleep", "60", "jupyterhub_idle_culler", "--timeout=600"],
})
"""


def hubs_in(folder):
    """Starts a Hub with these lines above the tutorial's call."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    (folder / "agent.token").write_text("token-of-the-agent")
    hub = HubUnderTest(folder)

    def start(above: str = "", below: str = "") -> HubUnderTest:
        call = CALL.format(folder=folder, port=free_port())
        hub.configure(above + call + below)
        return hub.start()

    try:
        yield start
    finally:
        hub.close()


@pytest.fixture
def hub_with(tmp_path):
    """Starts a Hub of the test's own."""
    yield from hubs_in(tmp_path)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A Hub with a spawner of its own, and names that have no hyphen."""
    for start in hubs_in(tmp_path_factory.mktemp("theirs")):
        yield start(
            "c.Authenticator.username_pattern = '^[a-z]+$'\n"
            "c.JupyterHub.spawner_class = 'simple'\n",
            BELOW,
        )


def test_hub_with_a_spawner_of_its_own_is_told_on_the_page_what_helps(theirs):
    """It starts servers as it did; that none is suspended, is not left to be found out.

    Lists that are assigned below the call do not take our service out again.
    """
    hub = theirs
    wait_until(hub.service_ready, 60, hub.log)
    boss = hub.user("admin")
    page = boss.http.get(f"{hub.url}/services/gpu-reclaim/", timeout=30)
    assert page.status_code == 200
    said = html.unescape(page.text)
    assert "SimpleLocalProcessSpawner, which cannot suspend sessions" in said
    assert "cleanup_servers is True" in said
    assert "'cull-idle' ends servers by its own rules" in said


@pytest.mark.long
def test_culler_that_asks_us_ends_only_what_we_do_not_know(hub_with):
    role = {
        "name": "culler-asks",
        "services": ["cull-idle"],
        "scopes": [MANAGE, "access:services!service=gpu-reclaim"],
    }
    hub = hub_with(OWN, f"c.JupyterHub.load_roles.append({role!r})\n")
    wait_until(hub.service_ready, 60, hub.log)
    amy = hub.user("amy")
    amy.start_server()
    hook = hub.folder / "culler.py"
    address = re.search(
        r"service_port=(\d+)", (hub.folder / "jupyterhub_config.py").read_text()
    )[1]
    hook.write_text(
        "from jupyterhub_gpu_reclaim.hub.culler_hook import asking\n"
        f'c.IdleCuller.cull_arbiter_hook = asking("http://127.0.0.1:{address}")\n'
    )
    culler = ["--timeout=1", "--cull-every=1"]
    assert hub.cull(*culler, f"--config={hook}") == 0
    assert hub.server("amy")["ready"], hub.log()
    state = hub.server("amy")["state"]
    assert (state["own"], state["gpu_reclaim"]["phase"]) == (True, "running")
    assert "cannot suspend sessions" not in hub.log()
    assert hub.cull(*culler, until=lambda: not hub.server("amy")["ready"]) == 0
