"""A node is drained: what runs there is saved, the idle first, and nothing is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from jupyterhub_gpu_reclaim.common.drain import DrainOrder, NodeNotice
from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    KernelSample,
    Placement,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide import draining, turns
from tests.controlplane.conftest import KEY


def kernel(state: str, used: float = 1.0) -> KernelSample:
    return KernelSample(
        id="k1", name="python3", execution_state=state, last_activity=used
    )


def phases(controller) -> dict[str, str]:
    return {view.key.user: view.phase.value for view in controller.users.sessions()}


async def running(world, controller, *users: str) -> dict[str, str]:
    """The incarnations of sessions that were all sampled."""
    world.node.kernels = [kernel("idle")]
    found = {user: await world.running(user, SessionKey(user)) for user in users}
    sampled = controller._sessions.runtime
    await world.until(
        lambda: all(sampled(SessionKey(u)).usage is not None for u in users)
    )
    return found


def at_work(world, incarnation: str) -> None:
    world.node.kernels_of[incarnation] = [kernel("busy", time.time())]


async def test_whatever_runs_there_is_suspended_although_the_policy_says_no(world):
    controller = await world.controller()
    await running(world, controller, "ada", "bo", "cy")
    report = controller.nodes.drain("", DrainOrder(), "root")
    assert [each.state for each in report.sessions] == ["waiting"] * 3
    await world.until(lambda: set(phases(controller).values()) == {"suspended"})
    (report,) = controller.nodes.drains()
    assert report.ended
    assert [each.state for each in report.sessions] == ["saved"] * 3
    line = next(
        each for each in controller.users.audit(KEY) if each.code == "node_drains"
    )
    assert line.who == "root"


async def test_session_at_work_goes_last(world):
    world.change(captures=1)
    controller = await world.controller()
    places = await running(world, controller, "ada", "bo", "cy")
    at_work(world, places["ada"])
    runtime = controller._sessions.runtime(KEY)
    await world.until(lambda: runtime.usage.busy_kernel is not None)
    controller.nodes.drain("", DrainOrder(), "root")
    order = []
    while len(order) < 3:
        now = phases(controller)
        gone = [u for u in now if now[u] == "suspended" and u not in order]
        order += gone
        await asyncio.sleep(0.002)
    assert order[-1] == "ada"


async def test_nothing_starts_on_the_hubs_own_machine_until_it_is_over(world):
    controller = await world.controller()
    await running(world, controller, "ada")
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: world.phase(controller) == "suspended")
    for key in (KEY, SessionKey("new")):
        plan = await controller.plan_start(Placement(key=key, incarnation="i2"))
        assert (plan.action, plan.failure.code) == ("refuse", "node_closed")
    controller.nodes.undrain("", "root")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    await asyncio.sleep(0.3)
    assert world.phase(controller) == "running"


@pytest.mark.parametrize("restarted", [False, True])
async def test_undrain_calls_off_what_is_being_saved_for_it(world, restarted):
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: world.phase(controller) == "suspending")
    if restarted:
        await world.kill(controller)
        controller = await world.controller()
    controller.nodes.undrain("", "root")
    await world.until(lambda: world.phase(controller) == "running")
    assert world.node.saved == {}


async def test_notice_that_is_withdrawn_calls_off_what_is_being_saved(world):
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    controller.nodes.follow([NodeNotice("", "cordoned")])
    await world.until(lambda: world.phase(controller) == "suspending")
    controller.nodes.follow([])
    await world.until(lambda: world.phase(controller) == "running")


async def test_undrain_does_not_call_off_what_its_user_has_ordered(world):
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspending")
    controller.nodes.drain("", DrainOrder(), "root")
    controller.nodes.undrain("", "root")
    await asyncio.sleep(0.2)
    world.node.hold_at = ""
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_order_outlives_the_service(world):
    controller = await world.controller()
    controller.nodes.drain("", DrainOrder(seconds=900), "root")
    await world.kill(controller)
    controller = await world.controller()
    (report,) = controller.nodes.drains()
    assert report.drain.until == pytest.approx(time.time() + 900, abs=30)
    await world.running("ada")
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_other_nodes_are_left_alone(world):
    controller = await world.controller()
    await running(world, controller, "ada")
    controller.nodes.drain("elsewhere", DrainOrder(), "root")
    await asyncio.sleep(0.5)
    assert world.phase(controller) == "running"


async def test_user_cannot_keep_it_there(world):
    world.change(warn_for=60.0)
    controller = await world.controller()
    await running(world, controller, "ada")
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: world.phase(controller) == "warned")
    with pytest.raises(Refused) as told:
        await controller.users.keep(KEY, 3600, "ada")
    assert told.value.reason is Reason.NODE_DRAINS
    await controller.users.keep(KEY, 0, "ada")
    assert world.phase(controller) == "warned"
    controller.nodes.undrain("", "root")
    await world.until(lambda: world.phase(controller) == "running")


async def test_nobody_is_warned_where_time_is_short(world):
    world.change(warn_for=60.0)
    controller = await world.controller()
    places = await running(world, controller, "ada")
    at_work(world, places["ada"])
    runtime = controller._sessions.runtime(KEY)
    await world.until(lambda: runtime.usage.busy_kernel is not None)
    controller.nodes.drain("", DrainOrder(seconds=30), "root")
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_session_in_use_is_warned_for_a_part_of_the_time_that_is_left(
    world, monkeypatch
):
    monkeypatch.setattr(draining, "WARNED_PART", 0.01)
    world.change(warn_for=3600.0)
    controller = await world.controller()
    places = await running(world, controller, "ada", "bo")
    at_work(world, places["ada"])
    runtime = controller._sessions.runtime(KEY)
    await world.until(lambda: runtime.usage.busy_kernel is not None)
    controller.nodes.drain("", DrainOrder(seconds=100), "root")
    await world.until(lambda: phases(controller)["ada"] == "warned")
    await world.until(lambda: set(phases(controller).values()) == {"suspended"})


async def test_who_was_warned_before_does_not_wait_longer_than_there_is_time(world):
    world.change(warn_for=60.0)
    controller = await world.controller()
    await running(world, controller, "ada")
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: world.phase(controller) == "warned")
    at_work(world, controller._sessions.row(KEY).incarnation)
    controller.nodes.drain("", DrainOrder(seconds=4), "root")
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_user_cannot_hold_it_up_by_orders(world):
    controller = await world.controller()
    await running(world, controller, "ada")
    users, refused = controller.users, set()

    async def insist() -> None:
        while True:
            for order in (users.save, users.nap, users.wake):
                try:
                    await order(KEY, "ada")
                except Refused as error:
                    refused.add(error.reason)
                await asyncio.sleep(0.001)

    insists = asyncio.create_task(insist())
    await asyncio.sleep(0.1)
    controller.nodes.drain("", DrainOrder(), "root")
    try:
        await world.until(lambda: world.phase(controller) == "suspended")
    finally:
        insists.cancel()
    assert Reason.NODE_DRAINS in refused


async def test_looks_that_take_long_do_not_hold_it_up(world, monkeypatch):
    monkeypatch.setattr(turns, "STALE", 0.05)
    controller = await world.controller()
    await running(world, controller, "ada", "bo", "cy")
    one = controller._observer.observe

    async def slow(key):
        await asyncio.sleep(0.1)
        return await one(key)

    controller._observer.observe = slow
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(
        lambda: set(phases(controller).values()) == {"suspended"}, limit=10
    )


async def resumed_while_it_is_saved(world):
    """A session of a drained machine whose user comes; its dump is held."""
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: world.phase(controller) == "suspending")
    await controller.users.resume(KEY, "ada")
    return controller


async def test_return_to_a_closed_machine_is_not_asked_for_again_and_again(world):
    controller = await resumed_while_it_is_saved(world)
    world.node.hold_at = ""
    await world.until(lambda: world.phase(controller) == "suspended")
    await asyncio.sleep(0.5)
    assert world.hub.plans.count("start refuse") == 1
    failure = controller.users.session(KEY).failure
    assert failure.code == "node_closed"
    assert failure.told.startswith("The last attempt failed at ")


async def test_session_that_cannot_be_saved_is_told_with_its_reason(world):
    controller = await world.controller()
    await running(world, controller, "ada", "bo")
    world.node.capture_failure = Failure(code="blocked", message="It cannot be.")
    controller.nodes.drain("", DrainOrder(), "root")

    def states():
        (report,) = controller.nodes.drains()
        return {each.key.user: each for each in report.sessions}

    await world.until(lambda: {s.state for s in states().values()} == {"refused"})
    assert all(each.failure.message for each in states().values())
    (report,) = controller.nodes.drains()
    assert not report.ended


async def test_what_failed_before_is_tried_at_once_and_not_called_refused(world):
    world.change(backoff=3600.0)
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.capture_failure = Failure(code="blocked", message="It cannot be.")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: controller._sessions.row(KEY).failures == 1)
    world.node.capture_failure = None
    report = controller.nodes.drain("", DrainOrder(seconds=30), "root")
    assert [each.state for each in report.sessions] == ["waiting"]
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_suspend_that_was_called_off_before_does_not_hold_it_up(world):
    world.change(backoff=3600.0)
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspending")
    await controller.users.keep(KEY, 100, "ada")
    await world.until(lambda: world.phase(controller) == "running")
    world.node.hold_at = ""
    controller.nodes.drain("", DrainOrder(seconds=30), "root")
    await world.until(lambda: world.phase(controller) == "suspended")


@pytest.mark.parametrize("seconds", [0, -1, 31 * 86400.0, float("nan")])
async def test_time_that_makes_no_sense_is_refused(world, seconds):
    controller = await world.controller()
    with pytest.raises(BadRequest):
        controller.nodes.drain("", DrainOrder(seconds=seconds), "root")
    assert controller.nodes.drains() == []


async def test_what_is_not_drained_cannot_be_undrained(world):
    controller = await world.controller()
    with pytest.raises(NotFound):
        controller.nodes.undrain("n1", "root")


# --- a cluster's notices


async def test_notice_drains_until_it_is_withdrawn(world):
    controller = await world.controller()
    controller.nodes.follow([NodeNotice("n1", "cordoned")])
    (report,) = controller.nodes.drains()
    assert (report.drain.why, report.drain.until) == ("cordoned", None)
    controller.nodes.follow([NodeNotice("n1", "spot", 120.0)])
    (report,) = controller.nodes.drains()
    assert report.drain.until == pytest.approx(time.time() + 120, abs=10)
    until = report.drain.until
    controller.nodes.follow([NodeNotice("n1", "spot", 120.0)])
    assert controller.nodes.drains()[0].drain.until == until
    controller.nodes.follow([])
    assert controller.nodes.drains() == []


async def test_persons_word_stands_against_a_notice(world):
    controller = await world.controller()
    controller.nodes.follow([NodeNotice("n1", "cordoned")])
    controller.nodes.undrain("n1", "root")
    controller.nodes.follow([NodeNotice("n1", "cordoned")])
    assert controller.nodes.drains() == []
    controller.nodes.follow([])
    controller.nodes.follow([NodeNotice("n1", "cordoned")])
    assert len(controller.nodes.drains()) == 1


async def test_persons_word_stands_also_where_the_last_order_was_a_persons(world):
    controller = await world.controller()
    notice = [NodeNotice("n1", "spot", 30.0)]
    controller.nodes.follow(notice)
    controller.nodes.drain("n1", DrainOrder(), "root")
    controller.nodes.follow(notice)
    controller.nodes.undrain("n1", "root")
    controller.nodes.follow(notice)
    assert controller.nodes.drains() == []
    controller.nodes.follow([])
    controller.nodes.follow(notice)
    assert len(controller.nodes.drains()) == 1


async def test_order_of_a_person_does_not_end_with_a_notice(world):
    controller = await world.controller()
    controller.nodes.drain("n1", DrainOrder(), "root")
    controller.nodes.follow([NodeNotice("n1", "spot", 30.0)])
    controller.nodes.follow([])
    assert len(controller.nodes.drains()) == 1


async def test_notice_that_leaves_less_time_than_a_person_gave_counts(world):
    controller = await world.controller()
    controller.nodes.drain("n1", DrainOrder(seconds=3600), "root")
    for seconds in (30.0, 120.0):
        controller.nodes.follow([NodeNotice("n1", "spot", seconds)])
        (report,) = controller.nodes.drains()
        assert report.drain.until == pytest.approx(time.time() + 30, abs=10)


async def test_save_point_under_way_is_called_off(world):
    world.change(captures=1)
    controller = await world.controller()
    await running(world, controller, "ada")
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada")
    (place,) = world.node.places.values()
    await world.until(lambda: place.running)
    save = place.running
    controller.nodes.drain("", DrainOrder(seconds=60), "root")
    await world.until(lambda: save.done)
    # It is not made anew before that.
    await world.until(lambda: world.phase(controller) == "suspending")
    world.node.hold_at = ""
    await world.until(lambda: world.phase(controller) == "suspended")


async def test_session_at_work_comes_back_by_itself_once_if_that_is_ordered(world):
    controller = await world.controller()
    places = await running(world, controller, "ada", "bo")
    at_work(world, places["ada"])
    runtime = controller._sessions.runtime(KEY)
    await world.until(lambda: runtime.usage.busy_kernel is not None)
    sessions = controller._sessions

    def note_node(key, tree):  # as if they ran on a node of a cluster
        if tree is not None and sessions.row(key).node != "n1":
            sessions.update(key, node="n1")

    sessions.note_node = note_node
    await world.until(
        lambda: {sessions.row(SessionKey(u)).node for u in places} == {"n1"}
    )
    world.node.kernels = [kernel("busy", time.time())]
    controller.nodes.drain("n1", DrainOrder(comes_back=True), "root")
    await world.until(lambda: world.hub.plans[-1:] == ["start restore"])
    await world.until(lambda: phases(controller)["ada"] == "running")
    # It came back to that very node: it is suspended again, and stays so.
    await world.until(lambda: set(phases(controller).values()) == {"suspended"})
    await asyncio.sleep(0.5)
    assert set(phases(controller).values()) == {"suspended"}


async def test_sessions_cannot_go_on_elsewhere_where_there_is_nothing_else(world):
    controller = await world.controller()
    with pytest.raises(BadRequest):
        controller.nodes.drain("", DrainOrder(comes_back=True), "root")
