"""The service killed after every single journal write of a suspend and of a resume.

After each, a new one starts on the same journal, the same node and the same Hub, and
the session must be RUNNING or SUSPENDED with its contents: never lost, never doubled.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import TreeState
from tests.controlplane.conftest import KEY
from tests.controlplane.doubles import JournalThatDies, PowerCut

#: More writes than a suspend or a resume has; the last ones do not strike.
WRITES = range(1, 8)


async def _until_dead_or(world, journal, condition) -> None:
    await world.until(lambda: journal.dead or condition())


async def _settled(world, controller) -> str:
    """The phase that the session ends in, and that it is neither lost nor doubled."""

    def settled() -> bool:
        return (
            world.phase(controller) in {"running", "suspended"}
            and world.hub.states.get(KEY) in {"running", "stopped"}
            and not controller.users.session(KEY).facts.intent
        )

    for _ in range(5):  # it must stay so
        await world.until(settled)
        await asyncio.sleep(0.05)
    phase = world.phase(controller)
    living = world.node.living(KEY)
    saved = [contents for _, contents in world.node.saved.values()]
    if phase == "running":
        assert [(p.contents, p.state) for p in living] == [
            ("tensors", TreeState.RUNNING)
        ]
        assert controller.users.session(KEY).incarnation == living[0].incarnation
    else:
        assert living == []
        assert saved == ["tensors"]
    assert world.node.lost == []
    assert world.hub.errors == []
    return phase


async def _comes_back(world, controller) -> None:
    """Whatever it ended in, its user gets it."""
    if world.hub.states[KEY] == "stopped":
        assert await world.hub.start(KEY) in {"restore", "adopt"}
    await world.until(lambda: world.phase(controller) == "running")
    (place,) = world.node.living(KEY)
    assert place.contents == "tensors"


async def _killed(world, journal, controller) -> None:
    """The dead program's tasks are gone; tasks of the Hub may still be under way."""
    await world.kill(controller)
    for task in list(world.hub.tasks):
        if task.done() and not task.cancelled():
            task.exception()


def _mute(loop, context) -> None:
    if not isinstance(context.get("exception"), PowerCut):
        loop.default_exception_handler(context)


@pytest.mark.parametrize("writes", WRITES)
async def test_suspend_service_killed_after_write_is_settled(world, writes):
    asyncio.get_running_loop().set_exception_handler(_mute)
    await world.running("tensors")
    first = await world.controller()
    await world.until(lambda: world.phase(first) == "running")
    await world.kill(first)

    journal = JournalThatDies(world.url, writes)
    second = await world.controller(journal)
    with contextlib.suppress(PowerCut):
        await second.users.suspend(KEY, "ada")
    await _until_dead_or(world, journal, lambda: world.phase(second) == "suspended")
    await _killed(world, journal, second)

    third = await world.controller()
    await _settled(world, third)
    await _comes_back(world, third)


@pytest.mark.parametrize("writes", WRITES)
async def test_resume_service_killed_after_write_is_settled(world, writes):
    asyncio.get_running_loop().set_exception_handler(_mute)
    await world.running("tensors")
    first = await world.controller()
    await world.until(lambda: world.phase(first) == "running")
    await first.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(first) == "suspended")
    await world.kill(first)

    journal = JournalThatDies(world.url, writes)
    second = await world.controller(journal)
    with contextlib.suppress(PowerCut):
        await second.users.resume(KEY, "ada")
    await _until_dead_or(world, journal, lambda: world.phase(second) == "running")
    await _killed(world, journal, second)

    third = await world.controller()
    await _settled(world, third)
    await _comes_back(world, third)


@pytest.mark.parametrize("step", ["preflight", "dump", "commit", "released"])
async def test_suspend_service_killed_and_journal_lost_is_settled(
    world, step, tmp_path
):
    await world.running("tensors")
    first = await world.controller()
    await world.until(lambda: world.phase(first) == "running")
    world.node.hold_at = step
    await first.users.suspend(KEY, "ada")
    if step == "released":
        await world.until(lambda: world.phase(first) == "suspended")
    else:
        await world.until(lambda: world.node.living(KEY)[0].state == "capturing")
    await world.kill(first)
    world.node.hold_at = ""

    world.url = f"sqlite:///{tmp_path}/new.sqlite"
    second = await world.controller()
    await _settled(world, second)
    await _comes_back(world, second)


async def test_resume_checkpoint_left_by_lost_journal_is_never_started_cold(
    world, tmp_path
):
    await world.running("tensors")
    first = await world.controller()
    await world.until(lambda: world.phase(first) == "running")
    await first.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(first) == "suspended")
    await world.kill(first)
    world.url = f"sqlite:///{tmp_path}/new.sqlite"
    world.change(tick_interval=60.0)
    await world.controller()
    assert await world.hub.start(KEY) == "restore"


def test_power_cut_is_not_one_of_our_errors():
    assert not issubclass(PowerCut, (Exception, ReclaimError))
