"""A real Hub, service, agent and dockerd: a session moves between containers."""

import contextlib

import pytest

from demo.user import UserError
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from tests.support.docker import (
    ROOT,
    agent_beside,
    daemon,
    hub_beside,
    options,
    own_folder,
    packed,
    suspend,
)
from tests.support.elsewhere import phase, reclaim, suspended, wait

CONFIG = """
c.DockerSpawner.network_name = "host"
c.DockerSpawner.extra_create_kwargs = {"volumes": ["/scratch"]}
"""

ORPHAN_GRACE = Settings().orphan_grace

pytestmark = [pytest.mark.timeout(240), pytest.mark.root]


folder = pytest.fixture(own_folder, scope="module")
docker = pytest.fixture(daemon, scope="module")
agent = pytest.fixture(agent_beside, scope="module")


@pytest.fixture(scope="module")
def hub(folder, agent):
    yield from hub_beside(folder, agent, CONFIG)


@pytest.fixture(scope="module")
def ann(hub, docker):
    ann = hub.user("ann")
    ann.start_server()
    ann.kernel = ann.server().start_kernel()
    with ann.kernel as kernel:
        kernel.run("import os; x, pid = 42, os.getpid()")
        kernel.run("open('/srv/mine', 'w').write('in the root')")
    wait(lambda: phase(hub, "ann") == "running", hub)
    return ann


def is_whole(ann):
    """Whether memory, process and root are what they were."""
    with ann.kernel as kernel:
        told = kernel.run("print(x, pid == os.getpid(), open('/srv/mine').read())")
    return told.text.strip() == "42 True in the root"


def test_session_comes_back_in_a_new_container_of_the_same_image(hub, docker, ann):
    first = docker.of("ann")
    for _ in range(2):
        suspend(hub, docker)
        # its tag moves on; the session comes back in what it was saved in
        docker.tag(packed(("etc/other", b"")))
        ann.start_server()
        second = docker.of("ann")
        assert second["Id"] != first["Id"]
        assert second["Image"] == first["Image"]
        assert second["HostConfig"]["Binds"] == first["HostConfig"]["Binds"]
        assert is_whole(ann)
        wait(lambda: phase(hub, "ann") == "running", hub)
    docker.tag(ROOT)


def test_files_in_a_volume_that_ends_with_the_container_keep_it_awake(hub, docker, ann):
    before = docker.of("ann")["Id"]
    with ann.kernel as kernel:
        kernel.run("file = open('/scratch/mine', 'w')")
    reclaim(hub, "POST", "sessions/ann/-/suspend")
    wait(lambda: "/scratch would be lost" in said(hub, "ann"), hub)
    wait(lambda: phase(hub, "ann") == "running", hub)
    assert docker.of("ann")["Id"] == before
    with ann.kernel as kernel:
        kernel.run("file.close(); os.unlink('/scratch/mine')")
    assert is_whole(ann)


def said(hub, user):
    return str(reclaim(hub, "GET", f"sessions/{user}/-").json())


def test_killed_hub_finds_the_session_again(hub, docker, ann):
    before = docker.of("ann")["Id"]
    hub.restart()
    wait(hub.service_ready, hub)
    wait(lambda: (s := hub.server("ann")) and s["ready"], hub)
    assert docker.of("ann")["Id"] == before
    assert is_whole(ann)


def test_session_suspended_before_the_hub_was_killed_comes_back(hub, docker, ann):
    wait(lambda: phase(hub, "ann") == "running", hub)
    suspend(hub, docker)
    hub.restart()
    wait(hub.service_ready, hub)
    ann.start_server()
    assert is_whole(ann)


def test_agent_and_docker_that_are_started_anew_know_the_session(
    hub, docker, agent, ann
):
    wait(lambda: phase(hub, "ann") == "running", hub)
    docker.stop()
    agent.terminate()
    agent.start(*options(docker))
    seen = agent.get("/v1/sessions").json()
    assert [tree["key"]["user"] for tree in seen] == ["ann"]  # by its record
    docker.start()
    assert is_whole(ann)
    suspend(hub, docker)
    ann.start_server()
    assert is_whole(ann)


def start_at_last(hub, user):
    """Where the Hub has seen the end, its container has the name for a while yet."""

    def is_started():
        with contextlib.suppress(UserError):
            user.start_server()
            return True
        return False

    wait(is_started, hub, ORPHAN_GRACE + 60)


def test_container_that_is_started_again_has_ended_and_what_is_kept_is_offered(
    hub, docker, ann
):
    """Its init holds a place for nothing then, and Docker says that it runs."""
    ann.kernel = ann.server().start_kernel()
    with ann.kernel as kernel:
        kernel.run("import os; x, pid = 42, os.getpid()")
    wait(lambda: phase(hub, "ann") == "running", hub)
    suspend(hub, docker)
    ann.start_server()
    wait(lambda: phase(hub, "ann") == "running", hub)
    container = docker.of("ann")["Id"]
    again = docker.ask("POST", f"/containers/{container}/restart?t=1")
    assert again.is_success, again.text
    wait(lambda: phase(hub, "ann") == "suspended", hub)
    assert "ended soon after it came back; its checkpoint is kept" in said(hub, "ann")
    start_at_last(hub, ann)
    assert docker.of("ann")["Id"] != container
    with ann.kernel as kernel:
        assert kernel.run("print(x, pid == os.getpid())").text.strip() == "42 True"


def test_container_of_a_fresh_session_that_is_started_again_begins_it_anew(hub, docker):
    bob = hub.user("bob")
    bob.start_server()
    bob.server().start_kernel()
    wait(lambda: phase(hub, "bob") == "running", hub)
    container = docker.of("bob")["Id"]
    assert docker.ask("POST", f"/containers/{container}/restart?t=1").is_success

    def answers_anew():
        with contextlib.suppress(UserError):
            return bob.server().json("GET", "kernels") == []
        return not hub.server("bob")["ready"]  # it has looked in between

    wait(answers_anew, hub)
    start_at_last(hub, bob)
    bob.kernel = bob.server().start_kernel()
    with bob.kernel as kernel:
        kernel.run("x = 41")
    assert reclaim(hub, "POST", "sessions/bob/-/suspend").ok
    suspended(hub, "bob", 60)
    bob.start_server()
    with bob.kernel as kernel:
        assert kernel.run("print(x + 1)").text.strip() == "42"
    wait(lambda: phase(hub, "bob") == "running", hub)
    hub.stop_server("bob")


def test_image_that_was_removed_is_named_and_the_session_kept(hub, docker, ann):
    wait(lambda: phase(hub, "ann") == "running", hub)
    image = docker.of("ann")["Image"]
    suspend(hub, docker)
    docker.tag(packed(("etc/other", b"")))
    assert docker.ask("DELETE", f"/images/{image}").is_success
    refused = hub.api("POST", "users/ann/server")
    assert refused.status_code == 409
    assert f"No such image: {image}" in refused.json()["message"]
    assert phase(hub, "ann") == "suspended"
