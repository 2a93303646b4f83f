"""What was put aside comes back by a person's word, beside a running session, too."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.controlplane.conftest import KEY
from tests.controlplane.test_old_journal import contents, info, resume, running, suspend


async def _settled(world, controller):
    await world.until(lambda: world.phase(controller) == "running")


def _runs(world, controller, text):
    """Whether the session runs, once, and holds that."""
    held = [place.contents for place in world.node.living(KEY)]
    return world.phase(controller) == "running" and held == [text]


def _kept(controller, key=KEY):
    return {state.id: state for state in controller.users.session(key).kept}


async def test_bring_back_after_start_fresh_and_a_stop_comes_back(world):
    controller = await running(world, "work")
    saved = await suspend(world, controller)
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    await _settled(world, controller)
    await world.hub.stop(KEY)
    await controller.users.bring_back(KEY, saved, "ada")
    await _settled(world, controller)
    assert contents(world) == "work"


async def test_bring_back_of_a_suspended_session_swaps_and_swaps_back(world):
    controller = await running(world, "old")
    older = await suspend(world, controller)
    await resume(world, controller, "new")
    newer = await suspend(world, controller)
    await controller.users.bring_back(KEY, older, "ada")
    await _settled(world, controller)
    assert contents(world) == "old"
    assert _kept(controller)[newer].keeping == "aside"
    again = await suspend(world, controller)
    assert world.node.saved[again][0].generation == 3  # above all that there were
    await controller.users.bring_back(KEY, newer, "ada")
    await _settled(world, controller)
    assert contents(world) == "new"
    assert again in _kept(controller)


async def test_bring_back_of_what_is_gone_is_refused_and_changes_nothing(world):
    """The journal is older than the store, and names what was deleted since."""
    controller = await running(world, "old")
    older = await suspend(world, controller)
    await resume(world, controller, "new")
    newer = await suspend(world, controller)
    world.node.saved.pop(older)
    with pytest.raises(NotFound, match="checkpoint"):
        await controller.users.bring_back(KEY, older, "ada")
    assert controller.users.session(KEY).checkpoint == newer
    assert await world.hub.start(KEY) == "restore"
    await _settled(world, controller)
    assert contents(world) == "new"


class Slow:
    """An agent that tells what is saved when it is let go on."""

    def __init__(self, agent, asked, goes_on) -> None:
        self._agent = agent
        self._asked = asked
        self._goes_on = goes_on

    async def checkpoints(self, key=None):
        self._asked.set()
        await self._goes_on.wait()
        return await self._agent.checkpoints(key)


async def test_bring_back_that_waits_for_the_store_does_not_hit_the_next_session(
    world,
):
    controller = await running(world, "old")
    saved = await suspend(world, controller)
    await controller.users.start_fresh(KEY, "ada")
    asked, goes_on = asyncio.Event(), asyncio.Event()
    controller.users._agent = Slow(controller.users._agent, asked, goes_on)
    wish = asyncio.ensure_future(
        controller.users.bring_back(KEY, saved, "ada", save_running=True)
    )
    await asked.wait()
    assert await world.hub.start(KEY) == "cold"
    await _settled(world, controller)
    goes_on.set()
    with pytest.raises(Refused, match="runs"):
        await wish
    assert _runs(world, controller, "cold")


async def test_bring_back_while_the_store_is_silent_waits_for_it(world):
    controller = await running(world, "old")
    older = await suspend(world, controller)
    await resume(world, controller, "new")
    await suspend(world, controller)
    listed = world.node.checkpoints

    async def away(key=None):
        raise StoreError(Reason.STORE_FAILED, why="it does not answer")

    world.node.checkpoints = away
    await controller.users.bring_back(KEY, older, "ada")
    world.node.checkpoints = listed
    await _settled(world, controller)
    assert contents(world) == "old"


async def test_bring_back_while_it_runs_saves_it_first_and_loses_nothing(world):
    """In the grace after a return: back to the state of 06:44."""
    controller = await running(world, "06:44")
    saved = await suspend(world, controller)
    await resume(world, controller, "now")
    with pytest.raises(Refused, match="suspended first"):
        await controller.users.bring_back(KEY, saved, "ada")
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: _runs(world, controller, "06:44"))
    (other,) = [s for s in _kept(controller).values() if s.keeping == "aside"]
    assert world.node.saved[other.id][1] == "now"
    assert not world.node.lost


async def test_bring_back_while_it_runs_and_it_cannot_be_saved_leaves_it_running(
    world,
):
    controller = await running(world, "old")
    saved = await suspend(world, controller)
    await resume(world, controller, "now")
    world.node.capture_failure = Failure(code="io_uring", message="No.")
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: controller.users.session(KEY).failure is not None)
    await _settled(world, controller)
    assert contents(world) == "now"
    assert _kept(controller)[saved].keeping == "superseded"
    world.node.capture_failure = None
    await suspend(world, controller)  # and the wish is over
    assert await world.hub.start(KEY) == "restore"
    assert contents(world) == "now"


async def test_bring_back_wanted_state_does_not_expire_meanwhile(world):
    world.change(grace=0.3)
    controller = await running(world, "old")
    saved = await suspend(world, controller)
    world.node.hold_at = ""
    await resume(world, controller, "now")
    world.node.hold_at = "dump"
    await controller.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: world.phase(controller) == "suspending")
    row = controller._sessions.journal.checkpoint(saved)
    assert (row.keeping, row.expires) == ("wanted", None)
    world.node.hold_at = ""
    await world.until(lambda: _runs(world, controller, "old"))


async def test_bring_back_of_what_the_journal_does_not_know_is_found(world):
    controller = await running(world, "work")
    await world.hub.stop(KEY)
    world.node.saved["ckpt-in"] = (info("ckpt-in", 0), "of before")
    await controller.users.bring_back(KEY, "ckpt-in", "ada")
    await _settled(world, controller)
    assert contents(world) == "of before"


async def test_bring_back_of_a_session_that_nobody_knows_comes_back(world):
    controller = await world.controller()
    mine = msgspec.structs.replace(info("ckpt-in", 3), key=SessionKey("bob"))
    world.node.saved["ckpt-in"] = (mine, "of before")
    await world.until(lambda: world.phase(controller, mine.key) == "suspended")
    assert await world.hub.start(mine.key) == "saved_found"
    await controller.users.bring_back(mine.key, "ckpt-in", "admin")
    await world.until(lambda: world.phase(controller, mine.key) == "running")


async def test_bring_back_of_anothers_or_of_nothing_is_not_found(world):
    controller = await running(world, "work")
    saved = await suspend(world, controller)
    await world.running("hers", SessionKey("eve"))
    await world.until(lambda: world.phase(controller, SessionKey("eve")) == "running")
    for key, checkpoint in ((SessionKey("eve"), saved), (KEY, "ckpt-none")):
        with pytest.raises(NotFound):
            await controller.users.bring_back(key, checkpoint, "eve")
    assert _kept(controller)[saved].keeping == "current"


async def test_bring_back_while_a_restore_runs_is_refused(world):
    controller = await running(world, "work")
    saved = await suspend(world, controller)
    world.node.hold_at = "criu"
    start = world.hub.spawn(world.hub.start(KEY))
    await world.until(lambda: world.phase(controller) == "resuming")
    with pytest.raises(Refused, match="under way"):
        await controller.users.bring_back(KEY, saved, "ada")
    world.node.hold_at = ""
    assert await start == "restore"
