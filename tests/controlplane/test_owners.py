"""A user's name that another account of the Hub has now: nothing is inherited."""

import math

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Failure, Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import owners
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import Keeping
from tests.support.simulated import DELETED, KEY

OLD, NEW = "7.20260101T000000000000", "7.20261122T000000000000"
LEFT = Deletion(user=KEY.user, server=KEY.server, kept_from="service lms")


def _placement(incarnation: str, owner: str, key: SessionKey = KEY) -> Placement:
    return Placement(key=key, incarnation=incarnation, owner=owner)


async def _starts(world, controller, incarnation: str, owner: str) -> None:
    """A start of that account, which is cold; it runs."""
    plan = await controller.plan_start(_placement(incarnation, owner))
    assert plan.action == "cold"
    world.node.run(KEY, "work", incarnation).account = owner
    await controller.placed(_placement(incarnation, owner))
    world.hub.run()
    await world.reaches(controller, "running")


async def _refused(controller, incarnation: str, owner: str) -> None:
    plan = await controller.plan_start(_placement(incarnation, owner))
    assert (plan.action, plan.failure.code) == ("refuse", "former_account")
    assert plan.identity is None


async def _left_by_the_old_one(world):
    controller = await world.controller()
    await _starts(world, controller, "i1", OLD)
    await controller.users.opt_out(KEY, True, "root")
    await world.suspend(controller)
    return controller


async def test_account_that_has_started_nothing_yet_is_told_by_its_time(world):
    """It has nothing but the name: the Hub's database is a new one, say."""
    users = (await _left_by_the_old_one(world)).users
    former = owners.made(OLD)
    assert owners.made(NEW) - former == 325 * 86400
    for same in (former, former + 0.7, math.inf):
        users.compare_account(KEY, same)
        assert not users._sessions.row(KEY).claimed
    users.compare_account(KEY, owners.made(NEW))
    for order in (users.delete(KEY, KEY.user), users.resume(KEY, KEY.user)):
        with pytest.raises(Refused, match="another account"):
            await order
    users.compare_account(SessionKey("nobody"), owners.made(NEW))
    assert SessionKey("nobody") not in {view.key for view in users.sessions()}


async def test_new_account_orders_nothing_of_what_runs_of_the_former_one(world):
    controller = await world.controller()
    await _starts(world, controller, "i1", OLD)
    users, ada = controller.users, KEY.user
    saved = await world.saved(controller, "mine")
    users.compare_account(KEY, owners.made(NEW))
    before = users._sessions.row(KEY)
    for order in (
        users.suspend(KEY, ada),
        users.save(KEY, ada, "mine"),
        users.rename(KEY, saved, "", ada),
        users.nap(KEY, ada),
        users.wake(KEY, ada),
        users.keep(KEY, 60.0, ada),
        users.opt_out(KEY, True, ada),
        users.revoke_tabs(KEY, ada),
    ):
        with pytest.raises(Refused, match="another account"):
            await order
    assert users._sessions.row(KEY) == before
    await users.keep(KEY, 60.0, "root")


async def test_new_account_does_not_answer_what_the_former_one_was_asked(world):
    controller = await _left_by_the_old_one(world)
    users, journal = controller.users, controller._sessions.journal
    users._sessions.update(KEY, failure=Failure(code="files_newer", message="Newer."))
    users.compare_account(KEY, owners.made(NEW))
    with pytest.raises(Refused, match="another account"):
        await users.put_files_back(KEY, KEY.user)
    assert journal.notes(NoteKind.FILES_BACK, float) == {}
    assert "put files back" not in {line.what for line in users.audit(KEY)}


@pytest.mark.parametrize("found_first", [True, False])
async def test_journal_lost_the_manifest_says_whose_it_is(world, found_first):
    """The account was deleted while the store was away, and the order is lost, too."""
    first = await _left_by_the_old_one(world)
    if not found_first:
        world.change(tick_interval=60.0)
        world.hub.states[KEY] = "spawning"
    second = await world.journal_lost(first)
    if found_first:
        await world.reaches(second, "suspended")
    for _ in range(2):
        await _refused(second, "i2", NEW)
    with pytest.raises(Refused, match="another account"):
        await second.users.resume(KEY, "ada")
    if found_first:
        await second.users.start_fresh(KEY, "ada")
        assert second.users.session(KEY).kept == []
        assert (await second.plan_start(_placement("i3", NEW))).action == "cold"
        return
    plan = await second.plan_start(_placement("i3", OLD))
    assert plan.failure.code == "saved_found"  # which its user may answer
    await second.users.resume(KEY, "ada")
    assert (await second.plan_start(_placement("i4", OLD))).action == "restore"


@pytest.mark.parametrize("tried", [True, False])
async def test_journal_lost_what_is_nobodys_needs_a_managers_word(world, tried):
    second = await world.journal_lost(await _left_by_the_old_one(world))
    await world.reaches(second, "suspended")
    if tried:
        await _refused(second, "i2", NEW)
    await second.users.renew_login(KEY, "root")
    await second.users.resume(KEY, "root", manages=True)
    assert (await second.plan_start(_placement("i3", NEW))).action == "restore"
    row = second._sessions.row(KEY)
    assert (row.account, row.claimed) == (NEW, False)


async def test_journal_lost_what_is_to_be_deleted_is_not_kept_for_a_former_account(
    world,
):
    first = await _left_by_the_old_one(world)
    second = await world.journal_lost(first)
    await world.reaches(second, "suspended")
    back = world.node.away("discard")
    await second.forget(DELETED)
    assert (await second.plan_start(_placement("i2", NEW))).action == "cold"
    back()
    await world.until(lambda: not world.node.saved)


async def test_new_account_of_that_name_inherits_nothing(world):
    """Its generations go on from the former one's: else a lost journal mixes them."""
    controller = await _left_by_the_old_one(world)
    await controller.users.keep(KEY, 3600, "ada")
    (old,) = world.node.saved
    for _ in range(2):  # trying again is no choice
        await _refused(controller, "i2", NEW)
    with pytest.raises(Refused, match="another account"):
        await controller.users.resume(KEY, "ada")
    await controller.users.start_fresh(KEY, "ada")
    assert controller.users.session(KEY).kept == []
    await _starts(world, controller, "i3", NEW)
    view = controller.users.session(KEY)
    assert (view.kept, view.last_suspend, view.generation) == ([], None, 0)
    assert view.facts.opted_out_by == ""
    with pytest.raises(NotFound):
        await controller.users.delete(KEY, "ada", everything=True)
    (former,) = controller._sessions.journal.checkpoints(KEY)
    assert former.keeping is Keeping.ASIDE
    assert former.expires > world.now()
    await controller.users.keep(KEY, 3600, "ada")
    await controller.users.keep(KEY, 0, "ada")
    await world.suspend(controller)
    new = controller.users.session(KEY).checkpoint
    saved = [each.info for each in world.node.saved.values()]
    assert {info.id: info.generation for info in saved} == {old: 1, new: 2}
    second = await world.journal_lost(controller)
    await world.reaches(second, "suspended")
    assert second.users.session(KEY).checkpoint == new
    await second.users.resume(KEY, "ada")
    assert (await second.plan_start(_placement("i4", NEW))).action == "restore"
    assert old not in {each.id for each in second.users.session(KEY).kept}


@pytest.mark.parametrize("given_up", [True, False])
async def test_account_that_is_back_with_the_hubs_database_has_its_session_back(
    world, given_up
):
    """A younger one of that name had wanted it, or chosen to start fresh meanwhile."""
    controller = await _left_by_the_old_one(world)
    (saved,) = world.node.saved
    await controller.forget(LEFT)
    await _refused(controller, "i2", NEW)
    if given_up:
        await controller.users.start_fresh(KEY, "ada")
    back = msgspec.structs.replace(_placement("i3", OLD), checkpoint=saved)
    plan = await controller.plan_start(back)
    assert (plan.action, plan.checkpoint) == ("restore", saved)
    assert not controller._sessions.row(KEY).claimed


@pytest.mark.parametrize("kept", [True, False])
async def test_new_account_is_not_asked_about_what_the_old_one_did_not_leave_suspended(
    world, kept
):
    controller = await _left_by_the_old_one(world)
    if kept:
        await controller.users.start_fresh(KEY, "ada")
    else:
        await controller.users.delete(KEY, "ada", everything=True)
    assert (await controller.plan_start(_placement("i3", NEW))).action == "cold"
    assert controller.users.sessions() == []
    assert len(world.node.saved) == kept


async def test_new_account_that_started_without_us_is_not_shown_the_old_session(world):
    controller = await _left_by_the_old_one(world)
    world.node.run(KEY, "of the new one", "i2").account = NEW
    await controller.placed(_placement("i2", NEW))
    assert controller.users.session(KEY).kept == []
    assert controller._sessions.row(KEY).account == NEW
    assert len(world.node.saved) == 1


async def test_other_server_of_a_new_account_starts_and_is_its_own(world):
    controller = await _left_by_the_old_one(world)
    other = SessionKey(KEY.user, "other")
    for incarnation in ("i2", "i3"):
        placement = _placement(incarnation, NEW, other)
        assert (await controller.plan_start(placement)).action == "cold"
        world.node.run(other, "of the new one", incarnation)
        await controller.placed(placement)
        world.hub.run(other)
        await world.reaches(controller, "running", other)
        world.node.end(incarnation)
        world.hub.states[other] = "stopped"
        await world.reaches(controller, "stopped", other)
    await _refused(controller, "i4", NEW)


@pytest.fixture
async def began_beside(world):
    """The new account's session, which began while the store was silent.

    The deletion of the former one was lost with the journal.
    """
    first = await _left_by_the_old_one(world)
    world.node.away("checkpoints", error=StoreError(Reason.STORE_UNREACHABLE))
    controller = await world.journal_lost(first)
    world.node.run(KEY, "of the new one", "i2").account = NEW
    await controller.placed(_placement("i2", NEW))
    world.hub.run()
    await world.reaches(controller, "running")
    return controller


async def _answers_again(world, controller) -> str:
    """The store does; returns what is found there."""
    world.node.switches.away.clear()
    (old,) = world.node.saved
    await world.until(lambda: controller._sessions.journal.checkpoint(old) is not None)
    return old


async def _ends(world, controller) -> None:
    world.node.end("i2")
    world.hub.states[KEY] = "stopped"
    await world.until(lambda: world.phase(controller) != "running")


async def test_new_account_that_asks_for_what_nobody_has_found_yet_is_not_given_it(
    world, began_beside
):
    world.change(tick_interval=60.0)
    world.give_up()
    await began_beside.cancelled(_placement("i2", NEW))
    world.node.switches.away.clear()
    (old,) = world.node.saved
    with pytest.raises(NotFound):
        await began_beside.users.bring_back(KEY, old, "ada")


async def test_manager_brings_back_what_another_account_has_left_or_another_hub(
    world, began_beside
):
    old = await _answers_again(world, began_beside)
    await _ends(world, began_beside)
    await began_beside.users.bring_back(KEY, old, "root", manages=True)
    plan = await began_beside.plan_start(_placement("i3", NEW))
    assert (plan.action, plan.checkpoint) == ("restore", old), plan.failure


async def test_manager_brings_back_for_who_has_no_session_yet(world):
    """The other Hub has an account of its own for the same person."""
    second = await world.journal_lost(await _left_by_the_old_one(world))
    await world.reaches(second, "suspended")
    (saved,) = world.node.saved
    await second.users.bring_back(KEY, saved, "root", manages=True)
    plan = await second.plan_start(_placement("i3", NEW))
    assert (plan.action, plan.checkpoint) == ("restore", saved), plan.failure


async def _running_of_the_old_one(world):
    controller = await world.controller()
    await _starts(world, controller, "i1", OLD)
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


@pytest.mark.parametrize("let_in", [True, False])
async def test_running_session_of_an_old_account_is_neither_adopted_nor_ended(
    world, let_in
):
    """An administrator lets the new one in, or has it saved: it may be another's."""
    controller = await _running_of_the_old_one(world)
    world.hub.states[KEY] = "stopped"
    plan = await controller.plan_start(_placement("i2", NEW))
    assert (plan.action, plan.failure.code) == ("refuse", "not_adopted")
    assert controller.users.session(KEY).failure.code == "not_adopted"
    with pytest.raises(Refused):
        await controller.users.start_fresh(KEY, "ada")
    assert world.node.works() == ["work"]
    if let_in:
        await controller.users.renew_login(KEY, "root")
        plan = await controller.plan_start(_placement("i3", NEW))
        assert (plan.action, plan.incarnation) == ("adopt", "i1")
        assert plan.renew_login
        assert controller.users.session(KEY).failure is None
        return
    await controller.users.suspend(KEY, "root")
    await world.reaches(controller, "suspended")
    await _refused(controller, "i3", NEW)
    await controller.users.start_fresh(KEY, "ada")
    assert (await controller.plan_start(_placement("i4", NEW))).action == "cold"
    assert len(world.node.saved) == 1


async def test_journal_of_before_a_session_proves_no_new_account_to_be_its_owner(world):
    """The journal says "stopped"; the former account's session runs unseen."""
    first = await _running_of_the_old_one(world)
    world.node.end("i1")
    world.hub.states[KEY] = "stopped"
    await world.reaches(first, "stopped")
    backup = world.backup()
    await first.plan_start(_placement("i2", OLD))
    world.node.run(KEY, "work", "i2")
    await first.placed(_placement("i2", OLD))
    await world.kill(first)
    world.change(tick_interval=60.0)
    second = await world.journal_put_back(first, backup)
    plan = await second.plan_start(_placement("i3", NEW))
    assert not plan.owned
    assert world.node.works() == ["work"]


async def test_what_a_program_deleted_with_its_user_is_kept_for_a_while(world):
    """An LMS, say: nobody who knows what is saved has said that it may go."""
    world.change(set_aside=5.0)
    controller = await _left_by_the_old_one(world)
    world.hub.forget()
    await controller.forget(LEFT)
    assert world.phase(controller) == "suspended"
    await world.until(lambda: not world.node.saved)
    await world.reaches(controller, "stopped")


@pytest.mark.parametrize("visited", [False, True])
async def test_what_a_program_left_is_the_new_accounts_on_a_managers_word_alone(
    world, visited
):
    controller = await _left_by_the_old_one(world)
    world.hub.forget()
    await controller.forget(LEFT)
    if visited:
        await _refused(controller, "i2", NEW)
    users = controller.users
    for attempt in (
        users.delete(KEY, KEY.user),
        users.delete(KEY, KEY.user, everything=True),
        users.resume(KEY, KEY.user),
        users.bring_back(KEY, "any", KEY.user),
    ):
        with pytest.raises(Refused) as refused:
            await attempt
        assert refused.value.reason is Reason.FORMER_ACCOUNT
    assert len(world.node.saved) == 1
    await users.resume(KEY, "root", manages=True)
    (kept,) = controller._sessions.journal.checkpoints(KEY)
    assert kept.expires is None
    assert (await controller.plan_start(_placement("i3", NEW))).action == "restore"
    await _refused(controller, "i4", OLD)


@pytest.mark.parametrize("session", ["its-id", ""])
async def test_session_keeps_its_id_through_its_returns_and_a_lost_journal(
    world, session
):
    """One that was saved without an id has one from its return on."""
    controller = await world.controller()
    await _starts(world, controller, "i1", OLD)
    world.node.places["i1"].session = session
    await world.suspend(controller)
    controller = await world.journal_lost(controller)
    await world.reaches(controller, "suspended")
    assert controller._sessions.row(KEY).session == session
    await controller.users.resume(KEY, "ada")
    again = Placement(key=KEY, incarnation="i2", owner=OLD, session="made-anew")
    plan = await controller.plan_start(again)
    assert (plan.action, plan.session) == ("restore", session or "made-anew")
    assert controller._sessions.row(KEY).session == plan.session


async def test_tree_of_another_account_that_nobody_has_heard_of_can_be_given(world):
    """Both databases are of before it; an administrator says whose it is."""
    controller = await world.controller()
    world.node.run(KEY, "work", "i1").account = OLD
    plan = await controller.plan_start(_placement("i2", NEW))
    assert (plan.action, plan.failure.code) == ("refuse", "not_adopted")
    assert controller.users.session(KEY).failure.code == "not_adopted"
    await controller.users.renew_login(KEY, "root")
    plan = await controller.plan_start(_placement("i3", NEW))
    assert (plan.action, plan.incarnation) == ("adopt", "i1")
