"""Naps and wakes: ordered, observed, failed, and found again after any crash."""

from __future__ import annotations

import asyncio
import time

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import FRESH_SECONDS
from tests.controlplane.conftest import KEY

NO_ROOM = Failure(code="gpu_memory", message="No room.", retryable=True)


async def started(world, memory: int = 5):
    """A session with memory on a GPU, and the service; its place, and that."""
    name = await world.running("tensors")
    place = world.node.places[name]
    place.gpu_memory = memory
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    return place, controller


async def napping(world):
    """The same, napping."""
    place, controller = await started(world)
    await controller.users.nap(KEY, "root")
    await world.until(lambda: world.phase(controller) == "napping")
    return place, controller


def whats(controller) -> list[str]:
    return [line.what for line in reversed(controller.users.audit(KEY))]


def facts(controller):
    return controller.users.session(KEY).facts


async def test_session_naps_and_wakes_by_order(world):
    place, controller = await napping(world)
    assert place.state is TreeState.NAPPING
    view = controller.users.session(KEY)
    assert (view.facts.intent, view.facts.nap.bytes) == ("", 5)
    assert world.hub.orders == []

    await controller.users.wake(KEY, "root")
    await world.until(lambda: world.phase(controller) == "running")
    assert (place.state, place.contents) == (TreeState.RUNNING, "tensors")
    assert not facts(controller).intent
    assert not facts(controller).nap
    assert whats(controller) == [
        "found_running",
        "ask to nap",
        "naps",
        "ask to wake",
        "wakes",
    ]
    naps = controller.users.audit(KEY)[2]
    assert (naps.who, naps.message) == ("root", "5 B of GPU memory.")
    counted = controller.metrics_snapshot().counters
    assert counted.operations["nap", "ok"] == counted.operations["wake", "ok"] == 1
    assert counted.steps["nap", "gpu"].count == counted.steps["wake", "gpu"].count == 1


async def test_nap_that_fails_leaves_it_running_with_the_reason(world):
    place, controller = await started(world)
    crowded = Failure(code="nap_crowded", message="Too many.", retryable=True)
    world.node.nap_failure = crowded
    await controller.users.nap(KEY, "root")
    failed = await world.until(lambda: facts(controller).nap_failure)
    assert failed.code == "nap_crowded"
    assert failed.told.startswith("The last attempt failed at ")
    assert world.phase(controller) == "running"
    assert place.state is TreeState.RUNNING
    assert not facts(controller).intent  # it is not tried again by itself
    assert world.node.calls == ["nap"]
    view = controller.users.session(KEY)
    assert (view.failure, view.facts.failures) == (None, 0)  # no suspend has failed
    assert whats(controller)[-1] == "nap failed"
    counted = controller.metrics_snapshot().counters
    assert counted.failures["nap", "nap_crowded"] == 1

    world.node.nap_failure = None
    await controller.users.nap(KEY, "root")  # an order does not wait
    await world.until(lambda: world.phase(controller) == "napping")
    assert not facts(controller).nap_failure


async def test_wake_that_fails_is_ordered_until_it_is_awake(world):
    place, controller = await napping(world)
    world.node.wake_failure = NO_ROOM
    await controller.users.wake(KEY, "root")
    await world.until(lambda: world.node.calls.count("wake") >= 3)
    assert (world.phase(controller), place.state) == ("napping", TreeState.NAPPING)
    assert facts(controller).nap_failure.code == "gpu_memory"
    assert facts(controller).intent == "wake"
    world.node.wake_failure = None
    await world.until(lambda: world.phase(controller) == "running")
    assert not facts(controller).nap_failure
    assert not facts(controller).intent


@pytest.mark.parametrize("hub", ["stopping", "checking", "spawning"])
async def test_wake_waits_for_nothing_the_hub_says(world, hub):
    place, controller = await napping(world)
    world.hub.states[KEY] = hub
    await controller.users.wake(KEY, "root")
    await world.until(lambda: place.state is TreeState.RUNNING)


async def test_nap_is_not_ordered_while_the_hub_stops_it(world):
    place, controller = await started(world)
    world.hub.states[KEY] = "stopping"
    await controller.users.nap(KEY, "root")
    await world.until(lambda: facts(controller).intent == "nap")
    assert place.state is TreeState.RUNNING
    world.hub.states[KEY] = "running"
    await world.until(lambda: world.phase(controller) == "napping")


async def test_nap_of_what_does_not_run_is_refused(world):
    _, controller = await started(world)
    with pytest.raises(NotFound):
        await controller.users.nap(type(KEY)("nobody"), "root")
    await controller.users.suspend(KEY, "ada")
    with pytest.raises(Refused) as caught:
        await controller.users.nap(KEY, "root")
    assert caught.value.reason is Reason.OPERATION_IN_FLIGHT
    assert facts(controller).intent == "suspend"  # it has not taken its place
    await world.until(lambda: world.phase(controller) == "suspended")
    for order in (controller.users.nap, controller.users.wake):
        with pytest.raises(Refused) as caught:
            await order(KEY, "root")
        assert caught.value.reason is Reason.WRONG_PHASE


async def test_suspend_from_a_nap_is_a_suspend_and_knows_its_gpus(world):
    place, controller = await napping(world)
    world.node.gpus = []
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert facts(controller).gpus_held == 1
    await controller.users.resume(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "running")
    (back,) = world.node.living(KEY)
    assert (back.state, back.contents) == (TreeState.RUNNING, place.contents)


async def test_keep_holds_and_stop_and_deletion_end_a_nap(world):
    place, controller = await napping(world)
    await controller.users.keep(KEY, 60, "ada")
    assert controller.users.session(KEY).kept_until
    assert (world.phase(controller), place.state) == ("napping", TreeState.NAPPING)
    await world.hub.stop(KEY)
    await world.until(lambda: not world.node.places)
    assert controller.users.session(KEY).phase.value == "stopped"
    assert world.hub.errors == []


async def test_checkpoint_that_it_came_from_expires_while_it_naps(world):
    world.change(grace=2.0)
    _, controller = await started(world)
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert await world.hub.start(KEY) == "restore"
    (place,) = world.node.living(KEY)
    place.gpu_memory = 5
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.nap(KEY, "root")
    await world.until(lambda: world.phase(controller) == "napping")
    assert world.node.saved
    await world.until(lambda: not world.node.saved)
    assert place.state is TreeState.NAPPING


async def test_warning_hides_a_nap_only_for_as_long_as_it_stands(world):
    world.change(warn_for=60)
    place, controller = await napping(world)
    world.verdict = type(world.verdict)(reclaim=True, code="idle", message="Idle.")
    await world.until(lambda: world.phase(controller) == "warned")
    assert facts(controller).nap.bytes == 5
    await controller.users.wake(KEY, "root")
    await world.until(lambda: place.state is TreeState.RUNNING)
    await world.until(lambda: not facts(controller).intent)
    assert world.phase(controller) == "warned"
    await controller.users.nap(KEY, "root")
    await world.until(lambda: place.state is TreeState.NAPPING)
    await world.until(lambda: not facts(controller).intent)
    await controller.users.keep(KEY, 60, "ada")
    world.verdict = type(world.verdict)(reclaim=False, code="kept", message="Kept.")
    await world.until(lambda: world.phase(controller) == "napping")


# --- by itself

NAPS = Decision(reclaim=True, code="nap_idle", message="Idle.")
NOT_NOW = Decision(reclaim=False, code="kernel_busy", message="Busy.")


class NapsWhen:
    """A policy that says what the test wants to hear, and notes what it was asked."""

    def __init__(self, verdict) -> None:
        self.verdict = verdict
        self.asked = []

    room_after = 0.0

    def after(self, terms):
        return 1.0

    def for_room(self, snapshot, now):
        return [NOT_NOW]

    def __call__(self, snapshot, now):
        self.asked.append(snapshot)
        return [self.verdict]


async def ruled(world, verdict=NOT_NOW):
    """A session with memory on a GPU, under such a policy."""
    name = await world.running("tensors")
    place = world.node.places[name]
    place.gpu_memory = 5
    policy = NapsWhen(verdict)
    controller = await world.controller(naps=policy)
    await world.until(lambda: world.phase(controller) in {"running", "napping"})
    return place, controller, policy


async def test_idle_session_naps_by_itself_and_says_why(world):
    _, controller, policy = await ruled(world)
    verdict = await world.until(lambda: facts(controller).nap_verdict)
    assert verdict == NOT_NOW
    policy.verdict = NAPS
    await world.until(lambda: world.phase(controller) == "napping")
    assert not facts(controller).nap_verdict
    line = controller.users.audit(KEY)[0]
    assert (line.who, line.what, line.code) == ("gpu-reclaim", "naps", "nap_idle")


async def test_session_that_naps_is_suspended_by_itself_when_that_is_due(world):
    _, controller, policy = await ruled(world, NAPS)
    await world.until(lambda: world.phase(controller) == "napping")
    world.verdict = Decision(reclaim=True, code="idle", message="Idle.")
    await world.until(lambda: world.phase(controller) == "suspended")
    asked = {snapshot.phase.value for snapshot in policy.asked}
    assert asked == {"running"}


async def test_nap_that_fails_is_not_tried_again_before_its_time(world):
    _, controller, policy = await ruled(world)
    world.node.nap_failure = Failure(code="device_open", message="A device is open.")
    policy.verdict = NAPS
    await world.until(lambda: facts(controller).nap_failure)
    policy.verdict = NOT_NOW
    await world.until(lambda: policy.asked[-1].backoff_until)
    last = policy.asked[-1]
    limit = world.settings.backoff_limit  # it is not different in a minute
    assert last.backoff_until - time.time() == pytest.approx(limit, abs=30)
    assert last.failure.code == "device_open"
    assert not controller.users.session(KEY).facts.backoff_until  # of its suspends
    world.node.nap_failure = NO_ROOM
    await controller.users.nap(KEY, "root")
    await world.until(lambda: facts(controller).nap_failure.code == "gpu_memory")
    await world.until(lambda: policy.asked[-1].failure.code == "gpu_memory")
    waits = policy.asked[-1].backoff_until - time.time()
    assert waits == pytest.approx(2 * world.settings.backoff, abs=30)


async def test_nap_that_is_over_at_once_is_followed_by_a_pause(world):
    place, controller, policy = await ruled(world, NAPS)
    await world.until(lambda: world.phase(controller) == "napping")
    policy.verdict = NOT_NOW
    world.node.use(place)
    await world.until(lambda: world.phase(controller) == "running")
    await world.until(lambda: policy.asked[-1].backoff_until)
    assert policy.asked[-1].failure.code == "nap_short"
    assert not facts(controller).nap_failure  # nothing has failed


async def test_policy_is_told_of_use_in_its_own_time_and_since_when_it_is_awake(world):
    _, controller, policy = await ruled(world)
    await world.until(lambda: policy.asked and policy.asked[-1].usage)
    asked = policy.asked[-1]
    assert asked.since == controller.users.session(KEY).since


async def test_no_nap_without_a_fresh_sample(world):
    place, _, policy = await ruled(world)
    await world.until(lambda: policy.asked)
    world.node.samples_fail = True
    await asyncio.sleep(FRESH_SECONDS + 0.1)
    policy.verdict, asked = NAPS, len(policy.asked)
    await world.until(lambda: len(policy.asked) > asked + 3)
    assert place.state is TreeState.RUNNING
