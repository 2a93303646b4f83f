"""Two running trees of one session: reported, left alone, ended by a person's word."""

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


@pytest.fixture
async def doubled(world):
    """A session whose second tree, of which nothing is kept, the Hub has forgotten."""
    controller, first = await world.started("old work")
    await world.kill(controller)
    second = world.node.run(KEY, "new work").incarnation
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


async def test_what_runs_unknown_to_hub_and_journal_is_the_session_and_can_be_saved(
    world,
):
    """Hub and journal were put back to before it was begun."""
    incarnation = await world.running("work")
    world.hub.forget()
    controller = await world.controller()

    await world.reaches(controller, "running")

    assert controller.users.session(KEY).incarnation == incarnation
    await controller.users.suspend(KEY, "root")
    await world.reaches(controller, "suspended")
    assert not world.node.places


async def test_end_of_a_second_tree_never_reaches_another_persons(world, doubled):
    controller, _, _ = doubled
    theirs = await world.running("theirs", key=SessionKey("bob"))
    with pytest.raises(NotFound):
        await controller.users.end_tree(KEY, theirs, "ada")
    assert theirs in world.node.places


async def test_doubled_session_is_not_suspended_until_one_is_ended(world, doubled):
    controller, first, second = doubled
    world.verdict = IDLE

    with pytest.raises(Refused):
        await controller.users.end_tree(KEY, first, "root")
    neighbour = await world.running("work", SessionKey("bob"))
    for other in ("nobody", neighbour):
        with pytest.raises(NotFound):
            await controller.users.end_tree(KEY, other, "root")
    assert set(world.node.places) == {first, second, neighbour}
    await controller.users.end_tree(KEY, second, "root")

    await world.reaches(controller, "suspended")
    saved = {each.info.key: each.info.id for each in world.node.saved.values()}
    assert world.node.contents(saved[KEY]) == "old work"
