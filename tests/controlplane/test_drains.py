"""A node is drained: what runs there is saved, the idle first, and nothing is lost."""

import asyncio

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
from jupyterhub_gpu_reclaim.controlplane.decide.draining import SHORT, WARNED_PART
from tests.support.simulated import KEY

SEVEN = ("ada", "bob", "cy", "dan", "eve", "fay", "gus")
BLOCKED = Failure(code="capture_failed", message="It cannot be.", retryable=True)


def phases(controller) -> dict[str, str]:
    return {view.key.user: view.phase.value for view in controller.users.sessions()}


def states(controller) -> dict[str, str]:
    (report,) = controller.nodes.drains()
    return {each.key.user: each.state for each in report.sessions}


async def running(world, *users: str, busy: str = "", **settings):
    """Sessions that were all sampled; one of them is at work."""
    world.change(**settings)
    world.node.says = {"kernels": [kernel("idle")], "started": None}
    controller = await world.controller()
    for user in users:
        incarnation = await world.running(user, SessionKey(user))
        if user == busy:
            at_work(world, incarnation)

    def sampled() -> bool:
        views = controller.users.sessions()
        seen = {view.key.user for view in views if view.usage is not None}
        at_work = [view for view in views if view.usage and view.usage.busy_kernel]
        return seen == {*users} and bool(at_work) == bool(busy)

    await world.until(sampled)
    return controller


def kernel(state: str, used: float = 1.0) -> KernelSample:
    return KernelSample(
        id="k1", name="python3", execution_state=state, last_activity=used
    )


def at_work(world, incarnation: str) -> None:
    world.node.says_of[incarnation] = {"kernels": [kernel("busy", world.now())]}


async def all_suspended(world, controller, limit: float = 120.0) -> None:
    await world.until(lambda: set(phases(controller).values()) == {"suspended"}, limit)


async def test_whatever_runs_there_is_suspended_although_the_policy_says_no(world):
    controller = await running(world, "ada", "bo", "cy")
    report = controller.nodes.drain("", DrainOrder(), "root")
    assert [each.state for each in report.sessions] == ["waiting"] * 3
    await all_suspended(world, controller)
    (report,) = controller.nodes.drains()
    assert report.ended
    assert [each.state for each in report.sessions] == ["saved"] * 3
    line = next(
        each for each in controller.users.audit(KEY) if each.code == "node_drains"
    )
    assert line.who == "root"


async def test_session_at_work_goes_last(world):
    controller = await running(world, "ada", "bo", "cy", busy="ada", captures=1)
    controller.nodes.drain("", DrainOrder(), "root")
    order = []
    while len(order) < 3:
        now = phases(controller)
        order += [u for u in now if now[u] == "suspended" and u not in order]
        await asyncio.sleep(0.01)
    assert order[-1] == "ada"


@pytest.mark.parametrize("restarted", [False, True])
async def test_undrain_calls_off_what_is_being_saved_for_it(world, restarted):
    controller = await running(world, "ada")
    world.node.hold_at = "dump"
    controller.nodes.drain("", DrainOrder(), "root")
    await world.reaches(controller, "suspending")
    if restarted:
        await world.kill(controller)
        controller = await world.controller()
    controller.nodes.undrain("", "root")
    await world.until(lambda: world.phase(controller) == "running", limit=5.0)
    assert world.node.saved == {}


async def test_notice_that_is_withdrawn_calls_off_what_is_being_saved(world):
    controller = await running(world, "ada")
    world.node.hold_at = "dump"
    controller.nodes.follow([NodeNotice("", "cordoned")])
    await world.reaches(controller, "suspending")
    controller.nodes.follow([])
    await world.until(lambda: world.phase(controller) == "running", limit=5.0)


async def test_undrain_does_not_call_off_what_its_user_has_ordered(world):
    controller = await running(world, "ada")
    world.node.hold_at = "dump"
    await controller.users.suspend(KEY, "ada")
    await world.reaches(controller, "suspending")
    controller.nodes.drain("", DrainOrder(), "root")
    controller.nodes.undrain("", "root")
    await asyncio.sleep(2.0)
    world.node.hold_at = ""
    await world.reaches(controller, "suspended")


async def test_nothing_starts_on_the_hubs_own_machine_until_it_is_over(world):
    controller = await running(world, "ada")
    controller.nodes.drain("", DrainOrder(), "root")
    await all_suspended(world, controller)
    for key in (KEY, SessionKey("new")):
        plan = await controller.plan_start(Placement(key=key, incarnation="i2"))
        assert (plan.action, plan.failure.code) == ("refuse", "node_closed")
    controller.nodes.undrain("", "root")
    assert await world.hub.start() == "restore"
    await asyncio.sleep(5.0)
    assert world.phase(controller) == "running"


async def test_order_outlives_the_service(world):
    controller = await world.controller()
    controller.nodes.drain("", DrainOrder(seconds=900), "root")
    until = world.now() + 900
    await world.kill(controller)
    world.change(warn_for=0.0)
    await world.running("ada")
    controller = await world.controller()
    (report,) = controller.nodes.drains()
    assert report.drain.until == until
    await world.reaches(controller, "suspended")


async def test_other_nodes_are_left_alone(world):
    controller = await running(world, "ada")
    controller.nodes.drain("elsewhere", DrainOrder(), "root")
    await asyncio.sleep(5.0)
    assert world.phase(controller) == "running"


async def test_user_cannot_keep_it_there(world):
    controller = await running(world, "ada", warn_for=60.0)
    controller.nodes.drain("", DrainOrder(), "root")
    await world.reaches(controller, "warned")
    with pytest.raises(Refused) as told:
        await controller.users.keep(KEY, 3600, "ada")
    assert told.value.reason is Reason.NODE_DRAINS
    await controller.users.keep(KEY, 0, "ada")
    assert world.phase(controller) == "warned"
    controller.nodes.undrain("", "root")
    await world.reaches(controller, "running")


@pytest.mark.parametrize("seconds", [SHORT / 2, SHORT * 4])
async def test_session_in_use_is_warned_for_a_part_of_the_time_where_there_is_enough(
    world, seconds
):
    controller = await running(world, "ada", "bo", busy="ada", warn_for=3600.0)
    begun, warned = world.now(), seconds > SHORT
    controller.nodes.drain("", DrainOrder(seconds=seconds), "root")
    await world.until(lambda: phases(controller)["bo"] == "suspended", limit=5.0)
    assert (phases(controller)["ada"] == "warned") is warned
    await all_suspended(world, controller, limit=seconds)
    took = world.now() - begun
    assert took == pytest.approx(seconds * WARNED_PART if warned else 0.0, abs=10.0)


async def test_who_was_warned_before_does_not_wait_longer_than_there_is_time(world):
    controller = await running(world, "ada", warn_for=3600.0)
    controller.nodes.drain("", DrainOrder(), "root")
    await world.reaches(controller, "warned")
    controller.nodes.drain("", DrainOrder(seconds=SHORT), "root")
    await all_suspended(world, controller, limit=SHORT)


async def test_user_cannot_hold_it_up_by_orders(world):
    controller = await running(world, "ada")
    users, refused = controller.users, set()

    async def insist() -> None:
        while True:
            for order in (users.save, users.nap, users.wake):
                try:
                    await order(KEY, "ada")
                except Refused as error:
                    refused.add(error.reason)
                await asyncio.sleep(0.005)

    insists = asyncio.create_task(insist())
    await asyncio.sleep(1.0)
    controller.nodes.drain("", DrainOrder(), "root")
    await all_suspended(world, controller, limit=20.0)
    insists.cancel()
    assert Reason.NODE_DRAINS in refused


async def test_looks_that_take_long_do_not_hold_it_up(world):
    """As long as one who has asked for its turn, and has not asked again, has it."""
    controller = await running(world, "ada", "bo", "cy")
    world.installation.weather.slow = 10.0
    controller.nodes.drain("", DrainOrder(), "root")
    await all_suspended(world, controller)


async def test_return_to_a_closed_machine_is_not_asked_for_again_and_again(world):
    controller = await running(world, "ada")
    world.node.hold_at = "dump"
    controller.nodes.drain("", DrainOrder(), "root")
    await world.reaches(controller, "suspending")
    await controller.users.resume(KEY, "ada")
    world.node.hold_at = ""
    await world.reaches(controller, "suspended")
    await asyncio.sleep(10.0)
    assert world.hub.plans.count("start refuse") == 1
    assert controller.users.session(KEY).failure.code == "node_closed"


async def test_session_that_cannot_be_saved_is_told_with_its_reason(world):
    controller = await running(world, "ada", "bo")
    world.node.failures["dump"] = BLOCKED
    controller.nodes.drain("", DrainOrder(), "root")
    await world.until(lambda: {*states(controller).values()} == {"refused"})
    (report,) = controller.nodes.drains()
    assert all(each.failure.message for each in report.sessions)
    assert not report.ended


async def test_what_failed_before_is_tried_at_once_and_not_called_refused(world):
    controller = await running(world, "ada", backoff=3600.0)
    world.node.failures["dump"] = BLOCKED
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: controller._sessions.row(KEY).failures == 1)
    del world.node.failures["dump"]
    report = controller.nodes.drain("", DrainOrder(seconds=30), "root")
    assert [each.state for each in report.sessions] == ["waiting"]
    await all_suspended(world, controller, limit=5.0)


async def test_agent_that_restarts_in_the_middle_costs_nobody_their_place(world):
    controller = await running(world, *SEVEN, backoff=60.0, tick_interval=10.0)
    world.node.hold_at = "dump"
    controller.nodes.drain("", DrainOrder(seconds=60.0), "root")
    await world.until(lambda: [*phases(controller).values()].count("suspending") == 2)
    await asyncio.sleep(5.0)
    world.node.hold_at = ""
    await world.kill_agent()
    refused = set()
    for _ in range(45):
        refused |= {user for user, s in states(controller).items() if s == "refused"}
        await asyncio.sleep(1.0)
    assert {*phases(controller).values()} == {"suspended"}
    assert not refused


@pytest.mark.parametrize("seconds", [0, -1, 31 * 86400.0, float("nan")])
async def test_time_that_makes_no_sense_is_refused(world, seconds):
    controller = await world.controller()
    with pytest.raises(BadRequest):
        controller.nodes.drain("", DrainOrder(seconds=seconds), "root")
    with pytest.raises(NotFound):  # nothing has begun
        controller.nodes.undrain("", "root")


async def test_save_point_under_way_is_called_off(world):
    controller = await running(world, "ada", captures=1)
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada")
    await asyncio.sleep(2.0)
    controller.nodes.drain("", DrainOrder(seconds=60), "root")
    await world.until(lambda: world.phase(controller) == "suspending", limit=5.0)
    world.node.hold_at = ""
    await world.reaches(controller, "suspended")
    assert not [info for info, *_ in world.node.saved.values() if info.goes_on]


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_session_at_work_comes_back_by_itself_once_if_that_is_ordered(world):
    controller = await running(world, "ada", "bo", busy="ada")
    await world.until(lambda: all(v.facts.node for v in controller.users.sessions()))
    for node in ("node1", "node2"):
        controller.nodes.drain(node, DrainOrder(comes_back=True), "root")
    await world.until(lambda: world.hub.plans[-1:] == ["start restore"])
    await world.reaches(controller, "running")
    # It came back to one that is drained: it is suspended again, and stays so.
    await all_suspended(world, controller)
    await asyncio.sleep(60.0)
    assert {*phases(controller).values()} == {"suspended"}
    assert world.hub.plans.count("start restore") == 1


async def test_sessions_cannot_go_on_elsewhere_where_there_is_nothing_else(world):
    controller = await world.controller()
    with pytest.raises(BadRequest):
        controller.nodes.drain("", DrainOrder(comes_back=True), "root")


# --- a cluster's notices


def due(controller) -> float | None:
    (report,) = controller.nodes.drains()
    return report.drain.until


async def test_notice_drains_until_it_is_withdrawn(world):
    controller = await world.controller()
    controller.nodes.follow([NodeNotice("n1", "cordoned")])
    assert due(controller) is None
    until = world.now() + 120.0
    for _ in range(2):
        controller.nodes.follow([NodeNotice("n1", "spot", 120.0)])
        assert due(controller) == until
        await asyncio.sleep(1.0)
    controller.nodes.follow([])
    assert controller.nodes.drains() == []


@pytest.mark.parametrize("ordered", [False, True])
async def test_persons_word_stands_against_a_notice(world, ordered):
    controller = await world.controller()
    notice = [NodeNotice("n1", "spot", 30.0)]
    controller.nodes.follow(notice)
    if ordered:  # by a person, too
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
    until = world.now() + 30.0
    for seconds in (30.0, 120.0):
        controller.nodes.follow([NodeNotice("n1", "spot", seconds)])
        assert due(controller) == until
