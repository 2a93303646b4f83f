"""A journal that is older than the world, or lost: the newest committed state wins.

The journal is copied at one moment and put back at a later one, as a backup, a volume
snapshot or a rolled-back machine does it; agent, store and Hub go on as they are.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Placement,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model import lineage
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping
from tests.controlplane.conftest import DELETED, KEY


class Backup:
    """The journal as it is now."""

    def __init__(self, world, folder: Path) -> None:
        self._file = Path(world.url.removeprefix("sqlite:///"))
        self._copy = folder / "backup.sqlite"
        with (
            closing(sqlite3.connect(self._file)) as now,
            closing(sqlite3.connect(self._copy)) as copy,
        ):
            now.backup(copy)

    def put_back(self) -> None:
        for end in ("", "-wal", "-shm"):
            self._file.with_name(self._file.name + end).unlink(missing_ok=True)
        self._file.write_bytes(self._copy.read_bytes())


async def running(world, contents="old"):
    await world.running(contents)
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    return controller


async def suspend(world, controller):
    """Suspend it; the checkpoint's id."""
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    return controller.users.session(KEY).checkpoint


async def resume(world, controller, contents=""):
    """A visit brings it back; then it works on."""
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    if contents:
        (place,) = world.node.living(KEY)
        place.contents = contents
    world.hub.pointers.pop(KEY, None)  # as the spawner does once it has answered


async def restored_journal(world, controller, backup):
    """A new service on the old journal, which has looked at everything."""
    await world.kill(controller)
    backup.put_back()
    return await world.controller()


def contents(world):
    """What the session that runs holds."""
    (place,) = world.node.living(KEY)
    return place.contents


@pytest.mark.parametrize("pointer", ["", "another"])
async def test_journal_older_and_the_hub_does_not_agree_the_user_is_asked(
    world, tmp_path, pointer
):
    first = await running(world, "tensors")
    backup = Backup(world, tmp_path)
    saved = await suspend(world, first)
    world.hub.pointers[KEY] = world.hub.sessions[KEY] = pointer
    second = await restored_journal(world, first, backup)
    for _ in range(2):  # asking again is no answer
        assert await world.hub.start(KEY) == "saved_found"
    view = second.users.session(KEY)
    assert (view.phase, view.checkpoint) == ("suspended", saved)
    assert view.failure.code == "saved_found"
    await second.users.resume(KEY, "ada")
    await world.until(lambda: world.phase(second) == "running")
    assert contents(world) == "tensors"


async def test_journal_older_and_the_user_wants_to_start_fresh_is_cold_and_kept(
    world, tmp_path
):
    first = await running(world, "tensors")
    backup = Backup(world, tmp_path)
    saved = await suspend(world, first)
    world.hub.pointers.clear()
    second = await restored_journal(world, first, backup)
    assert await world.hub.start(KEY) == "saved_found"
    await second.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(second) == "running")
    assert [state.id for state in second.users.session(KEY).kept] == [saved]


async def test_store_older_than_the_journal_the_older_state_is_offered_and_kept(world):
    first = await running(world, "old")
    older = await suspend(world, first)
    kept = world.node.saved[older]
    await resume(world, first, "new")
    newer = await suspend(world, first)
    await world.kill(first)
    with closing(Journal(world.url)) as journal:
        journal.drop(older)  # its grace was over
    world.node.saved = {older: kept}
    second = await world.controller()
    assert await world.hub.start(KEY) == "saved_older"
    await world.until(lambda: len(second.users.session(KEY).kept) == 2)
    (state,) = [s for s in second.users.session(KEY).kept if s.id == older]
    assert (state.keeping, state.expires) == ("aside", None)
    assert second.users.session(KEY).checkpoint == newer
    await second.users.bring_back(KEY, older, "ada")
    await world.until(lambda: world.phase(second) == "running")
    assert contents(world) == "old"


async def test_journal_newer_than_store_and_hub_asks_before_the_older_one_comes_back(
    world,
):
    """Both are from one backup: what they agree on is not the newest."""
    controller = await running(world, "old")
    older = await suspend(world, controller)
    await resume(world, controller, "new")
    newer = await suspend(world, controller)
    world.node.saved.pop(newer)
    world.hub.pointers[KEY] = older
    await controller.users.resume(KEY, "ada")  # nothing was asked yet
    await world.until(lambda: world.hub.plans[-1] == "start refuse")
    for _ in range(2):
        assert await world.hub.start(KEY) == "saved_older"
    assert controller.users.session(KEY).checkpoint == newer
    await controller.users.resume(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "running")
    assert contents(world) == "old"


async def test_journal_and_hub_of_before_a_deletion_the_next_session_is_offered(
    world, tmp_path
):
    """Its generations are above those of what was deleted."""
    first = await running(world, "of the old one")
    await suspend(world, first)
    pointer, session = world.hub.pointers[KEY], world.hub.sessions[KEY]
    backup = Backup(world, tmp_path)
    await first.forget(DELETED)
    await world.until(lambda: not world.node.saved)
    world.hub.pointers.pop(KEY)
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(first) == "running")
    saved = await suspend(world, first)
    second = await restored_journal(world, first, backup)
    world.hub.pointers[KEY], world.hub.sessions[KEY] = pointer, session
    assert await world.hub.start(KEY) == "saved_found"
    await second.users.resume(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(second) == "running")
    assert contents(world) == "cold"
    assert world.node.saved[saved][0].generation == 2


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("looked", [True, False])
async def test_journal_put_back_after_that_was_left_as_well_finds_nothing(
    world, tmp_path, remembers, looked
):
    """It came back, went on, was suspended anew, and its user started fresh."""
    first = await running(world, "older")
    older = await suspend(world, first)
    await first.users.start_fresh(KEY, "ada")
    await world.until(lambda: world.node.saved[older][0].aside)
    backup = Backup(world, tmp_path)
    await first.users.bring_back(KEY, older, "ada")
    await world.until(lambda: world.phase(first) == "running")
    world.hub.pointers.pop(KEY, None)
    world.node.living(KEY)[0].contents = "worked on"
    await world.until(lambda: world.node.saved[older][0].aside is None)
    newer = await suspend(world, first)
    await first.users.start_fresh(KEY, "ada")
    await world.until(lambda: world.node.saved[newer][0].aside)
    if not remembers:
        world.hub.pointers.pop(KEY, None)
    if not looked:
        world.change(tick_interval=60.0)
    second = await restored_journal(world, first, backup)
    if looked:
        await world.until(lambda: second._sessions.journal.checkpoint(newer))
    assert await world.hub.start(KEY) == "cold"


async def test_pointer_to_what_nobody_has_asks_and_starts_nothing_cold(world, tmp_path):
    """The journal says stopped, the Hub knows of a checkpoint: one of them is older."""
    first = await running(world, "old")
    await world.hub.stop(KEY)
    backup = Backup(world, tmp_path)
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: world.phase(first) == "running")
    await suspend(world, first)
    world.node.saved.clear()
    await restored_journal(world, first, backup)
    assert await world.hub.start(KEY) == "checkpoint_missing"


# --- the order of checkpoints ---------------------------------------------------------


def info(name, generation, *, term=0, parent="", created=1.0, session=""):
    return CheckpointInfo(
        id=name,
        key=KEY,
        incarnation=f"i-{name}",
        term=term,
        generation=generation,
        created=created,
        logical_bytes=1,
        stored_bytes=1,
        parent=parent,
        session=session,
    )


@pytest.mark.parametrize(
    ("infos", "wanted"),
    [
        ([info("a", 1), info("b", 2)], "b"),
        # a clock that went back by a day orders nothing
        ([info("a", 1, created=90000.0), info("b", 2)], "b"),
        # a later service that counts anew
        ([info("a", 7, term=1), info("b", 1, term=2)], "b"),
        # no service with a term had ordered it
        ([info("a", 7), info("b", 1, term=1)], "b"),
        # what it was made of tells nothing: a person has brought the older one back
        ([info("a", 1), info("b", 2, parent="a"), info("c", 3, parent="a")], "c"),
        # the same twice never is, and is decided all the same
        ([info("b", 2), info("a", 2)], "b"),
    ],
)
def test_newest_is_that_of_the_highest_stamp(infos, wanted):
    assert lineage.newest(infos).id == wanted


def test_newest_of_none_is_none():
    assert lineage.newest([]) is None


@pytest.mark.parametrize(
    ("ids", "its"),
    [
        ([""], False),
        (["s"], True),
        (["t", "i-c"], True),
        (["t"], False),
        (["c"], True),
    ],
)
def test_checkpoint_is_known_by_its_id_its_session_or_its_incarnation(ids, its):
    assert lineage.is_of(info("c", 3, session="s"), ids) is its
    assert not lineage.is_of(info("c", 3), [""])


async def test_deletion_in_a_journal_that_was_put_back_by_stamp_alone(world, tmp_path):
    """What the next session has been saved as stays, what the old one has goes.

    All clocks are wrong, and neither is known to the journal.
    """
    first = await running(world, "of the old one")
    await suspend(world, first)
    its, _ = next(iter(world.node.saved.values()))
    discard = world.node.discard

    async def fails(*_args, **_more):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    world.node.discard = fails
    await first.forget(DELETED)
    backup = Backup(world, tmp_path)
    world.hub.pointers.pop(KEY)
    world.node.discard = discard
    await world.until(lambda: not world.node.saved)
    await world.kill(first)
    old = msgspec.structs.replace(
        its, id="ckpt-old", incarnation="lost", term=0, generation=1, created=9e9
    )
    new = msgspec.structs.replace(
        its, id="ckpt-new", incarnation="next", term=3, generation=2, created=1.0
    )
    world.node.saved |= {old.id: (old, "old"), new.id: (new, "new")}
    second = await restored_journal(world, first, backup)
    await world.until(lambda: world.phase(second) == "suspended")
    await world.until(lambda: not second._deletions.pending_keys())
    assert set(world.node.saved) == {new.id}


async def test_plan_of_a_suspended_session_pod_ending_unseen_and_hub_agrees_comes_back(
    world,
):
    """A dead node that still has a pod of it keeps nobody from coming back."""
    first = await running(world, "tensors")
    saved = await suspend(world, first)
    first._starts._agent.trees = silent(Reason.ENDING_UNSEEN)
    other = Placement(key=KEY, incarnation="new", checkpoint="ckpt-other")
    assert (await first.plan_start(other)).failure.code == "ending_unseen"
    mine = Placement(key=KEY, incarnation="new", checkpoint=saved)
    assert (await first.plan_start(mine)).action == "restore"


def silent(reason):
    """A question about trees that a node of the session does not answer."""

    async def ask(key=None):
        del key
        raise Unreachable(reason, node="n1")

    return ask


async def test_journal_of_neither_generation_the_older_one_does_not_outlive_the_newer(
    world, tmp_path
):
    first = await running(world, "old")
    backup = Backup(world, tmp_path)
    older = await suspend(world, first)
    await resume(world, first, "new")
    newer = await suspend(world, first)
    world.node.saved[newer] = (
        msgspec.structs.replace(world.node.saved[newer][0], parent=older),
        "new",
    )
    second = await restored_journal(world, first, backup)
    await world.until(lambda: world.phase(second) == "suspended")
    assert second.users.session(KEY).checkpoint == newer
    kept = {row.id: row for row in second._sessions.journal.checkpoints(KEY)}
    assert kept[newer].keeping is Keeping.CURRENT
    assert kept[older].keeping is Keeping.SUPERSEDED
    assert kept[older].expires is not None


async def test_journal_put_back_in_a_capture_keeps_no_earlier_state_for_longer(
    world, tmp_path
):
    """What was captured came from it; put aside, it would outlive the newer one."""
    first = await running(world, "tensors")
    older = await suspend(world, first)
    backup = Backup(world, tmp_path)
    await resume(world, first)
    world.node.hold_at = "commit"
    await first.users.suspend(KEY, "ada")
    await world.until(lambda: stands(world, TreeState.CAPTURING))
    await world.kill(first)
    backup.put_back()
    world.node.hold_at = ""
    await world.until(lambda: stands(world, TreeState.CAPTURED))
    world.hub.states[KEY] = "stopped"  # its database was put back as well
    second = await world.controller()
    await world.until(lambda: second.users.session(KEY).checkpoint != older)
    rows = {row.id: row.keeping for row in second._sessions.journal.checkpoints(KEY)}
    assert rows.pop(older) is Keeping.SUPERSEDED
    assert [*rows.values()] == [Keeping.CURRENT]


async def test_save_point_of_before_is_kept_no_longer_by_who_finds_what_came_back(
    world, tmp_path
):
    """A start adopts it without asking the store, which says what is older than it."""
    first = await running(world, "tensors")
    await first.users.save(KEY, "ada", "")
    await world.until(lambda: first._sessions.row(KEY).checkpoint)
    point = first._sessions.row(KEY).checkpoint
    backup = Backup(world, tmp_path)
    newer = await suspend(world, first)
    await resume(world, first)
    await world.kill(first)
    backup.put_back()
    world.hub.states[KEY] = "stopped"  # its database was put back as well
    second = await world.controller()
    assert await world.hub.start(KEY) == "adopt"
    journal = second._sessions.journal
    await world.until(lambda: journal.checkpoint(newer) is not None)
    keeping = [journal.checkpoint(each).keeping for each in (point, newer)]
    assert keeping == [Keeping.SUPERSEDED, Keeping.SUPERSEDED]


async def test_save_point_that_an_old_journal_missed_is_what_the_session_goes_back_to(
    world, tmp_path
):
    """A later suspend was taken back, whose stamp the journal knows."""
    first = await running(world)
    older = await suspend(world, first)
    await resume(world, first, "as saved")
    backup = Backup(world, tmp_path)
    await first.users.save(KEY, "ada", "")
    await world.until(lambda: first._sessions.row(KEY).checkpoint != older)
    point = first._sessions.row(KEY).checkpoint
    world.node.hold_at = "commit"
    await first.users.suspend(KEY, "ada")
    await world.until(lambda: stands(world, TreeState.CAPTURING))
    await world.kill(first)
    world.hub.states[KEY] = "checking"  # it was put back as well, and takes no order
    world.node.hold_at = ""
    await world.until(lambda: stands(world, TreeState.CAPTURED))
    backup.put_back()
    second = await world.controller()
    await world.until(lambda: stands(world, TreeState.RUNNING))
    world.hub.states[KEY] = "running"
    journal = second._sessions.journal
    await world.until(lambda: journal.checkpoint(point) is not None)
    assert second._sessions.row(KEY).checkpoint == point
    row = journal.checkpoint(point)
    assert (row.keeping, row.expires) == (Keeping.SUPERSEDED, None)


def stands(world, state):
    return any(place.state is state for place in world.node.places.values())


async def test_journal_lost_while_it_runs_nothing_older_outlives_what_it_came_from(
    world,
):
    """Otherwise its next start, once it has ended, is cold beside an older state."""
    first = await running(world, "one")
    older = await suspend(world, first)
    await resume(world, first, "two")
    parent = await suspend(world, first)
    await resume(world, first, "three")
    second = await world.journal_lost(first)
    await world.until(lambda: world.phase(second) == "running")
    await world.until(lambda: len(second.users.session(KEY).kept) == 2)
    kept = {state.id: state for state in second.users.session(KEY).kept}
    assert {kept[older].keeping, kept[parent].keeping} == {"superseded"}
    assert kept[older].expires == kept[parent].expires
