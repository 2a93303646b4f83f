"""A deleted server: ordered once, carried out whoever is away, never inherited."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common import deletion_orders
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import Placement
from jupyterhub_gpu_reclaim.controlplane import expiry
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.policy.retention import Retention
from tests.support.simulated import DELETED, KEY

OLD, NEW = "7.20260101T000000000000", "7.20261122T000000000000"


async def _suspended(world, **more):
    await world.running("of the old one")
    controller = await world.controller(**more)
    await world.reaches(controller, "running")
    await world.suspend(controller)
    return controller


def ordered(world, folder):
    """The Hub has noted that the server is deleted; the order's file."""
    world.give_up()
    return deletion_orders.write(folder, DELETED)


async def _nothing_is_left(world, controller) -> None:
    """And nothing comes back, for as many looks as a test can wait for."""
    await world.until(lambda: not world.node.saved and not world.node.places)
    await world.until(lambda: not controller._deletions.pending_keys())
    for _ in range(20):
        assert world.phase(controller) == ""
        await asyncio.sleep(0.2)
    assert not [v for v in controller.users.sessions() if v.key == KEY]
    world.hub.forget()
    assert await world.hub.start(KEY) == "cold"
    assert len(world.node.living(KEY)) == 1


@pytest.mark.parametrize("missing", ["discard", "checkpoints", "trees"])
async def test_deletion_is_repeated_until_the_node_and_its_store_are_back(
    world, missing
):
    controller = await _suspended(world)
    back = world.node.away(missing)
    await controller.forget(DELETED)
    await asyncio.sleep(2)
    assert controller._deletions.pending_keys() == {KEY}
    back()
    await _nothing_is_left(world, controller)


async def test_deletion_ordered_while_no_service_was_there_is_taken_up(world, tmp_path):
    controller = await _suspended(world)
    await world.kill(controller)
    ordered(world, tmp_path)
    second = await world.controller(folder=tmp_path)
    await _nothing_is_left(world, second)
    assert list(tmp_path.glob("deletions/*")) == []


async def test_order_that_is_told_as_well_is_one_order(world, tmp_path):
    controller = await _suspended(world, folder=tmp_path)
    path = ordered(world, tmp_path)
    await controller.forget(Deletion(user=KEY.user, order=path.stem))
    await _nothing_is_left(world, controller)
    lines = [line.what for line in controller._sessions.journal.audit(KEY)]
    assert lines.count("forget") == lines.count("forgotten") == 1


async def test_order_that_is_told_late_does_not_hit_the_next_session(world, tmp_path):
    """The call hung in the network; a new account of that name works by now."""
    controller = await _suspended(world, folder=tmp_path)
    path = ordered(world, tmp_path)
    world.hub.forget()
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    assert not path.exists()
    await controller.forget(Deletion(user=KEY.user, order=path.stem))
    await asyncio.sleep(2)
    assert world.phase(controller) == "running"
    assert len(world.node.living(KEY)) == 1


async def test_order_of_a_folder_that_the_service_does_not_see_is_carried_out_once(
    world,
):
    controller = await _suspended(world)
    order = Deletion(user=KEY.user, order="elsewhere")
    await controller.forget(order)
    await _nothing_is_left(world, controller)
    await controller.forget(order)
    assert controller._deletions.pending_keys() == set()


async def test_mark_of_an_order_is_kept_for_days_or_as_long_as_its_file(
    world, tmp_path, monkeypatch
):
    def fails(path):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(deletion_orders, "remove", fails)
    controller = await _suspended(world, folder=tmp_path)
    left = deletion_orders.write(tmp_path, Deletion(user="eve")).stem
    journal = controller._sessions.journal
    journal.note(NoteKind.DELETION, "old", 1.0)
    journal.note(NoteKind.DELETION, left, 1.0)
    await controller.forget(Deletion(user=KEY.user, order="new"))
    await world.kill(controller)
    controller = await world.controller(folder=tmp_path)

    def noted():
        return controller._sessions.journal.notes(NoteKind.DELETION, float)

    await world.until(lambda: "old" not in noted())
    assert noted().keys() >= {"new", left}


async def test_order_that_was_taken_up_is_known_whatever_is_announced(world, tmp_path):
    """Announcements of deletions have marks, too, and forget them."""
    controller = await _suspended(world, folder=tmp_path)
    path = ordered(world, tmp_path)
    await _nothing_is_left(world, controller)
    await world.reaches(controller, "running")
    expiry.give_notice(controller._sessions, Retention(), 3600.0)
    await controller.forget(Deletion(user=KEY.user, order=path.stem))
    assert controller._deletions.pending_keys() == set()


async def test_order_whose_file_cannot_be_removed_does_not_hit_the_next_session(
    world, tmp_path, monkeypatch
):
    controller = await _suspended(world, folder=tmp_path)

    def fails(path):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(deletion_orders, "remove", fails)
        path = ordered(world, tmp_path)
        await controller.forget(Deletion(user=KEY.user, order=path.stem))
        await _nothing_is_left(world, controller)
        await world.reaches(controller, "running")
        await asyncio.sleep(2)
        assert path.exists()
        assert world.phase(controller) == "running"
    await world.until(lambda: not path.exists())
    await asyncio.sleep(2)
    assert world.phase(controller) == "running"


async def test_file_that_is_no_order_is_put_out_of_the_way(world, tmp_path, caplog):
    good = deletion_orders.write(tmp_path, DELETED)
    bad = good.with_name("0.json")
    bad.write_text("{")
    assert [told.key for _, told in deletion_orders.pending(tmp_path)] == [KEY]
    assert "is not an order to delete" in caplog.text
    assert bad.with_suffix(".bad").exists()


async def test_new_session_of_that_name_is_not_hit_by_the_order(world):
    """The old one's tree and checkpoint cannot be reached while the new one begins."""
    await world.running("of the old one")
    controller = await world.controller()
    await world.reaches(controller, "running")
    release = world.node.away("release")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.hub.states[KEY] == "stopped")
    (old,) = world.node.places
    back = world.node.away("kill", "discard")
    await controller.forget(DELETED)
    release()
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    new = controller.users.session(KEY).incarnation
    world.node.places[new].tree.contents = "of the new one"
    await world.suspend(controller)
    back()
    await world.until(lambda: old not in world.node.places)
    await world.until(lambda: len(world.node.saved) == 1)
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert world.node.works() == ["of the new one"]


@pytest.mark.parametrize("told", [("s1",), ()])
async def test_session_that_the_hub_names_is_ended_though_the_journal_never_knew_it(
    world, told
):
    """Journal and Hub were put back to before it; what is beside the Hub knows it."""
    place = world.node.run(KEY, "of the deleted one")
    place.session, place.account = "s1", OLD
    world.hub.states[KEY] = "stopped"
    back = world.node.away("trees")
    controller = await world.controller()
    await controller.forget(Deletion(user=KEY.user, account=OLD, sessions=told))
    new = Placement(key=KEY, incarnation="new", owner=NEW)
    assert (await controller.plan_start(new)).action == "cold"
    world.node.run(KEY, "of the new one", "new").account = NEW
    await controller.placed(new)
    world.hub.run()
    await world.kill(controller)
    back()
    second = await world.controller()
    await world.until(lambda: not second._deletions.pending_keys())
    left = world.node.works()
    # Where none is named, it is reported to the administrator.
    assert left == ([] if told else ["of the deleted one"]) + ["of the new one"]


async def test_server_that_its_own_account_has_begun_anew_is_not_ended(world):
    """The order is pending, and the Hub has started it without the service."""
    back = world.node.away("trees")
    controller = await world.controller()
    await controller.forget(Deletion(user=KEY.user, account=OLD, sessions=("s1",)))
    place = world.node.run(KEY, "begun anew")
    place.session, place.account = "s2", OLD
    world.hub.run()
    back()
    await world.until(lambda: not controller._deletions.pending_keys())
    await world.reaches(controller, "running")
    assert world.node.works() == ["begun anew"]


@pytest.mark.parametrize("runs", [True, False])
async def test_deletion_of_an_account_is_not_about_who_had_its_name_before(world, runs):
    """Ann is renamed to Eve; another Ann is made, and deleted. Eve's work is hers."""
    controller = await world.controller()
    eves = Placement(key=KEY, incarnation="i1", owner=OLD)
    assert (await controller.plan_start(eves)).action == "cold"
    world.node.run(KEY, "of Eve", "i1").account = OLD
    await controller.placed(eves)
    world.hub.run()
    await world.reaches(controller, "running")
    if not runs:
        await world.suspend(controller)
    await controller.forget(Deletion(user=KEY.user, account=NEW))
    await world.until(lambda: not controller._deletions.pending_keys())
    if runs:
        assert world.node.works() == ["of Eve"]
    else:
        assert len(world.node.saved) == 1
    assert world.phase(controller) == ("running" if runs else "suspended")


async def test_silent_node_of_a_deleted_session_hinders_no_new_one(world):
    controller = await _suspended(world)
    back = world.node.away("trees")
    await controller.forget(DELETED)
    with pytest.raises(NotFound):
        controller.users.session(KEY)
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "cold"
    back()
    plan = await controller.plan_start(Placement(key=KEY, incarnation="new"))
    assert plan.action == "cold"
