"""One session through its life, with real clients, journal and loops."""

from __future__ import annotations

import asyncio

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.models import Decision, GpuSample
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.controlplane.conftest import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


async def test_session_idle_is_suspended_and_released(world):
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    world.verdict = IDLE
    await world.until(lambda: world.phase(controller) == "suspended")
    assert world.node.places == {}
    assert world.hub.states[KEY] == "stopped"
    assert [c for _, c in world.node.saved.values()] == ["tensors"]
    assert world.hub.plans == ["stop release"]
    view = controller.users.session(KEY)
    assert view.generation == 1
    assert view.last_suspend.logical_bytes == 1000
    assert [step.step for step in view.steps] == ["preflight", "dump", "commit"]


async def test_session_resumed_by_button_runs_with_its_contents(world):
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    await controller.users.resume(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "running")
    assert [p.contents for p in world.node.places.values()] == ["tensors"]
    assert world.hub.plans == ["stop release", "start restore"]
    assert controller.users.session(KEY).checkpoint  # kept for the time of grace
    whats = [line.what for line in reversed(controller.users.audit(KEY))]
    assert whats == [
        "found_running",
        "ask to suspend",
        "suspend",
        "committed",
        "released",
        "ask to resume",
        "restore",
        "restored",
    ]


async def test_capture_failure_leaves_session_running_with_backoff(world):
    await world.running("tensors")
    controller = await world.controller()
    from jupyterhub_gpu_reclaim.common.models import Failure

    told = Failure(code="io_uring", message="No.", retryable=True)
    world.node.capture_failure = told
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(
        lambda: (f := controller.users.session(KEY).failure) and f.code == "io_uring"
    )
    assert world.phase(controller) == "running"
    view = controller.users.session(KEY)
    assert view.facts.backoff_until
    assert view.failure.at  # of the attempt: pages tell it as what was
    assert world.hub.orders == []


async def test_session_that_would_not_come_back_goes_on_and_says_why(world):
    incarnation = await world.running("tensors")
    controller = await world.controller()
    why = "the file /tmp/#12 of process 310 (python3) cannot be opened"
    error = RolledBack(Reason.WOULD_NOT_RETURN, why=why)
    world.node.capture_failure = codec.failure_of(error)
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    failure = await world.until(lambda: controller.users.session(KEY).failure)
    assert failure.code == "would_not_return"
    assert why in failure.message
    assert not failure.retryable
    assert world.phase(controller) == "running"
    view = controller.users.session(KEY)
    assert (view.facts.intent, view.checkpoint) == ("", "")
    assert view.facts.backoff_until  # the policy waits
    await asyncio.sleep(0.2)
    assert world.node.seen == [None]  # one attempt, at a person's word
    assert (world.hub.orders, world.node.saved) == ([], {})
    world.node.capture_failure = None
    await controller.users.suspend(KEY, "ada")  # a person need not
    await world.until(lambda: world.phase(controller) == "suspended")
    assert world.node.saved
    assert incarnation not in world.node.places


async def test_gpu_of_a_session_is_counted_and_freed_also_after_a_restart(world):
    world.node.gpus = [GpuSample(uuid="a", name="A100", memory=9, sm_percent=50.0)]
    await world.running("tensors")
    controller = await world.controller()
    view = await world.until(lambda: (v := controller.users.sessions()) and v[0].gpus)
    assert [card.name for card in view] == ["A100"]
    assert [one.state for one in controller.gpus()] == ["in_use"]
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    counted = controller.metrics_snapshot()
    assert counted.counters.whole["suspend"].count == 1
    assert counted.counters.still.count == 1
    assert counted.suspended_bytes > 0
    await world.kill(controller)

    controller = await world.controller()
    view = controller.users.session(KEY)
    assert (view.gpus, view.facts.gpus_held) == ([], 1)
    (gpu,) = controller.gpus()
    assert (gpu.model, gpu.state, gpu.number) == ("A100", "freed", 1)
    await controller.users.resume(KEY, "ada")
    await world.until(lambda: controller.users.session(KEY).facts.resumed)
    assert controller.users.session(KEY).facts.resumed.at is not None
    assert "freed" not in [one.state for one in controller.gpus()]
    counted = controller.metrics_snapshot()
    assert counted.counters.whole["resume"].count == 1
    assert (counted.suspended_bytes, counted.kept) == (0, 0)
    (gpu,) = await world.until(lambda: controller.metrics_snapshot().gpus)
    assert (gpu.model, gpu.state) == ("A100", "in_use")


async def test_gpu_that_no_sample_has_seen_yet_counts_as_the_capture_found_it(world):
    world.node.samples_fail = True
    incarnation = await world.running("tensors")
    world.node.places[incarnation].gpu_memory = 5
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert controller.users.session(KEY).facts.gpus_held == 1
    assert [(one.state, one.number) for one in controller.gpus()] == [("freed", 1)]
