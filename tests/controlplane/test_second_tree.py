"""Two running trees of one session: reported, left alone, ended by a person's word."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from tests.controlplane.conftest import KEY
from tests.controlplane.test_old_journal import (
    Backup,
    restored_journal,
    resume,
    running,
    suspend,
)

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


@pytest.fixture
async def doubled(world):
    """A session whose second tree, of which nothing is kept, the Hub has forgotten."""
    first = await world.running("old work")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    second = await world.running("new work")
    await world.kill(controller)
    controller = await world.controller()
    await world.until(lambda: controller.users.session(KEY).failure)
    return controller, first, second


async def test_second_tree_is_reported_and_nothing_is_ended(world, doubled):
    controller, first, second = doubled

    failure = controller.users.session(KEY).failure

    assert failure.code == "second_tree"
    assert second in failure.message
    assert failure.incarnation == second
    assert set(world.node.places) == {first, second}
    assert [a.what for a in controller.users.audit(KEY)].count("report") == 1


@pytest.mark.parametrize("by_itself", [True, False])
async def test_stopped_session_whose_programs_run_is_listed_until_they_end(
    world, by_itself
):
    """Hub and journal were put back to before it was begun."""
    incarnation = await world.running("work")
    world.hub.states[KEY] = "stopped"
    controller = await world.controller()

    await world.until(lambda: any(v.key == KEY for v in controller.users.sessions()))

    (view,) = controller.users.sessions()
    assert (view.phase, view.failure.code) == ("stopped", "second_tree")
    assert view.failure.incarnation == incarnation
    if by_itself:
        world.node.places.clear()
    else:
        await controller.users.end_second(KEY, incarnation, "root")
    await world.until(lambda: not controller.users.sessions())
    assert not world.node.places


async def test_end_of_a_second_tree_never_reaches_another_persons(world, doubled):
    controller, _, _ = doubled
    theirs = await world.running("theirs", key=SessionKey("bob"))
    with pytest.raises(NotFound):
        await controller.users.end_second(KEY, theirs, "ada")
    assert theirs in world.node.places


async def test_doubled_session_is_not_suspended_until_one_is_ended(world, doubled):
    controller, first, second = doubled
    world.verdict = IDLE

    with pytest.raises(Refused):
        await controller.users.end_second(KEY, first, "root")
    neighbour = await world.running("work", SessionKey("bob"))
    for other in ("nobody", neighbour):
        with pytest.raises(NotFound):
            await controller.users.end_second(KEY, other, "root")
    assert set(world.node.places) == {first, second, neighbour}
    await controller.users.end_second(KEY, second, "root")

    await world.until(lambda: world.phase(controller) == "suspended")
    mine = [c for info, c in world.node.saved.values() if info.key == KEY]
    assert mine == ["old work"]


async def test_what_was_seen_to_run_is_known_also_when_the_hub_refuses_a_start(
    world, tmp_path, monkeypatch
):
    """Both databases were put back: beside a silent node a return would double it."""
    first = await running(world)
    saved = await suspend(world, first)
    backup = Backup(world, tmp_path)
    await resume(world, first)
    world.hub.pointers[KEY] = saved
    world.hub.states[KEY] = "stopped"
    second = await restored_journal(world, first, backup)
    await world.until(lambda: second.users.session(KEY).failure)

    async def refuses(self, key):
        raise Refused(Reason.HUB_REFUSED, why="no")

    async def silent(*_args):
        raise StoreError(Reason.STORE_FAILED, why="it is away")

    world.node.trees = silent
    monkeypatch.setattr(HubClient, "start", refuses)
    await second.users.resume(KEY, "ada")
    await world.until(lambda: second._sessions.row(KEY).intent is Intent.NONE)
    assert second.users.session(KEY).failure.code == "second_tree"
