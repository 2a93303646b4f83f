"""A capture that is taken back: whatever fails on the way, its checkpoint stays."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess

import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations import checkpoint_files
from jupyterhub_gpu_reclaim.node.operations.card_room import CardRoom
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.records import Record, Stage
from jupyterhub_gpu_reclaim.node.requirements import (
    GpuCard,
    Gpus,
    GpuUse,
    HostRequirements,
    rights_of,
    this_machine,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import capture, nap
from tests.node.test_nap_workflow import tools_of
from tests.support.agent import goes_on, running_agent, wait_for

KEY = SessionKey("ann")
CARD = GpuCard(uuid="GPU-1", name="Test card")


class TakenCards:
    """Somebody else uses the memory of the cards until they are ``free``."""

    free = False
    room = CardRoom()

    def __init__(self) -> None:
        self.filled = 0

    def fill(self, gpus, limit, snapshot, *_) -> None:
        if gpus is not None and not self.free:
            raise ReclaimError(
                Reason.GPU_MEMORY, card="Test card", needed="1 GiB", free="0 GiB"
            )
        self.filled += 1

    def release(self, claim) -> None:
        pass


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
def recovery(recovery):
    return dataclasses.replace(
        recovery,
        tools=dataclasses.replace(
            recovery.tools,
            store=StoreWithoutDeletes(recovery.tools.store),
            accelerator=TakenCards(),
        ),
    )


@pytest.fixture
def captured(recovery, counter):
    """Its tree stands, its checkpoint is committed, and it has used a card."""
    return stands_as(recovery, counter, Stage.CAPTURED)


def stands_as(recovery, place, stage: Stage) -> Record:
    for process in place.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: all(process.stopped for process in place.tree.processes))
    commit(recovery, place.incarnation)
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
    recovery.tools.records.save(record)
    return record


def commit(recovery, incarnation: str) -> None:
    writer = recovery.tools.store.begin(
        id="cp", key=KEY, incarnation=incarnation, generation=1, expected_bytes=10
    )
    identity = Identity(api_token="token", port=0)
    writer.add(checkpoint_files.IDENTITY, codec.encode(identity))
    world = HostRequirements(
        machine=this_machine(),
        root=1,
        server=1,
        uid=0,
        pids=[1],
        rights=rights_of([]),
    )
    writer.add(checkpoint_files.WORLD, codec.encode(world))
    writer.commit(steps=[], frozen_seconds=0.0, timeout=30)


async def thawed(recovery, record: Record) -> ReclaimError | None:
    session = recovery.placements.find(record.incarnation)
    operation = Operation("thaw", KEY, "")
    try:
        await recovery.releases.thaw(session, operation)
    except ReclaimError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("cards_free", "code"), [(False, "gpu_memory"), (True, "store_failed")]
)
async def test_thaw_that_fails_leaves_the_tree_captured(
    recovery, counter, captured, cards_free, code
):
    recovery.tools.accelerator.free = cards_free

    error = await thawed(recovery, captured)

    assert error.reason.value == code
    assert recovery.tools.records.find(counter.incarnation).stage is Stage.CAPTURED
    assert recovery.tools.store.exists("cp")
    assert all(process.stopped for process in counter.tree.processes)
    assert recovery.releases._committed(
        recovery.placements.find(counter.incarnation), "cp"
    )

    recovery.tools.accelerator.free = recovery.tools.store.well = True
    assert await thawed(recovery, captured) is None
    assert goes_on(counter)
    assert not recovery.tools.store.exists("cp")


async def test_checkpoint_of_a_tree_that_dies_as_it_is_thawed_is_kept(
    recovery, counter, captured
):
    """Its GPU memory comes back into host memory, and there is not enough of that."""
    recovery.tools.store.well = True
    recovery.tools.accelerator.fill = lambda *_: counter.kill()
    assert await thawed(recovery, captured) is not None
    assert recovery.tools.store.exists("cp")


@pytest.mark.parametrize("stage", [Stage.ROLLING_BACK, Stage.CAPTURED])
async def test_checkpoint_of_a_tree_that_has_died_is_kept_by_the_next_start(
    recovery, counter, stage
):
    """A failed thaw, or a roll-back whose commit had won; then the machine restarts."""
    stands_as(recovery, counter, stage)
    recovery.tools.store.well = True
    counter.kill()

    await recovery.recover(patience=5)

    assert recovery.tools.records.list() == []
    assert recovery.tools.store.exists("cp")


async def test_next_start_calls_a_committed_tree_captured(recovery, counter):
    """Its cards are taken: neither lost nor let go on without their memory."""
    stands_as(recovery, counter, Stage.ROLLING_BACK)

    await recovery.recover(patience=5)

    assert recovery.tools.records.find(counter.incarnation).stage is Stage.CAPTURED
    assert recovery.tools.store.exists("cp")
    assert all(process.stopped for process in counter.tree.processes)


async def test_release_that_had_begun_is_finished_and_not_thawed(recovery, counter):
    """Its connections may be gone: what would go on is not what was captured."""
    record = stands_as(recovery, counter, Stage.RELEASING)
    recovery.tools.accelerator.free = recovery.tools.store.well = True

    error = await thawed(recovery, record)
    assert isinstance(error, Refused)
    assert error.reason is Reason.WRONG_PHASE

    await recovery.recover(patience=5)
    assert not counter.alive
    assert recovery.tools.store.exists("cp")


async def test_roll_back_that_finds_its_cards_taken_leaves_a_nap(recovery, places):
    """Its server and all else goes on; what used the card is woken in its turn."""
    script = "tail -f /dev/null & while :; do echo x; read -t 0.05 _ </dev/zero; done"
    place = places("start", "bash", "-c", script, env={"PATH": os.environ["PATH"]})
    wait_for(lambda: "tail" in [p.name for p in place.tree.processes])
    record = stands_as(recovery, place, Stage.ROLLING_BACK)
    (user,) = [p for p in place.tree.processes if p.name == "tail"]
    record = record.at(record.stage, [], gpus=gpus_of(user.ns_pid))
    recovery.tools.records.save(record)
    recovery.tools.store.well = True
    recovery.tools.store.delete("cp")  # nothing was committed
    operations, records = recovery.operations, recovery.tools.records
    operation = Operation("capture", KEY, "cp")
    operations.begin(record.incarnation, operation, fails)
    session = recovery.placements.find(record.incarnation)
    recovery.settle_after(session, operation)
    await operation.wait()

    await eventually(lambda: records.find(record.incarnation).naps)
    stopped = [p for p in place.tree.processes if p.stopped]
    assert [p.pid for p in stopped] == [user.pid]
    left = records.find(record.incarnation)
    assert left.stage is Stage.FAILED
    assert left.gpus is None
    assert trees.tree_of(session, left, None).state is TreeState.NAPPING

    recovery.tools.accelerator.free = True
    nap.end_nap(recovery.tools.accelerator, session, left)

    assert goes_on(place)


def gpus_of(pid: int) -> Gpus:
    use = GpuUse(pid=pid, uuid=CARD.uuid, bytes=1 << 30)
    return Gpus(driver="580", cards=[CARD], users=[pid], uses=[use])


async def fails(operation: Operation):
    raise ReclaimError(Reason.GPU_MEMORY, card="x", needed="1 GiB", free="0 GiB")


async def eventually(condition) -> None:
    async with asyncio.timeout(60):
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
    agent.captured(counter, "cp")
    fill(agent.folder / "state")

    path = f"/v1/sessions/{counter.incarnation}"
    refused = agent.post(f"{path}/release", {"checkpoint": "cp"})
    assert refused.status_code == 507
    assert refused.json()["code"] == "state_full"
    assert all(process.stopped for process in counter.tree.processes)

    assert agent.post(f"{path}/thaw").status_code == 204
    assert goes_on(counter)


@pytest.fixture
def agent_on_small_disk(folder):
    with full_disk(folder / "state"), running_agent(folder) as made:
        yield made


class CommitHadWon:
    """A writer whose checkpoint is committed when it is asked to remove it."""

    def abort(self) -> bool:
        return False


@pytest.mark.parametrize("ended", [True, False])
async def test_roll_back_after_a_commit_that_won_keeps_what_may_be_all_that_is_left(
    recovery, counter, ended
):
    """Its tree has ended meanwhile, or could not be given its GPU memory back."""
    record = stands_as(recovery, counter, Stage.ROLLING_BACK)
    session = recovery.placements.find(record.incarnation)
    tools = tools_of(recovery, recovery.tools.accelerator)
    operation = Operation("capture", KEY, "cp")
    taken_back = capture.Capture(tools, session, operation, (1, 1))
    taken_back._writer, taken_back._committing = CommitHadWon(), True
    taken_back._record = record
    recovery.tools.store.well = True
    if ended:
        counter.kill()

    stage = await taken_back._roll_back()

    assert stage is (Stage.CAPTURED if ended else Stage.ROLLING_BACK)
    assert recovery.tools.store.exists("cp")
    if not ended:
        assert all(process.stopped for process in counter.tree.processes)
