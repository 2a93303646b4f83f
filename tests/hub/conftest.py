"""Fixtures: one real Hub with our spawner on the relaunching service (see support/).

The Hub is shared by a module's tests, so every test takes a person of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.hub import HubUnderTest, proxy_command
from tests.support.relaunching_service import RelaunchingService

CONFIG = """
c.Spawner.poll_interval = 1
async def form(spawner):
    return "<input name=size>" if spawner.user.name.startswith("picky") else ""
c.Spawner.options_form = form
"""
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory):
    """The service's double."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    with RelaunchingService(tmp_path_factory.mktemp("hub")) as double:
        yield double


@pytest.fixture(scope="module")
def shared_hub(shared_service):
    """A Hub that runs, with ReclaimLocalSpawner and our templates."""
    hub = HubUnderTest(shared_service.folder, shared_service.config + CONFIG)
    try:
        yield hub.start()
    finally:
        hub.close()


@pytest.fixture
def service(shared_service):
    """The double, with nothing set and nothing remembered."""
    shared_service.reset()
    yield shared_service
    shared_service.hold_restore.set()
    shared_service.hold_release.set()


@pytest.fixture
def hub(shared_hub, service):
    """The Hub; started again where a test has left it dead."""
    if shared_hub.process is None:
        shared_hub.start()
    return shared_hub


@pytest.fixture
def name():
    """A user's name that no other test has."""
    return f"amy{next(NUMBERS)}"


@pytest.fixture
def amy(hub, service, name):
    """A person whose server runs."""
    amy = hub.user(name)
    amy.start_server()
    yield amy
    with contextlib.suppress(LookupError):  # quicker than an orderly stop
        os.kill(service.init(name), signal.SIGKILL)


@pytest.fixture
def suspended(hub, service, amy):
    """The same person; the server is suspended."""
    service.capture(amy.name)
    hub.stop_server(amy.name)
    assert hub.server(amy.name)["state"]["gpu_reclaim"]["phase"] == "suspended"
    return amy
