"""A user's name that another account of the Hub has now: nothing is inherited."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping
from tests.controlplane.conftest import DELETED, KEY
from tests.controlplane.test_old_journal import Backup

OLD, NEW = "7.20260101T000000000000", "7.20261122T000000000000"
#: Made before and after anything is saved; the double's checkpoints are of 1970.
EPOCH = "7.19700101T000000000000"
LATER = f"9.{datetime.now(UTC) + timedelta(days=1):%Y%m%dT%H%M%S%f}"


def _placement(incarnation: str, owner: str, key: SessionKey = KEY) -> Placement:
    return Placement(key=key, incarnation=incarnation, owner=owner)


async def _left_by_the_old_one(world, told: str = ""):
    """A suspended session of the old account, which its manifest may name."""
    controller = await world.controller()
    plan = await controller.plan_start(_placement("i1", OLD))
    assert plan.action == "cold"
    world.node.run(KEY, "of the old one", "i1").account = told
    await controller.placed(_placement("i1", OLD))
    world.hub.run(KEY, "i1")
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.opt_out(KEY, True, "root")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    world.hub.pointers.pop(KEY, None)
    return controller


async def test_same_account_gets_its_session_back_under_its_name(world):
    controller = await _left_by_the_old_one(world)
    plan = await controller.plan_start(_placement("i2", OLD))
    assert plan.action == "restore"


@pytest.mark.parametrize("found_first", [True, False])
async def test_journal_lost_what_was_saved_before_the_account_was_made_is_not_its(
    world, found_first
):
    """The account was deleted while the store was away, and the order is lost, too."""
    first = await _left_by_the_old_one(world)
    if not found_first:
        world.change(tick_interval=60.0)
        world.hub.states[KEY] = "spawning"
    second = await world.journal_lost(first)
    if found_first:
        await world.until(lambda: world.phase(second) == "suspended")
    for _ in range(2):
        plan = await second.plan_start(_placement("i2", LATER))
        assert (plan.action, plan.failure.code) == ("refuse", "former_account")
    with pytest.raises(Refused, match="another account"):
        await second.users.resume(KEY, "ada")
    assert (await second.users.start_fresh(KEY, "ada")).saved == []
    assert (await second.plan_start(_placement("i3", LATER))).action == "cold"


@pytest.mark.parametrize("tried_before", [True, False])
async def test_managers_word_is_enough_for_what_is_older_than_the_account(
    world, tried_before
):
    """It was imported from another Hub, or the Hub has lost its database as well."""
    second = await world.journal_lost(await _left_by_the_old_one(world))
    await world.until(lambda: world.phase(second) == "suspended")
    if tried_before:
        plan = await second.plan_start(_placement("i2", LATER))
        assert plan.failure.code == "former_account"
    await second.users.renew_login(KEY, "root")
    await second.users.resume(KEY, "root", manages=True)
    assert (await second.plan_start(_placement("i3", LATER))).action == "restore"
    known = second._sessions.owners._known(KEY)
    assert (known["owner"], known["claimed"]) == (LATER, "")


async def test_journal_lost_an_account_as_old_as_what_is_saved_is_not_kept_out(world):
    """A younger one of that name had tried before the Hub's database was put back."""
    second = await world.journal_lost(await _left_by_the_old_one(world))
    await world.until(lambda: world.phase(second) == "suspended")
    plan = await second.plan_start(_placement("i2", LATER))
    assert plan.failure.code == "former_account"
    plan = await second.plan_start(_placement("i3", EPOCH))
    assert plan.failure.code == "saved_found"  # which its user may answer
    await second.users.resume(KEY, "ada")
    assert (await second.plan_start(_placement("i4", EPOCH))).action == "restore"


async def test_journal_lost_a_manifest_says_whose_it_is_whatever_the_times_are(world):
    """A clock of the agent's that was wrong for a day told another account."""
    second = await world.journal_lost(await _left_by_the_old_one(world, told=LATER))
    await world.until(lambda: world.phase(second) == "suspended")
    plan = await second.plan_start(_placement("i2", EPOCH))
    assert plan.failure.code == "former_account"
    plan = await second.plan_start(_placement("i3", LATER))
    assert plan.failure.code == "saved_found"  # which its user may answer


async def test_journal_lost_what_is_to_be_deleted_is_not_kept_for_a_former_account(
    world,
):
    first = await _left_by_the_old_one(world)
    second = await world.journal_lost(first)
    await world.until(lambda: world.phase(second) == "suspended")
    discard = world.node.discard

    async def away(checkpoint):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    world.node.discard = away
    await second.forget(DELETED)
    assert (await second.plan_start(_placement("i2", LATER))).action == "cold"
    world.node.discard = discard
    await world.until(lambda: not world.node.saved)


async def test_journal_lost_the_account_that_saved_it_gets_it_back(world):
    second = await world.journal_lost(await _left_by_the_old_one(world))
    await world.until(lambda: world.phase(second) == "suspended")
    await second.users.resume(KEY, "ada")
    assert (await second.plan_start(_placement("i2", EPOCH))).action == "restore"


async def test_new_account_of_that_name_is_neither_given_nor_shown_the_old_session(
    world,
):
    controller = await _left_by_the_old_one(world)
    for _ in range(2):  # trying again is no choice
        plan = await controller.plan_start(_placement("i2", NEW))
        assert (plan.action, plan.failure.code) == ("refuse", "former_account")
        assert plan.identity is None
    with pytest.raises(Refused, match="another account"):
        await controller.users.resume(KEY, "ada")
    assert (await controller.users.start_fresh(KEY, "ada")).saved == []
    plan = await controller.plan_start(_placement("i3", NEW))
    assert plan.action == "cold"
    world.node.run(KEY, "of the new one", "i3")
    await controller.placed(_placement("i3", NEW))
    world.hub.run(KEY, "i3")
    await world.until(lambda: world.phase(controller) == "running")
    view = controller.users.session(KEY)
    assert (view.saved, view.last_suspend, view.generation) == ([], None, 0)
    assert view.facts.opted_out_by == ""
    with pytest.raises(NotFound):
        await controller.users.delete(KEY, "ada", everything=True)
    (former,) = controller._sessions.journal.checkpoints(KEY)
    assert former.keeping is Keeping.FORMER
    assert former.expires > former.changed
    await asyncio.sleep(0.2)
    assert len(world.node.saved) == 1
    assert [place.contents for place in world.node.living(KEY)] == ["of the new one"]


async def test_administrator_gives_a_lost_account_its_sessions_back(world):
    """The Hub has lost its database; it is the same person with a new account."""
    controller = await _left_by_the_old_one(world)
    plan = await controller.plan_start(_placement("i2", NEW))
    assert plan.failure.code == "former_account"
    await controller.users.resume(KEY, "root", manages=True)
    plan = await controller.plan_start(_placement("i3", NEW))
    assert plan.action == "restore"
    plan = await controller.plan_start(_placement("i4", OLD))
    assert plan.failure.code == "former_account"


async def test_new_account_is_not_given_what_the_old_one_had_put_aside(world):
    controller = await _left_by_the_old_one(world)
    await controller.users.start_fresh(KEY, "ada")
    plan = await controller.plan_start(_placement("i3", NEW))
    assert plan.action == "cold"
    assert controller.users.sessions() == []
    assert len(world.node.saved) == 1


async def test_other_server_of_a_new_account_starts_and_is_its_own(world):
    controller = await _left_by_the_old_one(world)
    other = SessionKey(KEY.user, "other")
    for incarnation in ("i2", "i3"):
        placement = _placement(incarnation, NEW, other)
        assert (await controller.plan_start(placement)).action == "cold"
        world.node.run(other, "of the new one", incarnation)
        await controller.placed(placement)
        world.hub.run(other, incarnation)
        await world.until(lambda: world.phase(controller, other) == "running")
        world.node.end(incarnation)
        world.hub.states[other] = "stopped"
        await world.until(lambda: world.phase(controller, other) == "stopped")
    plan = await controller.plan_start(_placement("i4", NEW))
    assert plan.failure.code == "former_account"


async def test_new_account_of_a_name_with_nothing_saved_just_starts(world):
    controller = await _left_by_the_old_one(world)
    await controller.users.delete(KEY, "ada", everything=True)
    plan = await controller.plan_start(_placement("i2", NEW))
    assert plan.action == "cold"
    with pytest.raises(NotFound):
        controller.users.session(KEY)


async def test_new_account_is_not_given_a_tree_that_still_stands_captured(world):
    controller = await world.controller()
    await controller.plan_start(_placement("i1", OLD))
    world.node.run(KEY, "of the old one", "i1")
    await controller.placed(_placement("i1", OLD))
    world.hub.run(KEY, "i1")
    await world.until(lambda: world.phase(controller) == "running")
    world.hub.refuses_stop = True
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "releasing")
    plan = await controller.plan_start(_placement("i2", NEW))
    assert plan.failure.code == "former_account"
    await controller.users.start_fresh(KEY, "ada")
    await world.until(lambda: "i1" not in world.node.places)
    plan = await controller.plan_start(_placement("i3", NEW))
    assert plan.action == "cold"
    assert len(world.node.saved) == 1  # kept, for whom an administrator finds


async def test_new_accounts_generations_go_on_from_those_of_the_former_one(world):
    """Without the journal, nothing else tells which of the two is newer."""
    controller = await _left_by_the_old_one(world)
    (old,) = world.node.saved
    await controller.plan_start(_placement("i2", NEW))
    await controller.users.start_fresh(KEY, "ada")
    assert (await controller.plan_start(_placement("i3", NEW))).action == "cold"
    world.node.run(KEY, "of the new one", "i3")
    await controller.placed(_placement("i3", NEW))
    world.hub.run(KEY, "i3")
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    new = controller.users.session(KEY).checkpoint
    saved = [info for info, _ in world.node.saved.values()]
    assert {info.id: info.generation for info in saved} == {old: 1, new: 2}
    second = await world.journal_lost(controller)
    await world.until(lambda: world.phase(second) == "suspended")
    assert second.users.session(KEY).checkpoint == new


async def test_budget_of_keep_is_not_inherited(world):
    world.change(keep_per_day=3600.0)
    controller = await _left_by_the_old_one(world)
    await controller.users.keep(KEY, 3600, "ada")
    await controller.plan_start(_placement("i2", NEW))
    await controller.users.start_fresh(KEY, "ada")
    await controller.plan_start(_placement("i3", NEW))
    world.node.run(KEY, "of the new one", "i3")
    await controller.placed(_placement("i3", NEW))
    world.hub.run(KEY, "i3")
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.keep(KEY, 3600, "ada")


@pytest.mark.parametrize("found_first", [True, False])
async def test_journal_of_before_the_account_does_not_keep_from_it_what_is_its_own(
    world, tmp_path, found_first
):
    """The numbers of the former account's sessions were as high, or higher."""
    first = await _left_by_the_old_one(world)
    await first.users.discard(KEY, "ada")
    await world.until(lambda: not world.node.saved)
    backup = Backup(world, tmp_path)
    await first.forget(DELETED)
    assert (await first.plan_start(_placement("i2", NEW))).action == "cold"
    world.node.run(KEY, "of the new one", "i2")
    await first.placed(_placement("i2", NEW))
    world.hub.run(KEY, "i2")
    await world.until(lambda: world.phase(first) == "running")
    await first.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(first) == "suspended")
    new = first.users.session(KEY).checkpoint
    await world.kill(first)
    backup.put_back()
    if not found_first:
        world.change(tick_interval=60.0)
    second = await world.controller()
    if found_first:
        await world.until(lambda: second._sessions.journal.checkpoint(new) is not None)
    placement = _placement("i3", NEW)
    placement = msgspec.structs.replace(placement, checkpoint=new, remembered=True)
    plan = await second.plan_start(placement)
    assert (plan.action, plan.checkpoint) == ("restore", new), plan.failure


async def _running_of_the_old_one(world):
    """A session of the old account that runs."""
    controller = await world.controller()
    await controller.plan_start(_placement("i1", OLD))
    world.node.run(KEY, "of the old one", "i1")
    await controller.placed(_placement("i1", OLD))
    world.hub.run(KEY, "i1")
    await world.until(lambda: world.phase(controller) == "running")
    return controller


async def test_hub_that_has_forgotten_a_running_session_adopts_it_for_its_account(
    world,
):
    """Its database is older; what the journal does not know either is not proved."""
    controller = await _running_of_the_old_one(world)
    world.hub.states[KEY] = "stopped"
    plan = await controller.plan_start(_placement("i2", OLD))
    assert (plan.action, plan.incarnation, plan.owned) == ("adopt", "i1", True)
    second = await world.journal_lost(controller)
    plan = await second.plan_start(_placement("i3", OLD))
    assert (plan.action, plan.incarnation, plan.owned) == ("adopt", "i1", False)


async def test_running_session_of_an_old_account_is_neither_adopted_nor_ended(world):
    controller = await _running_of_the_old_one(world)
    world.hub.states[KEY] = "stopped"
    plan = await controller.plan_start(_placement("i2", NEW))
    assert (plan.action, plan.failure.code) == ("refuse", "not_adopted")
    assert controller.users.session(KEY).failure.code == "not_adopted"
    with pytest.raises(Refused, match="is running already"):
        await controller.users.start_fresh(KEY, "ada")
    assert [place.contents for place in world.node.living(KEY)] == ["of the old one"]
    await controller.users.renew_login(KEY, "root")
    plan = await controller.plan_start(_placement("i3", NEW))
    assert (plan.action, plan.incarnation) == ("adopt", "i1")
    assert plan.renew_login
    assert controller.users.session(KEY).failure is None


async def test_journal_of_before_a_session_proves_no_new_account_to_be_its_owner(
    world, tmp_path
):
    """The journal says "stopped"; the former account's session runs unseen."""
    first = await _running_of_the_old_one(world)
    world.node.end("i1")
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: world.phase(first) == "stopped")
    backup = Backup(world, tmp_path)
    await first.plan_start(_placement("i2", OLD))
    world.node.run(KEY, "of the old one", "i2")
    await first.placed(_placement("i2", OLD))
    await world.kill(first)
    backup.put_back()
    world.change(tick_interval=60.0)
    second = await world.controller()
    plan = await second.plan_start(_placement("i3", NEW))
    assert not plan.owned
    assert [place.contents for place in world.node.living(KEY)] == ["of the old one"]


async def test_running_session_of_an_old_account_leaves_its_name_by_a_suspend(world):
    """It was another person's: an administrator has it saved, and it is not lost."""
    controller = await _running_of_the_old_one(world)
    world.hub.states[KEY] = "stopped"
    await controller.plan_start(_placement("i2", NEW))
    await controller.users.suspend(KEY, "root")
    await world.until(lambda: world.phase(controller) == "suspended")
    plan = await controller.plan_start(_placement("i3", NEW))
    assert plan.failure.code == "former_account"
    await controller.users.start_fresh(KEY, "ada")
    assert (await controller.plan_start(_placement("i4", NEW))).action == "cold"
    assert len(world.node.saved) == 1


@pytest.mark.parametrize("returns", [True, False])
async def test_what_a_program_deleted_with_its_user_is_kept_for_a_while(world, returns):
    """An LMS, say: nobody who knows what is saved has said that it may go."""
    world.change(set_aside=600.0 if returns else 0.5)
    controller = await _left_by_the_old_one(world)
    world.hub.states.pop(KEY, None)
    await controller.forget(
        Deletion(user=KEY.user, server=KEY.server, kept_from="service lms")
    )
    if not returns:
        await world.until(lambda: not world.node.saved)
        await world.until(lambda: world.phase(controller) == "stopped")
        return
    await asyncio.sleep(0.3)
    assert world.phase(controller) == "suspended"
    plan = await controller.plan_start(_placement("i2", NEW))
    assert (plan.action, plan.failure.code) == ("refuse", "former_account")
    await controller.users.resume(KEY, "root", manages=True)
    assert (await controller.plan_start(_placement("i3", NEW))).action == "restore"


@pytest.mark.parametrize("visited", [False, True])
async def test_what_a_program_left_of_a_former_account_is_not_deleted_by_the_new_one(
    world, visited
):
    controller = await _left_by_the_old_one(world)
    world.hub.states.pop(KEY, None)
    await controller.forget(
        Deletion(user=KEY.user, server=KEY.server, kept_from="service lms")
    )
    if visited:
        await controller.plan_start(_placement("i2", NEW))
    users = controller.users
    for attempt in (
        users.delete(KEY, KEY.user),
        users.delete(KEY, KEY.user, everything=True),
        users.resume(KEY, KEY.user),
    ):
        with pytest.raises(Refused) as refused:
            await attempt
        assert refused.value.reason is Reason.FORMER_ACCOUNT
    assert len(world.node.saved) == 1
    await users.resume(KEY, "root", manages=True)
    assert (await controller.plan_start(_placement("i3", NEW))).action == "restore"


async def test_session_keeps_its_id_through_its_returns_and_a_lost_journal(world):
    controller = await world.controller()
    begun = Placement(key=KEY, incarnation="i1", owner=EPOCH, session="its-id")
    assert (await controller.plan_start(begun)).action == "cold"
    place = world.node.run(KEY, "work", "i1")
    place.session, place.account = "its-id", EPOCH
    await controller.placed(begun)
    world.hub.run(KEY, "i1")
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    controller = await world.journal_lost(controller)
    await world.until(lambda: world.phase(controller) == "suspended")
    row = controller._sessions.row(KEY)
    assert (row.session, row.account) == ("its-id", EPOCH)
    await controller.users.resume(KEY, "ada")
    again = Placement(key=KEY, incarnation="i2", owner=EPOCH, session="made-anew")
    plan = await controller.plan_start(again)
    assert (plan.action, plan.session) == ("restore", "its-id")
    assert controller._sessions.row(KEY).session == "its-id"


async def test_session_that_was_saved_without_an_id_has_one_from_its_return_on(world):
    controller = await _left_by_the_old_one(world)
    back = Placement(key=KEY, incarnation="i2", owner=OLD, session="made-anew")
    plan = await controller.plan_start(back)
    assert (plan.action, plan.session) == ("restore", "made-anew")
