"""Recovery of a session that hangs: it alone waits, and nobody touches it."""

import asyncio
import dataclasses
import os
import signal
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import Reservations
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.dependencies import Limits, Parts
from jupyterhub_gpu_reclaim.node.operations import trees
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.operations import Operations
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from jupyterhub_gpu_reclaim.node.workflows import recovery
from jupyterhub_gpu_reclaim.node.workflows.recovery import _CRIU_WORDS
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support import gpu
from tests.support.agent import goes_on, wait_for

#: One of its programs is a CRIU that does not end, as far as recovery can tell.
HANGS = f"""
{sys.executable} -I -S -c 'import time; time.sleep(1000)' {" ".join(_CRIU_WORDS)} &
while :; do echo x; sleep 0.05; done
"""


@pytest.fixture
def parts(folder):
    if os.geteuid() != 0:
        pytest.skip("needs root: sessions have namespaces")
    (folder / "ports").mkdir()
    (folder / "ports" / "sysctl").write_text("\n")
    clock = SystemClock()
    return Parts(
        placements=LocalPlacements(folder.name),
        records=Records(folder / "records"),
        store=Repository(FolderBackend(folder / "store"), clock=clock, keys=KEYS),
        tool=None,
        ports=Reservations(folder / "ports", sysctl=folder / "ports" / "sysctl"),
        client=None,
        clock=clock,
        limits=Limits(criu=4.0),
        work=folder,
        accelerator=Accelerator(gpu.AbsentDriver(), Nvml(), lock_seconds=1, seconds=1),
        memory=HostMemory(),
    )


async def test_recovery_of_one_that_hangs_delays_no_other(parts, places, counter):
    hung = places("start", "sh", "-c", HANGS, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: hung.output.stat().st_size)
    for place in (hung, counter):
        parts.records.save(captured_in_part(place))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    operations = Operations()

    await recovery.recover(parts, operations, patience=0.5)

    assert goes_on(counter)
    assert parts.records.find(counter.incarnation).stage is Stage.FAILED
    running = operations.running(hung.incarnation)
    assert running.kind == trees.RECOVER
    with pytest.raises(Refused) as refused:
        operations.attach(hung.incarnation, "capture", "cp")
    assert refused.value.reason is Reason.OPERATION_IN_FLIGHT
    assert tree_of(parts, hung, operations).state is TreeState.CAPTURING

    await running.wait()
    assert tree_of(parts, hung, operations).state is TreeState.RUNNING
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


async def test_session_stays_busy_until_the_store_answers(parts, counter, monkeypatch):
    """Nobody may call it running while it is stopped, and its fate is not known."""
    monkeypatch.setattr(recovery, "_FIRST_PAUSE", 0.05)
    store = StoreThatIsAway(parts.store)
    parts = dataclasses.replace(parts, store=store)
    parts.records.save(captured_in_part(counter))
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    operations = Operations()

    await recovery.recover(parts, operations, patience=0.3)

    assert tree_of(parts, counter, operations).state is TreeState.CAPTURING
    assert all(process.stopped for process in counter.tree.processes)
    store.back = True
    await operations.running(counter.incarnation).wait(10)
    assert tree_of(parts, counter, operations).state is TreeState.RUNNING
    assert parts.records.find(counter.incarnation).stage is Stage.FAILED
    assert goes_on(counter)


async def test_store_that_was_away_is_swept_when_it_is_back(parts, monkeypatch):
    """What a writer that died has left would lie there until the next start."""
    monkeypatch.setattr(recovery, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(recovery, "_SWEEP_SECONDS", 0.05)
    remains = parts.work / "store" / "packs" / "dead" / "00000000"
    remains.parent.mkdir(parents=True)
    remains.write_bytes(b"remains")
    store = StoreThatIsAway(parts.store)

    await recovery.recover(
        dataclasses.replace(parts, store=store), Operations(), patience=0.1
    )

    assert remains.exists()
    store.back = True
    async with asyncio.timeout(10):
        while remains.exists():
            await asyncio.sleep(0.01)


def captured_in_part(place) -> Record:
    return Record(
        operation="capture",
        incarnation=place.incarnation,
        key=SessionKey("ann"),
        stage=Stage.CAPTURING,
        checkpoint="cp",
        init_pid=place.init_pid,
        init_start=place.init_start,
        begun=0.0,
    )


def tree_of(parts, place, operations):
    session = parts.placements.find(place.incarnation)
    record = parts.records.find(place.incarnation)
    return trees.tree_of(session, record, operations.last(place.incarnation))
