"""Sessions that have ended are told of for a while, and leave nothing for ever."""

import asyncio
import random

import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.node.operations.operations import Operation, Operations
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.sessions.ended import KEPT_SECONDS, EndedSessions
from simulation.doubles.kernel import Kernel
from simulation.doubles.machine import Machine, Machines
from simulation.doubles.store import StoreInMemory
from simulation.loop import Program, run
from simulation.programs import agent_node
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ann")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def operations():
    return Operations()


@pytest.fixture
def records(tmp_path):
    made = Records(tmp_path / "records")
    made.save(
        Record(
            operation="restore",
            incarnation="inc-1",
            key=KEY,
            stage=Stage.RESTORED,
            checkpoint="cp",
            init_pid=7,
            init_start=4242,
            begun=1.0,
        )
    )
    return made


@pytest.fixture
def look(records, operations, clock):
    ended = EndedSessions(records, operations, clock)

    def names(*here: str) -> list[str]:
        told = ended.among(records.list(), set(here))
        return [record.incarnation for record in told]

    return names


def test_record_that_cannot_be_deleted_is_told_on(look, records, clock, monkeypatch):
    """Else nobody would learn of any session any more."""
    look()
    clock.advance(KEPT_SECONDS + 1)

    def fail(incarnation: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as damaged:
        damaged.setattr(records, "delete", fail)
        assert look() == ["inc-1"]
    assert look() == []


def test_record_of_a_session_that_lives_is_kept_however_old_it_is(look, records, clock):
    look("inc-1")
    clock.advance(10 * KEPT_SECONDS)
    assert look("inc-1") == []
    assert len(records.list()) == 1


def test_session_that_is_seen_again_has_its_whole_time_once_more(look, clock):
    look()
    clock.advance(KEPT_SECONDS - 1)
    look("inc-1")
    clock.advance(2)
    assert look() == ["inc-1"]


async def test_record_with_an_operation_under_way_is_kept(
    look, records, operations, clock
):
    async def undoes(operation):
        await clock.sleep(1e9)
        yield  # never comes so far

    look()
    operations.begin("inc-1", Operation("capture", KEY, "cp"), undoes)
    clock.advance(2 * KEPT_SECONDS)
    assert look() == ["inc-1"]
    assert len(records.list()) == 1


def test_node_tells_for_an_hour_that_a_session_has_ended(records):
    (record,) = records.list()
    machine = Machine("node1", 1, 0, lambda *_: None)
    machine.records[record.incarnation] = codec.encode(record)
    machines = Machines()
    machines.by_name[machine.name] = machine
    rng = random.Random(1)

    async def states() -> list[list[TreeState]]:
        kernel = Kernel(machines, rng, lambda *_: None)
        node = agent_node(machine, Program("agent"), kernel, StoreInMemory(rng))
        found = []
        for seconds in (KEPT_SECONDS / 2, KEPT_SECONDS, 0):
            found.append([tree.state for tree in await node.trees()])
            await asyncio.sleep(seconds)
        return found

    assert run(states()) == [[TreeState.GONE], [TreeState.GONE], []]
    assert machine.records == {}
