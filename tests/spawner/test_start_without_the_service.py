"""A start while the service does not answer: what may be there is not replaced."""

import asyncio
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    HubState,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.known_servers import KnownServers
from tests.support.simulated_hub import run, started

ANN = SessionKey("ann")


class Away:
    """A service that plans cold starts and real stops, until it is killed."""

    def __init__(self) -> None:
        self.away = False

    async def plan_start(self, placement: object) -> StartPlan:
        self._answer()
        return StartPlan(action="cold")

    async def plan_stop(self, placement: object) -> StopPlan:
        self._answer()
        return StopPlan(action="stop")

    async def placed(self, placement: object) -> None:
        self._answer()

    stopped = cancelled = placed

    def _answer(self) -> None:
        if self.away:
            raise Unreachable(Reason.SERVICE_UNREACHABLE, detail="it was killed")


def test_session_of_a_database_that_is_put_back_is_not_started_beside_what_runs(
    tmp_path: Path,
) -> None:
    service = Away()

    async def visit() -> None:
        hub = started(tmp_path, service, users=["ann"])
        backup = hub.database.copy()
        await hub.start(ANN)
        (before,) = hub.machines.of_session(ANN)
        hub.database.put_back(backup)
        hub.spawners.clear()  # as a Hub that has just been started
        service.away = True
        with pytest.raises(Refused) as refused:
            await hub.start(ANN)
        assert "suspended, or may be" in str(refused.value)
        assert hub.machines.of_session(ANN) == [before]

    run(visit())


def test_server_that_was_stopped_starts_without_the_service(tmp_path: Path) -> None:
    service = Away()

    async def visit() -> None:
        hub = started(tmp_path, service, users=["ann"])
        backup = hub.database.copy()
        await hub.start(ANN)
        await hub.stop(ANN)
        while await hub.server(ANN) is not HubState.STOPPED:
            await asyncio.sleep(1.0)
        hub.database.put_back(backup)
        hub.spawners.clear()
        service.away = True
        await hub.start(ANN)
        assert len(hub.machines.of_session(ANN)) == 1

    run(visit())


def test_server_that_was_deleted_is_not_remembered(tmp_path: Path) -> None:
    known = KnownServers(tmp_path)

    async def delete() -> None:
        hub = started(tmp_path, Away(), users=["ann"])
        await hub.start(ANN)
        assert known.has(ANN)
        await hub.stop(ANN)
        while await hub.server(ANN) is not HubState.STOPPED:
            await asyncio.sleep(1.0)
        known.add(ANN, "s1")
        known.add(ANN, "")
        known.add(ANN, "s2")
        assert known.sessions(ANN) == ("s1", "s2")
        assert await hub.delete(ANN)
        assert not known.has(ANN)
        assert known.sessions(ANN) == ()

    run(delete())


def test_folder_that_cannot_be_written_keeps_no_server_from_starting(
    tmp_path: Path,
) -> None:
    (tmp_path / "servers").write_text("not a folder")

    async def visit() -> None:
        hub = started(tmp_path, Away(), users=["ann"])
        await hub.start(ANN)
        assert len(hub.machines.of_session(ANN)) == 1

    run(visit())


class StartsUp(Away):
    """A service that plans a start, and then is being started for a minute."""

    async def placed(self, placement: object) -> None:
        raise Unreachable(Reason.SERVICE_STARTING)


def test_new_session_is_not_ended_because_the_service_does_not_hear_of_it(
    tmp_path: Path,
) -> None:
    """Its place took nearly as long to be made as a start may take."""

    async def visit() -> None:
        hub = started(tmp_path, StartsUp(), users=["ann"])
        machine_for = hub.machine_for

        async def when_there_is_room(key: SessionKey) -> object:
            await asyncio.sleep(290.0)
            return await machine_for(key)

        hub.machine_for = when_there_is_room  # type: ignore[assignment]
        await hub.start(ANN)
        await asyncio.sleep(400.0)
        assert await hub.server(ANN) is HubState.RUNNING
        assert len(hub.machines.of_session(ANN)) == 1

    run(visit())
