"""The patches of JupyterHub: applied once, and only to methods that we know."""

import logging
import os
from types import SimpleNamespace
from unittest.mock import AsyncMock

from jupyterhub import orm
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from jupyterhub_gpu_reclaim.hub import patches
from jupyterhub_gpu_reclaim.hub.spawner import kept, mixin  # noqa: F401 - applies it
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY, Pointer, PointerPhase
from tests.support.mock_hub import (
    add_user,
    configured_mockhub_instance,
    hub_app,
    mock_hub,
)

__all__ = ["configured_mockhub_instance", "hub_app", "mock_hub"]


def test_patch_is_in_place_once_a_spawner_of_ours_is_imported():
    patched = JupyterHub.cleanup_oauth_clients
    assert patches.apply()
    assert kept.apply()
    assert JupyterHub.cleanup_oauth_clients is patched
    assert patched.__wrapped__.__qualname__ == "JupyterHub.cleanup_oauth_clients"
    starts = JupyterHub.start_service
    assert starts.__wrapped__.__qualname__ == "JupyterHub.start_service"


async def test_start_keeps_the_oauth_clients_of_suspended_servers_alone(mock_hub):
    hub = mock_hub
    suspended = Pointer(phase=PointerPhase.SUSPENDED, checkpoint="c1")
    for name, pointer in (("ann", suspended), ("bob", Pointer())):
        user = add_user(hub, name)
        row_of_stopped_server(hub, user).state = {KEY: pointer.to_state()}
        hub.db.commit()
        del hub.users[user]  # as after a restart
    hub.cleanup_oauth_clients()
    left = {client.identifier for client in hub.db.query(orm.OAuthClient)}
    assert left == {"jupyterhub", "jupyterhub-user-ann"}


def row_of_stopped_server(hub, user) -> orm.Spawner:
    """With an OAuth client, as each server has that ran once."""
    spawner = user.spawners[""]
    client = hub.oauth_provider.add_client(
        client_id=spawner.oauth_client_id,
        client_secret="secret",
        redirect_uri=f"{user.url}oauth_callback",
    )
    spawner.orm_spawner.oauth_client = client
    return spawner.orm_spawner


class Hub:
    def __init__(self) -> None:
        self.log, self.config = logging.getLogger("JupyterHub"), Config()

    async def start_service(self, service_name, service, ssl_context=None):
        return False


def our_service(start):
    """As the Hub makes it of the configuration; its process is this one."""
    return SimpleNamespace(
        url="",
        managed=True,
        environment={},
        log=logging.getLogger("JupyterHub"),
        spawner=SimpleNamespace(pid=os.getpid(), poll=None, start_polling=lambda: None),
        start=start,
    )


async def test_service_of_ours_that_does_not_start_is_started_again(caplog):
    begun = []

    async def start():
        begun.append(True)
        if len(begun) == 1:
            raise OSError("no memory for a process")

    assert patches.apply(Hub)
    service = our_service(start)
    assert await Hub().start_service("gpu-reclaim", service)
    await service.gpu_reclaim_starting
    assert len(begun) == 2
    assert "cannot start the service" in caplog.text
    assert not await Hub().start_service("another", SimpleNamespace(timeout=5))


async def test_self_check_that_fails_does_not_keep_a_hub_from_starting(
    monkeypatch, caplog
):
    def look(hub, environment):
        raise PermissionError("/etc/jupyter")

    assert patches.apply(Hub)
    monkeypatch.setattr(patches.self_check, "look", look)
    service = our_service(AsyncMock())
    assert await Hub().start_service("gpu-reclaim", service)
    await service.gpu_reclaim_starting
    assert "the self-check failed" in caplog.text


def test_unknown_hub_is_left_alone_with_a_warning(caplog):
    class NewHub:
        def cleanup_oauth_clients(self, dry_run):
            """Other arguments than those we know."""

    class NewerHub:
        pass

    before = NewHub.cleanup_oauth_clients
    with caplog.at_level(logging.WARNING, logger="JupyterHub"):
        assert not kept.apply(NewHub)
        assert not kept.apply(NewerHub)
        assert not patches.apply(NewerHub)
    assert NewHub.cleanup_oauth_clients is before
    assert "logs browsers out" in caplog.text
