"""A capture that is taken back: whatever fails on the way, its checkpoint stays."""

import asyncio
import contextlib
import os
import signal
import subprocess

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import Reservations
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.compat.gpu import GpuCard, Gpus
from jupyterhub_gpu_reclaim.node.dependencies import Limits, Parts
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.operations import Operation, Operations
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from jupyterhub_gpu_reclaim.node.workflows import capture, recovery, release
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.agent import goes_on, running_agent, wait_for

KEY = SessionKey("ann")
CARD = GpuCard(uuid="GPU-1", name="Test card")


class TakenCards:
    """Somebody else uses the memory of the cards until they are ``free``."""

    free = False

    def __init__(self) -> None:
        self.filled = 0

    def fill(self, gpus, limit, snapshot) -> None:
        if gpus is not None and not self.free:
            raise ReclaimError(
                Reason.GPU_MEMORY, card="Test card", needed="1 GiB", free="0 GiB"
            )
        self.filled += 1


class StoreWithoutDeletes:
    """A store that answers, but deletes nothing until it is ``well``."""

    well = False

    def __init__(self, store) -> None:
        self._store = store

    def delete(self, checkpoint: str) -> None:
        if not self.well:
            raise StoreError(Reason.STORE_FAILED, why="it is read-only")
        self._store.delete(checkpoint)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.fixture
def parts(folder):
    if os.geteuid() != 0:
        pytest.skip("needs root: sessions have namespaces")
    (folder / "ports").mkdir()
    (folder / "ports" / "sysctl").write_text("\n")
    clock = SystemClock()
    store = Repository(FolderBackend(folder / "store"), clock=clock, keys=KEYS)
    return Parts(
        placements=LocalPlacements(folder.name),
        records=Records(folder / "records"),
        store=StoreWithoutDeletes(store),
        tool=None,
        ports=Reservations(folder / "ports", sysctl=folder / "ports" / "sysctl"),
        client=None,
        clock=clock,
        limits=Limits(),
        work=folder,
        accelerator=TakenCards(),
        memory=HostMemory(),
    )


@pytest.fixture
def captured(parts, counter):
    """Its tree stands, its checkpoint is committed, and it has used a card."""
    return stands_as(parts, counter, Stage.CAPTURED)


def stands_as(parts, place, stage: Stage) -> Record:
    for process in place.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: all(process.stopped for process in place.tree.processes))
    commit(parts, place.incarnation)
    record = Record(
        operation="capture",
        incarnation=place.incarnation,
        key=KEY,
        stage=stage,
        checkpoint="cp",
        generation=1,
        init_pid=place.init_pid,
        init_start=place.init_start,
        begun=0.0,
        gpus=Gpus(driver="580", cards=[CARD], users=[], uses=[]),
    )
    parts.records.save(record)
    return record


def commit(parts, incarnation: str) -> None:
    writer = parts.store.begin(
        id="cp", key=KEY, incarnation=incarnation, generation=1, expected_bytes=10
    )
    writer.add("identity.json", b"{}")
    writer.commit(steps=[], frozen_seconds=0.0, timeout=30)


async def thawed(parts, record: Record) -> ReclaimError | None:
    session = parts.placements.find(record.incarnation)
    operation = Operation("thaw", KEY, "")
    try:
        async for _ in release.thaw(parts, session, operation):
            pass
    except ReclaimError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("cards_free", "code"), [(False, "gpu_memory"), (True, "store_failed")]
)
async def test_thaw_that_fails_leaves_the_tree_captured(
    parts, counter, captured, cards_free, code
):
    parts.accelerator.free = cards_free

    error = await thawed(parts, captured)

    assert error.reason.value == code
    assert parts.records.find(counter.incarnation).stage is Stage.CAPTURED
    assert parts.store.exists("cp")
    assert all(process.stopped for process in counter.tree.processes)
    assert release._committed_record(
        parts, parts.placements.find(counter.incarnation), "cp"
    )

    parts.accelerator.free = parts.store.well = True
    assert await thawed(parts, captured) is None
    assert goes_on(counter)
    assert not parts.store.exists("cp")


@pytest.mark.parametrize("stage", [Stage.THAWING, Stage.ROLLING_BACK, Stage.CAPTURED])
async def test_checkpoint_of_a_tree_that_has_died_is_kept_by_the_next_start(
    parts, counter, stage
):
    """A failed thaw, or a roll-back whose commit had won; then the machine restarts."""
    stands_as(parts, counter, stage)
    parts.store.well = True
    counter.kill()

    await recovery.recover(parts, Operations(), patience=5)

    assert parts.records.list() == []
    assert parts.store.exists("cp")


@pytest.mark.parametrize("stage", [Stage.THAWING, Stage.ROLLING_BACK])
async def test_next_start_calls_a_committed_tree_captured(parts, counter, stage):
    """Its cards are taken: neither lost nor let go on without their memory."""
    stands_as(parts, counter, stage)

    await recovery.recover(parts, Operations(), patience=5)

    assert parts.records.find(counter.incarnation).stage is Stage.CAPTURED
    assert parts.store.exists("cp")
    assert all(process.stopped for process in counter.tree.processes)


async def test_release_that_had_begun_is_finished_and_not_thawed(parts, counter):
    """Its connections may be gone: what would go on is not what was captured."""
    record = stands_as(parts, counter, Stage.RELEASING)
    parts.accelerator.free = parts.store.well = True

    error = await thawed(parts, record)
    assert isinstance(error, Refused)
    assert error.reason is Reason.WRONG_PHASE

    await recovery.recover(parts, Operations(), patience=5)
    assert not counter.alive
    assert parts.store.exists("cp")


async def test_roll_back_waits_for_its_cards_and_is_finished_by_itself(
    parts, counter, monkeypatch
):
    """Nobody has to start the agent again for a tree that could not go on at once."""
    monkeypatch.setattr(recovery, "_FIRST_PAUSE", 0.05)
    record = stands_as(parts, counter, Stage.ROLLING_BACK)
    parts.store.well = True
    parts.store.delete("cp")  # nothing was committed
    operations = Operations()
    operation = Operation("capture", KEY, "cp")
    operations.begin(record.incarnation, operation, fails)
    session = parts.placements.find(record.incarnation)
    recovery.settle_after(parts, operations, session, operation)
    await operation.wait()

    await eventually(lambda: operations.running(record.incarnation))
    parts.accelerator.free = True
    await operations.running(record.incarnation).wait(10)

    assert goes_on(counter)
    assert parts.records.find(record.incarnation).stage is Stage.FAILED


async def fails(operation: Operation):
    for event in ():
        yield event
    raise ReclaimError(Reason.GPU_MEMORY, card="x", needed="1 GiB", free="0 GiB")


async def eventually(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def full_disk(folder):
    """A file system of its own on that folder, with no room left."""
    folder.mkdir(mode=0o700, exist_ok=True)
    options = ["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder) -> None:
    with (
        contextlib.suppress(OSError),
        (folder / "ballast").open("wb", buffering=0) as file,
    ):
        while True:
            file.write(bytes(4096))


def test_full_state_folder_lets_a_captured_tree_go_on(agent_on_small_disk, counter):
    agent = agent_on_small_disk
    assert agent.capture(counter, "cp")[-1]["checkpoint"]["id"] == "cp"
    fill(agent.folder / "state")

    path = f"/v1/sessions/{counter.incarnation}"
    refused = agent.post(f"{path}/release", {"checkpoint": "cp"})
    assert refused.status_code == 507
    assert refused.json()["code"] == "state_full"
    assert all(process.stopped for process in counter.tree.processes)

    assert agent.post(f"{path}/thaw").json()["state"] == "running"
    assert goes_on(counter)


@pytest.fixture
def agent_on_small_disk(folder):
    with full_disk(folder / "state"):
        made = running_agent(folder)
        yield made
        made.kill()
        print(made.log.read_text())


class CommitHadWon:
    """A writer whose checkpoint is committed when it is asked to remove it."""

    def abort(self) -> bool:
        return False


@pytest.mark.parametrize("ended", [True, False])
async def test_roll_back_after_a_commit_that_won_keeps_what_may_be_all_that_is_left(
    parts, counter, ended
):
    """Its tree has ended meanwhile, or could not be given its GPU memory back."""
    record = stands_as(parts, counter, Stage.ROLLING_BACK)
    session = parts.placements.find(record.incarnation)
    taken_back = capture.Capture(parts, session, Operation("capture", KEY, "cp"), 1)
    taken_back._writer, taken_back._committing = CommitHadWon(), True
    taken_back._record = record
    parts.store.well = True
    if ended:
        counter.kill()

    stage = await taken_back._roll_back()

    assert stage is (Stage.CAPTURED if ended else Stage.ROLLING_BACK)
    assert parts.store.exists("cp")
    if not ended:
        assert all(process.stopped for process in counter.tree.processes)
