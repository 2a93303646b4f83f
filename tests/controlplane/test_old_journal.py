"""A journal that is older than the world, or lost: the newest committed state wins.

The journal is copied at one moment and put back at a later one, as a backup, a volume
snapshot or a rolled-back machine does it; agent, store and Hub go on as they are.
"""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.session import Keeping
from tests.support.checkpoints import checkpoint
from tests.support.simulated import DELETED, KEY


@pytest.mark.parametrize("pointer", ["", "another"])
async def test_journal_older_and_the_hub_does_not_agree_the_user_is_asked(
    world, pointer
):
    first, _ = await world.started("tensors")
    backup = world.backup()
    saved = await world.suspend(first)
    if pointer:
        world.hub.remembers(checkpoint=pointer, session=pointer)
    else:
        world.hub.forget()
    second = await world.journal_put_back(first, backup)
    for _ in range(2):  # asking again is no answer
        assert await world.hub.start() == "saved_found"
    view = second.users.session(KEY)
    assert (view.phase, view.checkpoint) == ("suspended", saved)
    assert view.failure.code == "saved_found"
    if pointer:
        await second.users.resume(KEY, "ada")
        await world.reaches(second, "running")
        assert world.node.works() == ["tensors"]
        return
    await second.users.start_fresh(KEY, "ada")
    assert await world.hub.start() == "cold"
    await world.reaches(second, "running")
    assert [state.id for state in second.users.session(KEY).kept] == [saved]


async def test_store_older_than_the_journal_the_older_state_is_offered_and_kept(world):
    first, _ = await world.started("old")
    older = await world.suspend(first)
    kept = world.node.saved[older]
    await world.resume(first, "new")
    newer = await world.suspend(first)
    first._sessions.journal.drop(older)  # its grace was over
    await world.kill(first)
    world.node.saved.clear()
    world.node.saved[older] = kept
    world.give_up()
    second = await world.controller()
    assert await world.hub.start() == "saved_older"
    await world.until(lambda: len(second.users.session(KEY).kept) == 2)
    (state,) = [s for s in second.users.session(KEY).kept if s.id == older]
    assert (state.keeping, state.expires) == ("superseded", None)
    assert second.users.session(KEY).checkpoint == newer
    await second.users.bring_back(KEY, older, "ada")
    await world.reaches(second, "running")
    assert world.node.works() == ["old"]


async def test_journal_newer_than_store_and_hub_asks_before_the_older_one_comes_back(
    world,
):
    """Both are from one backup: what they agree on is not the newest."""
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    newer = await world.suspend(controller)
    world.node.saved.pop(newer)
    world.give_up()
    world.hub.remembers(checkpoint=older)
    await controller.users.resume(KEY, "ada")  # nothing was asked yet
    await world.until(lambda: world.hub.plans[-1] == "start refuse")
    for _ in range(2):
        assert await world.hub.start() == "saved_older"
    assert controller.users.session(KEY).checkpoint == newer
    await controller.users.resume(KEY, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["old"]


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("looked", [True, False])
async def test_journal_put_back_after_that_was_left_as_well_finds_nothing(
    world, remembers, looked
):
    """It came back, went on, was suspended anew, and its user started fresh."""
    first, _ = await world.started("older")
    older = await world.suspend(first)
    await first.users.start_fresh(KEY, "ada")
    await world.until(lambda: world.node.said(older).aside)
    backup = world.backup()
    await first.users.bring_back(KEY, older, "ada")
    await world.reaches(first, "running")
    world.node.works_on("worked on")
    await world.until(lambda: world.node.said(older).aside is None)
    newer = await world.suspend(first)
    await first.users.start_fresh(KEY, "ada")
    await world.until(lambda: world.node.said(newer).aside)
    if not remembers:
        world.hub.remembers(checkpoint="")
    if not looked:
        world.change(tick_interval=60.0)
    second = await world.journal_put_back(first, backup)
    if looked:
        await world.until(lambda: second._sessions.journal.checkpoint(newer))
    assert await world.hub.start() == "cold"


async def test_journal_put_back_takes_no_name_away(world):
    """A save point without one is deleted soon, beside a newer one."""
    world.change(save_points=1, grace=60.0)
    first, _ = await world.started()
    named = await world.saved(first)
    backup = world.backup()
    await first.users.rename(KEY, named, "good", "ada")
    await world.until(lambda: world.node.said(named).name == "good")
    await world.saved(first)
    second = await world.journal_put_back(first, backup)
    await asyncio.sleep(200.0)
    states = {each.id: each.name for each in second.users.session(KEY).kept}
    assert states.get(named) == world.node.said(named).name == "good"


# --- the order of checkpoints ---------------------------------------------------------


def info(name, generation, **more):
    return checkpoint(name, KEY, f"i-{name}", generation=generation, **more)


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
    assert retention.newest(infos).id == wanted


@pytest.mark.parametrize(
    ("ids", "its"),
    [([""], False), (["s"], True), (["t", "i-c"], True), (["t"], False), (["c"], True)],
)
def test_checkpoint_is_known_by_its_id_its_session_or_its_incarnation(ids, its):
    assert retention.is_of(info("c", 3, session="s"), ids) is its
    assert not retention.is_of(info("c", 3), [""])


async def test_deletion_in_a_journal_that_was_put_back_by_stamp_alone(world):
    """What the next session has been saved as stays, what the old one has goes.

    All clocks are wrong, and neither is known to the journal.
    """
    first, _ = await world.started("of the old one")
    saved = await world.suspend(first)
    there = world.node.saved[saved]
    back = world.node.away("discard")
    world.give_up()
    await first.forget(DELETED)
    backup = world.backup()
    back()
    world.hub.forget()
    await world.until(lambda: not world.node.saved)
    await world.kill(first)
    world.node.saved[saved] = there
    old = {"incarnation": "lost", "term": 0, "generation": 1, "created": 9e9}
    new = {"incarnation": "next", "generation": 2, "created": 1.0}
    world.node.copy(saved, id="old", **old)
    world.node.copy(saved, id="new", **new, term=there.info.term + 2)
    del world.node.saved[saved]
    second = await world.journal_put_back(first, backup)
    await world.reaches(second, "suspended")
    await world.until(lambda: not second._deletions.pending_keys())
    assert set(world.node.saved) == {"new"}


@pytest.mark.parametrize("knows_older", [True, False])
async def test_older_one_does_not_outlive_the_newer_that_the_journal_has_missed(
    world, knows_older
):
    """Put aside, it would be what its next start is beside."""
    first, _ = await world.started("old")
    before = world.backup()
    older = await world.suspend(first)
    backup = world.backup() if knows_older else before
    await world.resume(first, "new")
    newer = await world.suspend(first)
    second = await world.journal_put_back(first, backup)
    await world.until(lambda: second.users.session(KEY).checkpoint == newer)
    kept = {row.id: row for row in second._sessions.journal.checkpoints(KEY)}
    assert kept[newer].keeping is Keeping.CURRENT
    assert kept[older].keeping is Keeping.SUPERSEDED
    await second.users.delete(KEY, "ada")
    await world.until(lambda: not world.node.saved)


async def test_save_point_of_before_is_kept_no_longer_by_who_finds_what_came_back(
    world,
):
    """A start adopts it without asking the store, which says what is older than it."""
    first, _ = await world.started("tensors")
    point = await world.saved(first)
    backup = world.backup()
    newer = await world.suspend(first)
    await world.resume(first)
    world.hub.states[KEY] = "stopped"  # its database was put back as well
    second = await world.journal_put_back(first, backup)
    assert await world.hub.start() == "adopt"
    journal = second._sessions.journal
    await world.until(lambda: journal.checkpoint(newer) is not None)
    keeping = [journal.checkpoint(each).keeping for each in (point, newer)]
    assert keeping == [Keeping.SUPERSEDED, Keeping.SUPERSEDED]


async def test_journal_put_back_in_a_capture_keeps_no_earlier_state_for_longer(world):
    """What was captured came from it; put aside, it would outlive the newer one."""
    first, _ = await world.started("tensors")
    older = await world.suspend(first)
    backup = world.backup()
    await world.resume(first)
    world.installation.refuses_stop = True
    await first.users.suspend(KEY, "ada")
    await world.reaches(first, "releasing")
    await world.kill(first)
    world.hub.states[KEY] = "stopped"  # its database was put back as well
    second = await world.journal_put_back(first, backup)
    await world.until(lambda: second.users.session(KEY).checkpoint != older)
    rows = {row.id: row.keeping for row in second._sessions.journal.checkpoints(KEY)}
    assert rows.pop(older) is Keeping.SUPERSEDED
    assert [*rows.values()] == [Keeping.CURRENT]


async def test_save_point_that_an_old_journal_missed_is_what_the_session_goes_back_to(
    world,
):
    """A later suspend was taken back, whose stamp the journal knows."""
    first, _ = await world.started("old")
    older = await world.suspend(first)
    await world.resume(first, "as saved")
    backup = world.backup()
    point = await world.saved(first)
    assert point != older
    world.change(release_limit=3.0)
    world.installation.refuses_stop = True
    await world.kill(first)
    second = await world.controller()
    await second.users.suspend(KEY, "ada")
    await world.reaches(second, "releasing")
    third = await world.journal_put_back(second, backup)
    journal = third._sessions.journal
    await world.until(lambda: journal.checkpoint(point) is not None)
    await world.until(lambda: third._sessions.row(KEY).checkpoint == point)
    await world.reaches(third, "running")
    assert journal.checkpoint(point).expires is None


async def test_journal_lost_while_it_runs_nothing_older_outlives_what_it_came_from(
    world,
):
    """Otherwise its next start, once it has ended, is cold beside an older state."""
    first, _ = await world.started("one")
    older = await world.suspend(first)
    await world.resume(first, "two")
    parent = await world.suspend(first)
    await world.resume(first, "three")
    second = await world.journal_lost(first)
    await world.reaches(second, "running")
    await world.until(lambda: len(second.users.session(KEY).kept) == 2)
    kept = {state.id: state for state in second.users.session(KEY).kept}
    assert {kept[older].keeping, kept[parent].keeping} == {"superseded"}
    assert kept[older].expires == pytest.approx(kept[parent].expires, abs=1)
