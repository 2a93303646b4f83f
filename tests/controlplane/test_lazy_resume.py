"""Resumes that stop at the nap: whose, by which rule, and what becomes of them."""

from __future__ import annotations

import contextlib

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, TreeState
from jupyterhub_gpu_reclaim.controlplane.decide.judge import SessionPolicies
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules
from tests.controlplane.conftest import KEY
from tests.controlplane.doubles import JournalThatDies, PowerCut
from tests.controlplane.test_naps import facts, whats

LAZY = NapPolicy(IdlePolicy(), resume_gpu="lazy")
AT_ONCE = NapPolicy(IdlePolicy())


class NoLabels:
    def labels(self, key):
        return {}


@pytest.fixture
def begin(world):
    """Starts a service with that policy and those rules."""

    async def start(*rules, naps=LAZY, journal=None):
        agent, hub = world.clients()
        policies = SessionPolicies(Rules(rules=list(rules)), hub, NoLabels())
        return await world.controller(
            journal=journal,
            agent=agent,
            hub=hub,
            policies=policies if rules else None,
            is_lazy=naps.is_lazy,
        )

    return start


async def suspended(world, controller, memory: int = 5):
    """A session with memory on a GPU, suspended."""
    name = await world.running("tensors")
    world.node.places[name].gpu_memory = memory
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")


def place_of(world):
    (place,) = world.node.living(KEY)
    return place


async def test_session_comes_back_napping_and_use_wakes_it(world, begin):
    controller = await begin()
    await suspended(world, controller)
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "napping")
    assert world.node.lazily[-1] is True
    assert (place_of(world).state, place_of(world).contents) == ("napping", "tensors")
    assert facts(controller).nap.bytes == 5
    assert whats(controller)[-2:] == ["restored", "naps"]
    counted = controller.metrics_snapshot()
    assert counted.counters.operations["resume", "ok"] == 1
    assert counted.counters.operations["resume", "failed"] == 0
    assert counted.napping_bytes == 5

    world.node.use(place_of(world))
    await world.until(lambda: world.phase(controller) == "running")
    # Who has just returned uses it soon, which says nothing of its next nap.
    assert not facts(controller).nap_failure


async def test_session_is_suspended_from_that_nap_and_comes_back_again(world, begin):
    controller = await begin()
    await suspended(world, controller)
    for generation in (2, 3):
        assert await world.hub.start(KEY) == "restore"
        await world.until(lambda: world.phase(controller) == "napping")
        await controller.users.suspend(KEY, "ada")
        await world.until(lambda: world.phase(controller) == "suspended")
        newest = controller.users.session(KEY).checkpoint
        assert world.node.saved[newest][0].generation == generation
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "napping")
    await controller.users.wake(KEY, "root")
    await world.until(lambda: world.phase(controller) == "running")
    assert place_of(world).contents == "tensors"


@pytest.mark.parametrize(
    ("naps", "rules", "groups", "lazy"),
    [
        (AT_ONCE, [], ["staff"], False),
        (AT_ONCE, [{"group": "staff", "resume_gpu": "lazy"}], ["staff"], True),
        (AT_ONCE, [{"group": "staff", "resume_gpu": "lazy"}], [], False),
        (LAZY, [{"group": "staff", "resume_gpu": "at_once"}], ["staff"], False),
        (LAZY, [{"group": "staff", "resume_gpu": "at_once"}], [], True),
        # What is not known is never taken for "no".
        (LAZY, [{"group": "staff", "resume_gpu": "at_once"}], None, False),
    ],
)
async def test_rule_decides_how_it_comes_back(world, begin, naps, rules, groups, lazy):
    world.hub.groups = None if groups is None else {"ada": groups}
    controller = await begin(*rules, naps=naps)
    await suspended(world, controller)
    assert await world.hub.start(KEY) == "restore"
    phase = "napping" if lazy else "running"
    await world.until(lambda: world.phase(controller) == phase)
    assert world.node.lazily[-1] is lazy


async def test_session_without_gpu_memory_comes_back_as_ever(world, begin):
    controller = await begin()
    await suspended(world, controller, memory=0)
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    assert place_of(world).state is TreeState.RUNNING


async def test_session_comes_back_where_the_gpu_is_full(world, begin):
    controller = await begin()
    await suspended(world, controller)
    world.node.room = 0
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "napping")
    assert controller.waiting() == []


async def test_session_that_cannot_nap_waits_for_its_gpu_as_any_other(world, begin):
    """Its agent has tried, and has found that all of it must go on at once."""
    world.change(gpu_wait=60.0)
    controller = await begin()
    await suspended(world, controller)
    why = Failure(code="gpu_memory", message="No room.", retryable=True)
    world.node.restore_failure = why
    starting = world.hub.spawn(world.hub.start(KEY))
    await world.until(controller.waiting)
    await world.until(lambda: len(world.node.lazily) > 2)
    assert world.node.lazily[0] is True
    assert not any(world.node.lazily[1:])
    world.node.restore_failure = None
    assert await starting == "restore"
    await world.until(lambda: world.phase(controller) == "running")


@pytest.mark.parametrize("writes", range(1, 6))
async def test_service_killed_at_any_write_finds_the_nap(world, begin, writes):
    controller = await begin()
    await suspended(world, controller)
    await world.kill(controller)
    journal = JournalThatDies(world.url)
    controller = await begin(journal=journal)
    await world.until(lambda: world.phase(controller) == "suspended")
    journal.left = writes
    starting = world.hub.spawn(world.hub.start(KEY))
    with contextlib.suppress(PowerCut):
        await world.until(lambda: journal.dead or world.phase(controller) == "napping")
    await world.kill(controller)
    controller = await begin()
    await starting
    if not world.node.living(KEY):
        assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "napping")
    assert (place_of(world).state, place_of(world).contents) == ("napping", "tensors")


async def test_older_agent_fills_the_gpu_and_nobody_minds(world, begin, monkeypatch):
    controller = await begin()
    await suspended(world, controller)
    begin_restore = world.node.begin_restore

    def begin_at_once(incarnation, checkpoint, *, lazy):
        del lazy
        return begin_restore(incarnation, checkpoint)

    monkeypatch.setattr(world.node, "begin_restore", begin_at_once)
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    assert place_of(world).state is TreeState.RUNNING
