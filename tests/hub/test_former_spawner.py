"""A Hub that takes our spawner up, lays it down and takes it up again, with two users.

Sessions are real processes; what saves them is the double (``relaunching_service.py``).
"""

import pytest
import requests

from demo.processes import alive
from tests.hub.conftest import SERVICE, SERVICE_TOKEN
from tests.support.hub import HubUnderTest, wait_until

OURS = "\nc.JupyterHub.spawner_class = 'gpu-reclaim-local'\n"
FORMER = """
import os
from jupyterhub.spawner import SimpleLocalProcessSpawner
class Former(SimpleLocalProcessSpawner):
    def get_args(self):
        return ["--allow-root"]
    def get_env(self):
        return {**os.environ, **super().get_env()}
c.JupyterHub.spawner_class = Former
c.SimpleLocalProcessSpawner.home_dir_template = os.path.join(FOLDER, "homes/{username}")
"""


def pid_of(hub, user):
    return hub.server(user)["state"]["pid"]


def begin(hub, user):
    hub.api("POST", f"users/{user}")
    hub.start_server(user)


@pytest.fixture
def hubs(own_service):
    folder = own_service.folder
    common = f"\nFOLDER = {str(folder)!r}\n{SERVICE}c.Spawner.poll_interval = 1\n"
    hub = HubUnderTest(folder, common + FORMER)

    def switch(ours):
        if hub.process is not None:
            hub.terminate()
        hub.configure(
            (own_service.config if ours else "") + common + (OURS if ours else FORMER)
        )
        return hub.start()

    hub.switch = switch
    try:
        yield hub
    finally:
        hub.close()


@pytest.mark.long
def test_former_spawners_servers_go_on_and_can_be_stopped(hubs, own_service):
    hub = hubs.switch(ours=False)
    for user in ("ann", "bob"):
        begin(hub, user)
    pids = {user: pid_of(hub, user) for user in ("ann", "bob")}
    hub = hubs.switch(ours=True)
    wait_until(lambda: hub.server("ann")["ready"] and hub.server("bob")["ready"], 30)
    assert {user: pid_of(hub, user) for user in pids} == pids
    hub.stop_server("ann")
    wait_until(lambda: not alive(pids["ann"]), 30, hub.log)
    assert alive(pids["bob"])
    hub.stop_server("bob")
    wait_until(lambda: not alive(pids["bob"]), 30, hub.log)
    begin(hub, "ann")  # now a session of ours
    assert own_service.init("ann")
    hub.stop_server("ann")


@pytest.mark.long
def test_suspended_session_is_found_after_the_package_was_away(hubs, own_service):
    hub = hubs.switch(ours=True)
    for user in ("ann", "bob"):
        begin(hub, user)
    own_service.suspend(hub, "ann")
    running = own_service.init("bob")
    hub = hubs.switch(ours=False)
    hub.comes_up("bob")
    assert alive(running)
    begin(hub, "ann")  # cold: the former spawner knows of nothing
    beside = pid_of(hub, "ann")
    hub = hubs.switch(ours=True)
    hub.comes_up("ann")
    assert alive(beside)
    ours = {"Authorization": f"token {SERVICE_TOKEN}"}  # it is suspended, we believe
    address = f"{hub.url}/hub/api/users/ann/server"
    assert requests.delete(address, headers=ours, timeout=30).status_code == 409
    assert alive(beside)
    hub.stop_server("ann")
    wait_until(lambda: not alive(beside), 30, hub.log)
    restores = own_service.called("placed")
    begin(hub, "ann")
    assert own_service.called("placed") == restores + 1
    assert not own_service.saved or own_service.init("ann")
    for user in ("ann", "bob"):
        hub.stop_server(user)
