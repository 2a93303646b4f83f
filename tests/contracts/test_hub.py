"""What every Hub must do, run on JupyterHub itself and on the simulator's."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import HubState, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.contracts.hubs import ANN, BOB, hub_of_the_simulator, real_hub
from tests.support.mock_hub import configured_mockhub_instance, hub_app, mock_hub
from tests.support.simulated_hub import run

__all__ = ["configured_mockhub_instance", "hub_app", "mock_hub", "real_hub"]

LAB = SessionKey("ann", "lab")


@pytest.fixture
def hub(real_hub):
    return real_hub


async def reaches(hub, key: SessionKey, state: HubState) -> None:
    now = asyncio.get_running_loop().time
    until = now() + 20
    while await hub.server(key) is not state:
        assert now() < until, f"{key} is {await hub.server(key)}"
        await asyncio.sleep(0.02)


async def running(hub, key: SessionKey = ANN) -> None:
    await hub.start(key)
    await reaches(hub, key, HubState.RUNNING)


async def refusal(order) -> Refused:
    with pytest.raises(Refused) as caught:
        await order
    return caught.value


async def test_server_that_does_not_run_is_stopped_and_a_stop_of_it_is_fine(hub):
    for key in (ANN, LAB, SessionKey("nobody")):
        assert await hub.server(key) is HubState.STOPPED
    assert await hub.servers() == {}
    for key in (ANN, LAB):  # of a user that is not known, JupyterHub 5 fails
        await hub.stop(key)
    assert await hub.servers() == {}


async def test_start_goes_through_spawning_to_running_and_repeated_changes_nothing(hub):
    first = asyncio.create_task(hub.start(ANN))
    await reaches(hub, ANN, HubState.SPAWNING)
    assert await hub.servers() == {ANN: HubState.SPAWNING}
    await hub.start(ANN)
    await first
    await reaches(hub, ANN, HubState.RUNNING)
    assert await hub.servers() == {ANN: HubState.RUNNING}
    await hub.start(ANN)
    assert await hub.servers() == {ANN: HubState.RUNNING}


async def test_stop_goes_through_stopping_to_stopped_and_refuses_a_start(hub):
    """Servers of the same user and of others are not touched."""
    for key in (ANN, LAB, BOB):
        await running(hub, key)
    others = {LAB: HubState.RUNNING, BOB: HubState.RUNNING}
    stopping = asyncio.create_task(hub.stop(ANN))
    await reaches(hub, ANN, HubState.STOPPING)
    assert await hub.servers() == {ANN: HubState.STOPPING, **others}
    refused = await refusal(hub.start(ANN))
    assert (refused.reason, refused.retryable) == (Reason.OPERATION_IN_FLIGHT, True)
    await hub.stop(ANN)
    await stopping
    await reaches(hub, ANN, HubState.STOPPED)
    assert await hub.servers() == others
    await running(hub)


async def test_stop_while_it_starts_gives_the_start_up(hub):
    starting = asyncio.create_task(hub.start(ANN))
    await reaches(hub, ANN, HubState.SPAWNING)
    await hub.stop(ANN)
    await reaches(hub, ANN, HubState.STOPPED)
    await asyncio.wait({starting})
    assert await hub.servers() == {}
    await running(hub)


async def test_jupyterhub_takes_a_start_that_it_cancels_for_a_running_server(real_hub):
    """Nobody may go by that; the simulator shows it to the code that could."""
    starting = asyncio.create_task(real_hub.start(ANN))
    await reaches(real_hub, ANN, HubState.SPAWNING)
    stopping = asyncio.create_task(real_hub.stop(ANN))
    await reaches(real_hub, ANN, HubState.RUNNING)
    refused = await refusal(starting)
    assert (refused.reason, refused.retryable) == (Reason.OPERATION_IN_FLIGHT, True)
    await stopping
    await reaches(real_hub, ANN, HubState.STOPPED)


#: All of the above.
CLAUSES = [each for name, each in list(globals().items()) if name.startswith("test_")]


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_hub_of_the_simulator_keeps_the_contract(
    clause: Callable[[Any], Coroutine[Any, Any, None]], tmp_path: Path
):
    async def kept() -> None:
        await clause(hub_of_the_simulator(tmp_path))

    run(kept())
