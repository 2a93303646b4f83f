"""What was put aside comes back by a person's word, beside a running session, too."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
from tests.support.simulated import KEY


def _runs(world, controller, text):
    """Whether the session runs, once, and holds that."""
    return world.phase(controller) == "running" and world.node.works() == [text]


def _kept(controller, key=KEY):
    return {state.id: state for state in controller.users.session(key).kept}


async def test_bring_back_after_start_fresh_and_a_stop_comes_back(world):
    controller, _ = await world.started("work")
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    await world.hub.stop(KEY)
    await controller.users.bring_back(KEY, saved, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["work"]


async def test_bring_back_of_a_suspended_session_swaps_and_swaps_back(world):
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    newer = await world.suspend(controller)
    await controller.users.bring_back(KEY, older, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["old"]
    assert _kept(controller)[newer].keeping == "aside"
    again = await world.suspend(controller)
    assert world.node.saved[again].info.generation == 3  # above all that there were
    await controller.users.bring_back(KEY, newer, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["new"]
    assert again in _kept(controller)


async def test_bring_back_of_what_is_gone_is_refused_and_changes_nothing(world):
    """The journal is older than the store, and names what was deleted since."""
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    newer = await world.suspend(controller)
    world.node.saved.pop(older)
    world.give_up()
    with pytest.raises(NotFound, match="checkpoint"):
        await controller.users.bring_back(KEY, older, "ada")
    assert controller.users.session(KEY).checkpoint == newer
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert world.node.works() == ["new"]


async def test_bring_back_that_waits_for_the_store_does_not_hit_the_next_session(world):
    controller, _ = await world.started("old")
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    world.node.switches.slow["checkpoints"] = 10.0
    wish = asyncio.ensure_future(
        controller.users.bring_back(KEY, saved, "ada", save_running=True)
    )
    await asyncio.sleep(0.1)
    world.node.switches.slow.clear()
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    works = world.node.works()
    with pytest.raises(Refused, match="runs"):
        await wish
    assert (world.phase(controller), world.node.works()) == ("running", works)


async def test_bring_back_while_the_store_is_silent_waits_for_it(world):
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    await world.suspend(controller)
    back = world.node.away("checkpoints")
    await controller.users.bring_back(KEY, older, "ada")
    back()
    await world.reaches(controller, "running")
    assert world.node.works() == ["old"]


async def test_bring_back_while_it_runs_saves_it_first_and_loses_nothing(world):
    """In the grace after a return: back to the state of 06:44."""
    controller, _ = await world.started("06:44")
    saved = await world.suspend(controller)
    await world.resume(controller, "now")
    with pytest.raises(Refused, match="suspended first"):
        await controller.users.bring_back(KEY, saved, "ada")
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: _runs(world, controller, "06:44"))
    (other,) = [s for s in _kept(controller).values() if s.keeping == "aside"]
    assert world.node.contents(other.id) == "now"


async def test_bring_back_while_it_runs_and_it_cannot_be_saved_leaves_it_running(world):
    controller, _ = await world.started("old")
    saved = await world.suspend(controller)
    await world.resume(controller, "now")
    world.node.failures["dump"] = Failure(code="io_uring", message="No.")
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: controller.users.session(KEY).failure is not None)
    await world.reaches(controller, "running")
    assert world.node.works() == ["now"]
    assert _kept(controller)[saved].keeping == "superseded"
    world.node.failures.clear()
    await world.suspend(controller)  # and the wish is over
    assert await world.hub.start(KEY) == "restore"
    assert world.node.works() == ["now"]


async def test_bring_back_wanted_state_does_not_expire_meanwhile(world):
    world.change(grace=3.0)
    controller, _ = await world.started("old")
    saved = await world.suspend(controller)
    await world.resume(controller, "now")
    world.node.hold_at = "dump"
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.reaches(controller, "suspending")
    row = controller._sessions.journal.checkpoint(saved)
    assert (row.keeping, row.expires) == ("wanted", None)
    world.node.hold_at = ""
    await world.until(lambda: _runs(world, controller, "old"))


async def test_bring_back_of_what_the_journal_does_not_know_is_found(world):
    controller, _ = await world.started("of before")
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    controller = await world.journal_lost(controller)
    world.hub.forget()
    assert await world.hub.start() in {"cold", "saved_found"}
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: _runs(world, controller, "of before"))


async def test_bring_back_of_a_session_that_nobody_knows_comes_back(world):
    """By its user or an administrator, once the journal and the Hub have lost it."""
    controller, _ = await world.started("work")
    saved = await world.suspend(controller)
    world.hub.forget()
    controller = await world.journal_lost(controller)
    await world.reaches(controller, "suspended")
    assert await world.hub.start() == "saved_found"
    await controller.users.bring_back(KEY, saved, "admin")
    await world.until(lambda: _runs(world, controller, "work"))


async def test_bring_back_of_anothers_or_of_nothing_is_not_found(world):
    controller, _ = await world.started("work")
    saved = await world.suspend(controller)
    await world.running("hers", SessionKey("eve"))
    await world.until(lambda: world.phase(controller, SessionKey("eve")) == "running")
    for key, checkpoint in ((SessionKey("eve"), saved), (KEY, "ckpt-none")):
        with pytest.raises(NotFound):
            await controller.users.bring_back(key, checkpoint, "eve")
    assert _kept(controller)[saved].keeping == "current"


async def test_bring_back_while_a_restore_runs_is_refused(world):
    controller, _ = await world.started("work")
    saved = await world.suspend(controller)
    world.node.hold_at = "criu"
    start = asyncio.ensure_future(world.hub.start(KEY))
    await world.reaches(controller, "resuming")
    with pytest.raises(Refused, match="under way"):
        await controller.users.bring_back(KEY, saved, "ada")
    world.node.hold_at = ""
    assert await start == "restore"
