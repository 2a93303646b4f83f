"""The Hubs that have to keep the contract; another joins as another agent does."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey, StartPlan, StopPlan
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.interfaces import Hub
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from simulation.doubles.network import Server, Wire
from simulation.loop import Program
from simulation.programs import HubOverWire
from tests.support.mock_hub import TOKEN, add_user, api_url
from tests.support.simulated_hub import started

#: Whom each of them knows.
ANN, BOB = SessionKey("ann"), SessionKey("bob")


class Hurried:
    """A clock for which a second of the simulation is a millisecond."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)


class LetsEverythingHappen:
    """What a Hub's spawner asks of the service: every start is cold, a stop a stop."""

    def __init__(self, seconds: float) -> None:
        self._clock, self._seconds = Hurried(), seconds

    async def plan_start(self, placement) -> StartPlan:
        await self._clock.sleep(self._seconds)
        return StartPlan(action="cold")

    async def plan_stop(self, placement) -> StopPlan:
        await self._clock.sleep(self._seconds)
        return StopPlan(action="stop")

    async def placed(self, placement) -> None: ...

    stopped = cancelled = placed


@pytest.fixture
async def real_hub(mock_hub) -> AsyncIterator[Hub]:
    for key in (ANN, BOB):
        add_user(mock_hub, key.user)
    client = HubClient(api_url(mock_hub), TOKEN)
    yield client
    client.close()


def hub_of_the_simulator(folder: Path) -> Hub:
    """A Hub of ``simulation/``, as its service reaches it; on its loop alone."""
    hub = started(folder, LetsEverythingHappen(300.0), users=(ANN.user, BOB.user))
    listens = Server(hub.program, hub)
    silence = Reason.HUB_UNREACHABLE
    wire: Any = Wire(hub.weather, Program("the service"), lambda: listens, silence)
    return HubOverWire(wire)
