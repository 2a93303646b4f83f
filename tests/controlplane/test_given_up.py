"""A return that was given up, and whose tree runs all the same.

Nobody can tell from outside whether it was used: it is taken over, never ended for that
alone, and what it came from is kept until it is known to have answered.
"""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import Failure
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.settle import failure_of
from tests.controlplane.test_faults import begin_return, restored_behind_the_hub
from tests.support.simulated import KEY


@pytest.fixture
def given_up(world):
    """Call a return off without an answer; its service ends, and it runs as i2."""

    async def make():
        first = await world.suspended("saved")
        (saved,) = world.node.saved
        mine = await begin_return(world, first, whole=False)
        silent = Unreachable(Reason.NODE_SILENT, node="node1")
        back = world.node.away("kill", error=silent)
        await first.cancelled(mine)
        await world.kill(first)
        world.hub.states[KEY] = "stopped"
        back()
        world.node.hold_at = ""
        await world.until(lambda: stands(world))
        await asyncio.sleep(1)  # its agent says so
        return saved

    return make


def stands(world) -> bool:
    """Whether it runs as i2."""
    tree = world.node.places["i2"].tree
    return tree is not None and tree.whole and tree.runs


async def used(world):
    """Its user comes to it and works; then all memories are those of before."""
    second = await world.controller()
    backup = world.backup()
    assert await world.hub.start(KEY) == "adopt"
    world.node.places["i2"].tree.contents = "used"
    return second, backup


async def back_to(world, controller, backup):
    world.hub.states[KEY] = "stopped"  # the Hub's database is put back as well
    third = await world.journal_put_back(controller, backup)
    await world.reaches(third, "running")
    return third


async def test_both_databases_put_back_end_nothing_that_was_used_since(world, given_up):
    await given_up()
    third = await back_to(world, *await used(world))
    newer = await world.suspend(third)
    assert world.node.contents(newer) == "used"


async def test_the_same_after_a_save_point(world, given_up):
    await given_up()
    second, backup = await used(world)
    await second.users.save(KEY, "ada", "")
    await world.until(lambda: len(world.node.saved) == 2)
    (point,) = {each.info.id for each in world.node.saved.values() if each.info.goes_on}
    third = await back_to(world, second, backup)
    await world.until(lambda: third._sessions.row(KEY).checkpoint == point)


async def test_the_same_after_a_suspend_that_failed(world, given_up):
    await given_up()
    second, backup = await used(world)
    world.node.failures["dump"] = Failure(code="capture_failed", message="No.")
    await second.users.suspend(KEY, "ada")
    await world.until(lambda: second._sessions.row(KEY).failures)
    world.node.failures.clear()
    await back_to(world, second, backup)


async def test_what_it_came_from_is_kept_while_nobody_has_had_an_answer(
    world, given_up
):
    """It may hang; then what was saved is all that there is."""
    world.change(grace=2.0)
    saved = await given_up()
    second = await world.controller()
    await world.reaches(second, "running")
    await asyncio.sleep(10)
    world.node.end("i2")
    await world.reaches(second, "suspended")
    assert second.users.session(KEY).checkpoint == saved


async def test_what_it_came_from_has_its_time_once_its_user_has_it(world, given_up):
    world.change(grace=3.0)
    saved = await given_up()
    second = await world.controller()
    await world.reaches(second, "running")
    assert await world.hub.start(KEY) == "adopt"
    await world.until(lambda: saved not in world.node.saved)


async def test_refusal_is_over_once_its_own_user_has_it(world, given_up):
    """Another account's start was refused, as ``owners`` does."""
    await given_up()
    second = await world.controller()
    await world.reaches(second, "running")
    refused = failure_of(Reason.NOT_ADOPTED, user="ada", why="It is another's.")
    second._sessions.update(KEY, failure=refused)
    assert await world.hub.start(KEY) == "adopt"
    assert second._sessions.row(KEY).failure is None


async def test_nothing_is_taken_over_in_a_pod_that_is_being_deleted(world, given_up):
    saved = await given_up()
    world.node.switches.ending = True
    second = await world.controller()
    await asyncio.sleep(3 * world.settings.orphan_grace)
    assert world.phase(second) == "suspended"
    world.node.end("i2")  # its kubelet is back
    assert await world.hub.start(KEY) == "restore"
    assert saved in world.node.saved


@pytest.mark.parametrize("order", ["resume", "bring back"])
async def test_its_users_order_starts_its_server_which_joins_it(world, given_up, order):
    saved = await given_up()
    world.change(orphan_grace=200.0)
    second = await world.controller()
    if order == "resume":
        await second.users.resume(KEY, "ada")
    else:
        await second.users.bring_back(KEY, saved, "ada")
    await world.until(lambda: world.hub.states[KEY] == "running")
    assert [place.incarnation for place in world.node.living()] == ["i2"]


async def test_order_to_end_it_is_not_repeated_where_it_is_all_there_is(world):
    """The store was put back to before it was suspended; the order has no answer."""
    controller, answers, mine = await restored_behind_the_hub(world)
    await controller.cancelled(mine)
    world.hub.states[KEY] = "stopped"
    world.node.saved.clear()
    world.give_up()
    answers()
    await world.reaches(controller, "running")
    assert world.node.living(KEY)
