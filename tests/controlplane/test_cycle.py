"""One session through its life, with agent, spawner, journal and loops."""

import asyncio

from jupyterhub_gpu_reclaim.common.models import Decision, Failure
from tests.support.counted import counted
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


async def test_session_idle_is_suspended_and_released(world):
    controller, _ = await world.started("tensors")
    world.verdict = IDLE
    await world.reaches(controller, "suspended")
    assert world.node.places == {}
    assert world.hub.states[KEY] == "stopped"
    assert [world.node.contents(one) for one in world.node.saved] == ["tensors"]
    assert world.hub.plans[-1] == "stop release"
    view = controller.users.session(KEY)
    assert view.generation == 1
    assert view.last_suspend.logical_bytes > 0
    assert [step.step for step in view.steps][-1] == "commit"


async def test_session_resumed_by_button_runs_with_its_contents(world):
    controller, _ = await world.started("tensors")
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    await controller.users.resume(KEY, "ada")
    await world.reaches(controller, "running")
    assert world.node.works() == ["tensors"]
    assert world.hub.plans[-2:] == ["stop release", "start restore"]
    assert controller.users.session(KEY).checkpoint  # kept for the time of grace
    whats = [line.what for line in reversed(controller.users.audit(KEY))]
    assert whats[1:] == [
        "ask to suspend",
        "suspend",
        "committed",
        "released",
        "ask to resume",
        "restore",
        "restored",
    ]


async def test_capture_failure_leaves_session_running_with_backoff(world):
    controller, _ = await world.started("tensors")
    world.node.failures["dump"] = Failure(
        code="io_uring", message="No.", retryable=True
    )
    await controller.users.suspend(KEY, "ada")
    failure = await world.until(lambda: controller.users.session(KEY).failure)
    assert failure.code == "io_uring"
    assert failure.at  # of the attempt: pages tell it as what was
    assert world.phase(controller) == "running"
    assert controller._sessions.row(KEY).backoff_until
    assert world.hub.orders == []


async def test_session_that_would_not_come_back_goes_on_and_says_why(world):
    controller, incarnation = await world.started("tensors")
    tree = world.node.places[incarnation].tree
    tree.stuck = True
    await controller.users.suspend(KEY, "ada")
    failure = await world.until(lambda: controller.users.session(KEY).failure)
    assert failure.code == "would_not_return"
    assert "It has an odd file open." in failure.message
    assert not failure.retryable
    assert world.phase(controller) == "running"
    view = controller.users.session(KEY)
    assert (view.facts.intent, view.checkpoint) == ("", "")
    pause = controller._sessions.row(KEY).backoff_until - world.now()
    assert pause > world.settings.backoff_limit - 60.0  # the policy waits
    await asyncio.sleep(5.0)
    lines = [line.what for line in controller.users.audit(KEY)]
    assert lines.count("suspend") == 1  # one attempt, at a person's word
    assert (world.hub.orders, world.node.saved) == ([], {})
    tree.stuck = False
    await controller.users.suspend(KEY, "ada")  # a person need not
    await world.reaches(controller, "suspended")
    assert world.node.saved
    assert incarnation not in world.node.places


async def test_gpu_of_a_session_is_counted_and_freed_also_after_a_restart(world):
    controller, _ = await world.started("tensors", gpu=9)
    view = await world.until(lambda: (v := controller.users.sessions()) and v[0].gpus)
    assert [card.name for card in view] == ["H200"]
    assert [one.state for one in controller.gpus()] == ["in_use"]
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    took = "operation_duration_seconds_count"
    assert counted(controller.totals, took, operation="suspend") == 1
    assert counted(controller.totals, "session_frozen_seconds_count") == 1
    await world.kill(controller)

    controller = await world.controller()
    view = controller.users.session(KEY)
    assert (view.gpus, view.facts.gpus_held) == ([], 1)
    (gpu,) = controller.gpus()
    assert (gpu.model, gpu.state, gpu.number) == ("H200", "freed", 1)
    await controller.users.resume(KEY, "ada")
    await world.until(lambda: controller.users.session(KEY).facts.resumed)
    assert "freed" not in [one.state for one in controller.gpus()]
    assert counted(controller.totals, took, operation="resume") == 1
    (gpu,) = await world.until(controller.gpus)
    assert (gpu.model, gpu.state) == ("H200", "in_use")


async def test_gpu_that_no_sample_has_seen_yet_counts_as_the_capture_found_it(world):
    world.change(sample_interval=3600.0)
    controller = await world.controller()
    await world.running("tensors", gpu=5)
    await world.reaches(controller, "running")
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspended")
    assert controller.users.session(KEY).facts.gpus_held == 1
    assert [(one.state, one.number) for one in controller.gpus()] == [("freed", 1)]
