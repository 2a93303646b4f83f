"""DockerSpawner with the session's init, without a Hub and without containers."""

from types import SimpleNamespace

import pytest
from dockerspawner import DockerSpawner
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.docker.spawner import (
    ReclaimDockerSpawner,
    SessionContainerSpawner,
)
from jupyterhub_gpu_reclaim.hub.spawner.placement import Launch
from jupyterhub_gpu_reclaim.hub.spawner.state import (
    KEY,
    Location,
    Pointer,
    PointerPhase,
)
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.support import docker_api

ANNS = "a" * 64


def made(**settings) -> ReclaimDockerSpawner:
    settings = {"remove": False, "cmd": "lab", **settings}
    made = ReclaimDockerSpawner(
        config=Config({"DockerSpawner": settings}),
        hub=SimpleNamespace(base_url="/hub/", api_url="http://hub", public_host=""),
        user=SimpleNamespace(
            name="ann", id=1, url="/user/ann/", escaped_name="ann", settings={}
        ),
        oauth_client_id="unused",
    )
    made.orm_spawner = None
    made.get_env = dict
    made.reclaim_launch = Launch(incarnation="inc-1")
    return made


def labels(incarnation="inc-0", user="ann", server="", realm=""):
    return command_line.labels(InitArguments(incarnation, user, server, realm))


@pytest.fixture(autouse=True)
def _no_client_of_another_test(monkeypatch):
    monkeypatch.setattr(DockerSpawner, "_client", None)
    monkeypatch.setattr(ReclaimDockerSpawner, "_client", None)


@pytest.fixture
def away(monkeypatch):
    """A machine whose Docker is being restarted."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")


@pytest.fixture
def docker(monkeypatch):
    server = docker_api.serving()
    api = next(server)
    monkeypatch.setenv("DOCKER_HOST", api.url)
    yield api
    next(server, None)


@pytest.fixture
def host():
    """A spawner of the host's network, which asks Docker for no address."""
    return made(network_name="host")


def test_containers_are_always_removed_whatever_is_configured():
    spawner = made()
    assert spawner.remove is True
    assert spawner.will_resume is False


def load(spawner, phase=PointerPhase.RUNNING, **more):
    location = Location(pod=ANNS, name="jupyter-ann")
    pointer = Pointer(phase=phase, location=location, **more)
    spawner.load_state({KEY: pointer.to_state()})


@pytest.mark.parametrize("suspended", [False, True])
async def test_container_of_dockerspawner_itself_goes_on_and_can_be_stopped(
    docker, suspended
):
    """Also one that was started while ours was out, beside a suspended session."""
    spawner = made()
    saved = {KEY: Pointer(phase=PointerPhase.UNKNOWN).to_state()} if suspended else {}
    container = docker.add("jupyter-ann", {})
    spawner.load_state({**saved, "object_id": container})
    assert await spawner.poll() is None
    assert not spawner.reclaim_suspended
    await spawner.stop()
    assert docker.find(container) is None
    assert await spawner.poll() is not None


@pytest.mark.usefixtures("away")
async def test_docker_that_does_not_answer_ends_no_session():
    spawner = made()
    load(spawner)
    assert spawner.reclaim_alive()
    assert await spawner.poll() is None
    assert spawner.object_id == ANNS


@pytest.mark.usefixtures("away")
async def test_start_without_docker_is_refused_with_a_reason():
    with pytest.raises(Unreachable) as caught:
        await SessionContainerSpawner.start(made())
    assert caught.value.reason is Reason.DOCKER_SILENT


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize(
    "ask",
    [
        lambda spawner: spawner.reclaim_find("inc-0"),
        lambda spawner: spawner.reclaim_token(),
        lambda spawner: spawner.reclaim_where(8888),
        lambda spawner: spawner.reclaim_end(),
    ],
    ids=["find", "token", "where", "end"],
)
async def test_every_question_to_a_docker_that_is_away_says_so(ask):
    spawner = made()
    load(spawner)
    with pytest.raises(Unreachable) as caught:
        await ask(spawner)
    assert caught.value.reason is Reason.DOCKER_SILENT


@pytest.mark.usefixtures("away")
async def test_session_out_of_sight_runs_as_long_as_docker_is_away():
    spawner = made()
    pointer = Pointer(phase=PointerPhase.RUNNING, incarnation="inc-0")
    spawner.load_state({KEY: pointer.to_state()})
    assert await spawner.poll() is None


async def test_docker_with_an_error_of_its_own_ends_no_session(docker):
    spawner = made()
    load(spawner)
    docker.failing = True
    assert await spawner.poll() is None
    assert spawner.object_id == ANNS


async def test_renamed_container_is_still_the_session(docker):
    spawner = made()
    identity = docker.add("jupyter-ann", labels("inc-1"))
    spawner.reclaim_take(Location(pod=identity, name="jupyter-ann"))
    docker.containers[0]["Name"] = "/mine"
    assert await spawner.poll() is None
    assert spawner.object_id == identity


@pytest.mark.parametrize(
    ("others", "realm"),
    [
        (labels(user="bob"), ""),
        (labels(server="gpu"), ""),
        (labels(realm="teaching"), "research"),
        ({}, ""),
        (labels(), ""),
    ],
    ids=["user", "server", "hub", "plain DockerSpawner", "forgotten"],
)
async def test_start_ends_no_container_that_has_the_name_already(
    docker, host, others, realm
):
    host.realm = realm
    docker.add("jupyter-ann", others)
    with pytest.raises(Refused) as caught:
        await SessionContainerSpawner.start(host)
    assert caught.value.reason is Reason.PLACE_REFUSED
    assert "jupyter-ann" in caught.value.message
    await host.reclaim_end()  # as the lifecycle cleans up
    assert docker.names() == ["jupyter-ann"]
    assert await host.poll() == 0


async def test_stopped_container_of_another_hub_is_not_removed(docker, host):
    docker.add("jupyter-ann", labels(realm="teaching"), running=False)
    with pytest.raises(Refused):
        await SessionContainerSpawner.start(host)
    assert docker.names() == ["jupyter-ann"]


async def test_what_a_former_start_has_left_is_removed(docker, host):
    former = docker.add("jupyter-ann", labels(), running=False)
    await SessionContainerSpawner.start(host)
    assert docker.names() == ["jupyter-ann"]
    assert docker.find("jupyter-ann")["Id"] == host.object_id
    assert former not in {one["Id"] for one in docker.containers if one["Created"]}
    await host.reclaim_end()
    assert docker.names() == []


async def test_container_is_found_by_who_made_it_and_when(docker):
    spawner = made(network_name="host")
    first = docker.add("jupyter-ann", labels(), created=1)
    docker.add("of-an-image", labels(), created=2)
    docker.add("bobs", labels(user="bob"), created=0)
    found = await spawner.reclaim_find("inc-0")
    assert found == Location(pod=first, name="jupyter-ann")
    spawner.realm = "teaching"
    assert await spawner.reclaim_find("inc-0") is None


async def test_container_without_an_address_is_refused_with_a_reason(docker):
    spawner = made(network_name="lab")
    with pytest.raises(Refused) as caught:
        await SessionContainerSpawner.start(spawner)
    assert caught.value.reason is Reason.PLACE_REFUSED
    assert "lab" in caught.value.message


async def test_nothing_else_runs_in_a_place_that_waits_for_a_restore(docker, host):
    host.post_start_cmd = "echo"  # (a call that the double does not know)
    identity = Identity(api_token="t", port=8888)
    host.reclaim_launch = Launch(mode="hold", incarnation="inc-1", identity=identity)
    host.port = 8888
    assert await SessionContainerSpawner.start(host) == "http://127.0.0.1:8888"


async def test_session_comes_back_whose_image_may_not_be_chosen_any_more(docker, host):
    host.user_options = {"image": "base:june"}
    host.allowed_images = {"base:july": "base:july"}
    identity = Identity(api_token="t", port=8888)
    host.reclaim_launch = Launch(mode="hold", incarnation="inc-1", identity=identity)
    assert await SessionContainerSpawner.start(host) == "http://127.0.0.1:8888"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"volumes": {"/home/ann": "/home/jo"}}, ""),
        ({"volumes": {"/home/bo": "/home/jo"}}, "else would be mounted at /home/jo"),
        ({"read_only_volumes": {"/home/ann": "/home/jo"}}, "mounted at /home/jo"),
        ({"mounts": [{"source": "a", "target": "/a"}]}, "nothing would be mounted"),
    ],
    ids=["same", "another", "read-only", "elsewhere"],
)
async def test_session_comes_back_to_its_own_mounts_alone(docker, now, why):
    settings = {"network_name": "host", "volumes": {"/home/ann": "/home/jo"}}
    then = made(**settings)
    await SessionContainerSpawner.start(then)
    assert "/home/ann" not in str(then.reclaim_choice())
    docker.containers.clear()
    identity = Identity(api_token="t", port=8888)
    choice = then.reclaim_choice()
    host = made(**{**settings, "volumes": {}, **now})
    host.reclaim_launch = Launch(
        mode="hold", incarnation="inc-2", identity=identity, choice=choice
    )
    if not why:
        await SessionContainerSpawner.start(host)
        return
    with pytest.raises(Refused) as refused:
        await SessionContainerSpawner.start(host)
    assert refused.value.reason is Reason.PROFILE_GONE
    assert why in refused.value.message


def test_server_on_the_hosts_network_listens_on_this_machine_alone(host):
    assert host.ip == "127.0.0.1"
    assert made(network_name="lab").ip == "0.0.0.0"
    assert made(network_name="host", ip="10.0.0.1").ip == "10.0.0.1"
