"""Fixtures: a real Hub with our spawner on the relaunching service (see support/)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.hub import HubUnderTest
from tests.support.relaunching_service import RelaunchingService


@pytest.fixture
def service(tmp_path):
    """The service's double."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    with RelaunchingService(tmp_path) as double:
        yield double


@pytest.fixture
def hub(tmp_path, service):
    """A Hub that runs, with ReclaimLocalSpawner and our templates."""
    hub = HubUnderTest(tmp_path, service.config)
    try:
        yield hub.start()
    finally:
        hub.close()
