"""Recovery of a session that hangs: it alone waits, and nobody touches it."""

import asyncio
import dataclasses
import os
import signal
import socket
import sys

import msgspec
import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port
from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import recovery as recovery_module
from jupyterhub_gpu_reclaim.node.workflows.recovery import _CRIU_WORDS
from tests.support.agent import goes_on, wait_for

#: One of its programs is a CRIU that does not end, as far as recovery can tell.
HANGS = f"""
{sys.executable} -I -S -c 'import time; time.sleep(1000)' {" ".join(_CRIU_WORDS)} &
while :; do echo x; sleep 0.05; done
"""


async def test_recovery_of_one_that_hangs_delays_no_other(recovery, places, counter):
    hung = places("start", "sh", "-c", HANGS, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: hung.output.stat().st_size)
    for place in (hung, counter):
        recovery.tools.records.save(captured_in_part(place))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    operations = recovery.operations

    await recovery.recover(patience=0.5)

    assert goes_on(counter)
    assert recovery.tools.records.find(counter.incarnation).stage is Stage.FAILED
    running = operations.running(hung.incarnation)
    assert running.kind == trees.RECOVER
    with pytest.raises(Refused) as refused:
        operations.attach(hung.incarnation, "capture", "cp")
    assert refused.value.reason is Reason.OPERATION_IN_FLIGHT
    assert tree_of(recovery, hung, operations).state is TreeState.CAPTURING

    await running.wait()
    assert tree_of(recovery, hung, operations).state is TreeState.RUNNING
    assert goes_on(hung)
    assert operations.attach(hung.incarnation, "capture", "cp") is None


class StoreThatIsAway:
    """A store that does not answer until it is ``back``."""

    back = False

    def __init__(self, store) -> None:
        self._store = store

    def __getattr__(self, name):
        if not self.back:
            raise StoreError(Reason.STORE_FAILED, why="it does not answer")
        return getattr(self._store, name)


async def test_session_stays_busy_until_the_store_answers(
    recovery, counter, monkeypatch
):
    """Nobody may call it running while it is stopped, and its fate is not known."""
    monkeypatch.setattr(recovery_module, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(recovery_module, "_SWEEP_SECONDS", 0.05)
    store = StoreThatIsAway(recovery.tools.store)
    recovery = with_tools(recovery, store=store)
    recovery.tools.records.save(captured_in_part(counter))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    operations = recovery.operations

    await recovery.recover(patience=0.3)

    assert tree_of(recovery, counter, operations).state is TreeState.CAPTURING
    assert all(process.stopped for process in counter.tree.processes)
    store.back = True
    await operations.running(counter.incarnation).wait(60)
    assert tree_of(recovery, counter, operations).state is TreeState.RUNNING
    assert recovery.tools.records.find(counter.incarnation).stage is Stage.FAILED
    assert goes_on(counter)


async def test_store_that_was_away_is_swept_when_it_is_back(
    folder, recovery, monkeypatch
):
    """What a writer that died has left would lie there until the next start."""
    monkeypatch.setattr(recovery_module, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(recovery_module, "_SWEEP_SECONDS", 0.05)
    remains = folder / "store" / "packs" / "dead" / "00000000"
    remains.parent.mkdir(parents=True)
    remains.write_bytes(b"remains")
    store = StoreThatIsAway(recovery.tools.store)

    await with_tools(recovery, store=store).recover(patience=0.1)

    assert remains.exists()
    store.back = True
    async with asyncio.timeout(60):
        while remains.exists():
            await asyncio.sleep(0.01)


class CardThatIsStuck:
    """An accelerator whose driver gives nothing back until it is ``free``."""

    free = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def fill(self, *_):
        self.asked.set()
        if not self.free:
            raise ReclaimError(Reason.GPU_STUCK, pid=1, name="python", detail="no")


async def test_what_has_gone_on_from_a_checkpoint_is_not_ended_for_it(
    recovery, counter, monkeypatch
):
    """An agent dies after its session went on, and the driver fails for the next one.

    What the session has done since then is nowhere but in it.
    """
    monkeypatch.setattr(recovery_module, "_FIRST_PAUSE", 0.05)
    card = CardThatIsStuck()
    recovery = with_tools(recovery, accelerator=card)
    records = recovery.tools.records
    records.save(in_the_middle(counter, "restore", Stage.CONTINUING))

    await recovery.recover(patience=0.3)

    assert card.asked.is_set()
    assert goes_on(counter)
    assert records.find(counter.incarnation).stage is Stage.CONTINUING
    card.free = True
    await recovery.operations.running(counter.incarnation).wait(60)
    assert records.find(counter.incarnation).stage is Stage.RESTORED
    assert goes_on(counter)


async def test_what_has_not_gone_on_yet_ends_for_another_attempt(recovery, counter):
    recovery = with_tools(recovery, accelerator=CardThatIsStuck())
    records = recovery.tools.records
    records.save(in_the_middle(counter, "restore", Stage.CONTINUING))
    while not all(process.stopped for process in counter.tree.processes):
        for process in counter.tree.processes:  # one may have begun another meanwhile
            os.kill(process.pid, signal.SIGSTOP)

    await recovery.recover(patience=5)

    wait_for(lambda: not counter.alive)  # an init ends with what it has started


def out_of_reach():
    raise StoreError(Reason.STORE_UNREACHABLE, why="it does not answer")


@pytest.mark.parametrize("stage", [Stage.CONTINUING, Stage.RESTORED])
async def test_what_came_back_as_its_agent_died_has_its_ports_itself(
    recovery, counter, stage, monkeypatch
):
    """A holder of the next agent would take datagrams from it, or call them taken."""
    monkeypatch.setattr(recovery.tools.store, "sweep", out_of_reach)
    recovery.tools.records.save(in_the_middle(counter, "restore", stage))
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = Port("udp", one.getsockname()[1], "127.0.0.1", shared=True)
    ports = recovery.tools.ports
    ports.hold("cp", "ann", [port])

    await recovery.recover(patience=5)

    assert recovery.tools.records.find(counter.incarnation).stage is Stage.RESTORED
    assert ports.checkpoints() == []


class NodeWithoutItsEngine:
    """Placements whose engine is away: it tells of sessions that have a record."""

    def __init__(self, placements) -> None:
        self._placements = placements
        self.hints = {}

    def list(self):
        raise Unreachable(Reason.DOCKER_SILENT, detail="it is being restarted")

    def find(self, incarnation, pod=""):
        assert incarnation in self.hints
        return self._placements.find(incarnation, pod)

    def set_hint(self, incarnation, hint):
        self.hints[incarnation] = hint


async def test_engine_that_is_away_keeps_no_recorded_session_frozen(recovery, counter):
    placements = NodeWithoutItsEngine(recovery.placements)
    recovery = dataclasses.replace(recovery, placements=placements)
    record = captured_in_part(counter)
    hint = PodHint(pod="a" * 64, key=SessionKey("ann"), image="sha256:1")
    recovery.tools.records.save(msgspec.structs.replace(record, hint=hint))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)

    await recovery.recover(patience=5)

    assert goes_on(counter)
    # without its image, a capture now could come back over another one
    assert placements.hints == {counter.incarnation: hint}


def captured_in_part(place) -> Record:
    return in_the_middle(place, "capture", Stage.CAPTURING)


def in_the_middle(place, operation, stage) -> Record:
    return Record(
        operation=operation,
        incarnation=place.incarnation,
        key=SessionKey("ann"),
        stage=stage,
        checkpoint="cp",
        init_pid=place.init_pid,
        init_start=place.init_start,
        begun=0.0,
    )


def with_tools(recovery, **changes):
    tools = dataclasses.replace(recovery.tools, **changes)
    return dataclasses.replace(recovery, tools=tools)


def tree_of(recovery, place, operations):
    session = recovery.placements.find(place.incarnation)
    record = recovery.tools.records.find(place.incarnation)
    return trees.tree_of(session, record, operations.last(place.incarnation))
