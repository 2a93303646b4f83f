"""DockerSpawner with the session's init, without a Hub and without Docker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import requests
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common.errors import Unreachable
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

ANNS = "a" * 64


class WithoutDocker(ReclaimDockerSpawner):
    """On a machine whose Docker is being restarted."""

    async def docker(self, method, *args, **kwargs):
        raise requests.ConnectionError("No such file or directory")


def made(cls: type[ReclaimDockerSpawner]) -> ReclaimDockerSpawner:
    settings = {"remove": False, "cmd": "lab"}
    made = cls(
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


@pytest.fixture
def spawner():
    return made(WithoutDocker)


def test_containers_are_always_removed_whatever_is_configured(spawner):
    assert spawner.remove is True
    assert spawner.will_resume is False


async def test_docker_that_does_not_answer_ends_no_session(spawner):
    pointer = Pointer(
        phase=PointerPhase.RUNNING, location=Location(pod=ANNS, name="jupyter-ann")
    )
    spawner.load_state({KEY: pointer.to_state()})
    assert spawner.reclaim_alive()
    assert await spawner.poll() is None
    assert spawner.object_id == ANNS


async def test_start_without_docker_is_refused_with_a_reason(spawner):
    with pytest.raises(Unreachable) as caught:
        await SessionContainerSpawner.start(spawner)
    assert caught.value.reason is Reason.DOCKER_SILENT


async def test_first_start_of_a_hub_without_docker_says_that_it_does_not_answer(
    monkeypatch,
):
    """The first call makes the client, which fails in a way of its own."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(Unreachable) as caught:
        await SessionContainerSpawner.start(made(ReclaimDockerSpawner))
    assert caught.value.reason is Reason.DOCKER_SILENT
