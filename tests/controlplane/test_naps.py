"""Naps and wakes: ordered, observed, failed, and found again after any crash."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Decision, Failure
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import FRESH_SECONDS
from tests.support.counted import counted
from tests.support.simulated import KEY

NO_ROOM = Failure(code="gpu_memory", message="No room.", retryable=True)
GPU = 5  #: bytes


async def started(world, **more):
    """A session with memory on a GPU; what runs there, and the service."""
    controller, incarnation = await world.started("tensors", gpu=GPU, **more)
    return world.node.places[incarnation].tree, controller


async def napping(world, **more):
    tree, controller = await started(world, **more)
    await controller.users.nap(KEY, "root")
    await world.reaches(controller, "napping")
    return tree, controller


def whats(controller) -> list[str]:
    return [line.what for line in reversed(controller.users.audit(KEY))]


def facts(controller):
    return controller.users.session(KEY).facts


async def test_session_naps_and_wakes_by_order(world):
    tree, controller = await napping(world)
    assert (tree.runs, tree.on_gpu) == (False, False)
    assert (facts(controller).intent, facts(controller).nap.bytes) == ("", GPU)
    assert world.hub.orders == []

    await controller.users.wake(KEY, "root")
    await world.reaches(controller, "running")
    assert (tree.runs, tree.on_gpu, tree.contents) == (True, True, "tensors")
    assert not facts(controller).intent
    assert not facts(controller).nap
    assert whats(controller)[1:] == ["ask to nap", "naps", "ask to wake", "wakes"]
    naps = controller.users.audit(KEY)[2]
    assert (naps.who, naps.message) == ("root", "5 B of GPU memory.")
    counters = controller.counters
    for each in ("nap", "wake"):
        assert counted(counters, "operations_total", operation=each, outcome="ok") == 1
        steps = "step_duration_seconds_count"
        assert counted(counters, steps, operation=each, step="gpu") == 1


async def test_nap_that_fails_leaves_it_running_with_the_reason(world):
    tree, controller = await started(world)
    crowded = Failure(code="nap_crowded", message="Too many.", retryable=True)
    world.node.failures["gpu out"] = crowded
    await controller.users.nap(KEY, "root")
    failed = await world.until(lambda: facts(controller).nap_failure)
    assert failed.code == "nap_crowded"
    assert failed.told.startswith("The last attempt failed at ")
    assert (world.phase(controller), tree.runs) == ("running", True)
    assert not facts(controller).intent  # it is not tried again by itself
    view = controller.users.session(KEY)
    assert (view.failure, controller._sessions.row(KEY).failures) == (
        None,
        0,
    )  # no suspend has failed
    await asyncio.sleep(5.0)
    assert whats(controller)[-1] == "nap failed"
    counters = controller.counters
    labels = {"operation": "nap", "code": "nap_crowded"}
    assert counted(counters, "operation_failures_total", **labels) == 1

    world.node.failures.clear()
    await controller.users.nap(KEY, "root")  # an order does not wait
    await world.reaches(controller, "napping")
    assert not facts(controller).nap_failure


async def test_wake_that_fails_is_ordered_until_it_is_awake(world):
    tree, controller = await napping(world)
    world.node.failures["gpu back"] = NO_ROOM
    await controller.users.wake(KEY, "root")
    counters = controller.counters
    labels = {"operation": "wake", "code": "gpu_memory"}
    failures = "operation_failures_total"
    await world.until(lambda: counted(counters, failures, **labels) >= 3)
    assert (world.phase(controller), tree.on_gpu) == ("napping", False)
    assert facts(controller).nap_failure.code == "gpu_memory"
    assert facts(controller).intent == "wake"
    world.node.failures.clear()
    await world.reaches(controller, "running")
    assert not facts(controller).nap_failure
    assert not facts(controller).intent


@pytest.mark.parametrize("hub", ["stopping", "checking", "spawning"])
async def test_wake_waits_for_nothing_the_hub_says(world, hub):
    tree, controller = await napping(world)
    world.hub.states[KEY] = hub
    await controller.users.wake(KEY, "root")
    await world.until(lambda: tree.on_gpu)


async def test_nap_is_not_ordered_while_the_hub_stops_it(world):
    tree, controller = await started(world)
    world.hub.states[KEY] = "stopping"
    await controller.users.nap(KEY, "root")
    await asyncio.sleep(5.0)
    assert (facts(controller).intent, tree.on_gpu) == ("nap", True)
    world.hub.states[KEY] = "running"
    await world.reaches(controller, "napping")


async def test_nap_of_what_does_not_run_is_refused(world):
    _, controller = await started(world)
    await controller.users.suspend(KEY, "ada")
    with pytest.raises(Refused) as caught:
        await controller.users.nap(KEY, "root")
    assert caught.value.reason is Reason.OPERATION_IN_FLIGHT
    assert facts(controller).intent == "suspend"  # it has not taken its place
    await world.reaches(controller, "suspended")
    for order in (controller.users.nap, controller.users.wake):
        with pytest.raises(Refused) as caught:
            await order(KEY, "root")
        assert caught.value.reason is Reason.WRONG_PHASE


async def test_suspend_from_a_nap_is_a_suspend_and_knows_its_gpus(world):
    _, controller = await napping(world)
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    assert facts(controller).gpus_held == 1
    await controller.users.resume(KEY, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["tensors"]


async def test_keep_holds_and_stop_and_deletion_end_a_nap(world):
    tree, controller = await napping(world)
    await controller.users.keep(KEY, 60, "ada")
    assert controller.users.session(KEY).kept_until
    assert (world.phase(controller), tree.on_gpu) == ("napping", False)
    await world.hub.stop()
    await world.until(lambda: not world.node.places)
    assert world.phase(controller) == "stopped"


async def test_checkpoint_that_it_came_from_expires_while_it_naps(world):
    _, controller = await started(world, grace=20.0)
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    assert await world.hub.start() == "restore"
    await world.reaches(controller, "running")
    await controller.users.nap(KEY, "root")
    await world.reaches(controller, "napping")
    assert world.node.saved
    await world.until(lambda: not world.node.saved)
    assert world.phase(controller) == "napping"


async def test_warning_hides_a_nap_only_for_as_long_as_it_stands(world):
    tree, controller = await napping(world, warn_for=600.0)
    world.verdict = Decision(reclaim=True, code="idle", message="Idle.")
    await world.reaches(controller, "warned")
    assert facts(controller).nap.bytes == GPU
    await controller.users.wake(KEY, "root")
    await world.until(lambda: tree.on_gpu and not facts(controller).intent)
    assert world.phase(controller) == "warned"
    await controller.users.nap(KEY, "root")
    await world.until(lambda: not tree.on_gpu and not facts(controller).intent)
    await controller.users.keep(KEY, 60, "ada")
    world.verdict = Decision(reclaim=False, code="kept", message="Kept.")
    await world.reaches(controller, "napping")


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
    incarnation = await world.running("tensors", gpu=GPU)
    policy = NapsWhen(verdict)
    controller = await world.controller(naps=policy)
    await world.until(lambda: world.phase(controller) in {"running", "napping"})
    return world.node.places[incarnation].tree, controller, policy


async def test_idle_session_naps_by_itself_and_says_why(world):
    _, controller, policy = await ruled(world)
    verdict = await world.until(lambda: facts(controller).nap_verdict)
    assert verdict == NOT_NOW
    asked = await world.until(lambda: next((a for a in policy.asked if a.usage), None))
    assert asked.since == controller.users.session(KEY).since
    policy.verdict = NAPS
    await world.reaches(controller, "napping")
    assert not facts(controller).nap_verdict
    line = controller.users.audit(KEY)[0]
    assert (line.who, line.what, line.code) == ("gpu-reclaim", "naps", "nap_idle")
    # It is suspended when that is due, and not asked to nap once more.
    world.verdict = Decision(reclaim=True, code="idle", message="Idle.")
    await world.reaches(controller, "suspended")
    assert {snapshot.phase.value for snapshot in policy.asked} == {"running"}


async def test_nap_that_fails_is_not_tried_again_before_its_time(world):
    _, controller, policy = await ruled(world)
    open_device = Failure(code="device_open", message="A device is open.")
    world.node.failures["gpu out"] = open_device
    policy.verdict = NAPS
    await world.until(lambda: facts(controller).nap_failure)
    policy.verdict = NOT_NOW
    last = await world.until(
        lambda: policy.asked[-1].backoff_until and policy.asked[-1]
    )
    limit = world.settings.backoff_limit  # it is not different in a minute
    assert last.backoff_until - world.now() == pytest.approx(limit, abs=5)
    assert last.failure.code == "device_open"
    assert not controller._sessions.row(KEY).backoff_until  # of its suspends
    world.node.failures["gpu out"] = NO_ROOM
    await controller.users.nap(KEY, "root")
    await world.until(lambda: policy.asked[-1].failure.code == "gpu_memory")
    waits = policy.asked[-1].backoff_until - world.now()
    assert waits == pytest.approx(2 * world.settings.backoff, abs=5)


async def test_nap_that_is_over_at_once_is_followed_by_a_pause(world):
    tree, controller, policy = await ruled(world, NAPS)
    await world.reaches(controller, "napping")
    policy.verdict = NOT_NOW
    tree.unread += 1  # somebody uses it
    await world.reaches(controller, "running")
    await world.until(lambda: policy.asked[-1].backoff_until)
    assert policy.asked[-1].failure.code == "nap_short"
    assert not facts(controller).nap_failure  # nothing has failed


async def test_no_nap_without_a_fresh_sample(world):
    tree, _, policy = await ruled(world)
    await world.until(lambda: policy.asked)
    world.node.says = None
    await asyncio.sleep(FRESH_SECONDS + 1.0)
    policy.verdict = NAPS
    await asyncio.sleep(5.0)
    assert tree.on_gpu
