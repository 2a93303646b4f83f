"""Servers of one user that belong together are suspended all or none, and come back."""

import asyncio
import contextlib

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    KernelSample,
    Phase,
    SessionKey,
    SessionPolicy,
)
from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
from simulation.loop import Killed
from tests.support.long_stories import but

A, B, C = (SessionKey("ada", f"job-{name}") for name in "abc")
ALONE = SessionKey("ada", "lab")
BROKEN = Failure(code="capture_failed", message="A file cannot be saved.")
BUSY = Decision(reclaim=False, code="kernel_busy", message="Kernel k is busy.")
IDLE = Decision(reclaim=True, code="idle", message="Idle.")


def policies(key: SessionKey) -> SessionPolicy:
    if not key.server.startswith("job-"):
        return SessionPolicy()
    return SessionPolicy(together=True, by={"together": "server job-*"})


class Group:
    """Servers of Ada's, and the service that looks after them."""

    def __init__(self, world) -> None:
        self.world = world
        self.keys: tuple[SessionKey, ...] = ()
        self.busy: set[SessionKey] = {A, B, C, ALONE}
        self.incarnations: dict[SessionKey, str] = {}

    async def start(self, *keys: SessionKey) -> None:
        self.keys = keys
        for key in keys:
            self.incarnations[key] = await self.world.running(str(key), key)
        await self.service()
        await self.are("running")

    async def service(self, writes: int = 0):
        self.controller = await self.world.controller(
            writes,
            policies=policies,
            decide=lambda view, now: [BUSY if view.key in self.busy else IDLE],
        )

    def phases(self) -> list[str]:
        return [self.world.phase(self.controller, key) for key in self.keys]

    async def are(self, *phases: str, limit: float = 30.0) -> None:
        wanted = [*phases] if phases[1:] else [*phases] * len(self.keys)
        await self.world.until(lambda: self.phases() == wanted, limit)

    async def suspend(self, key: SessionKey = A) -> None:
        await self.controller.users.suspend(key, "ada")

    def failure(self, key: SessionKey) -> Failure | None:
        return self.controller.users.session(key).failure

    def hold(self, *keys: SessionKey, at: str = "dump") -> None:
        self.world.node.hold_at = at
        self.world.node.holds = {key.server for key in keys}

    def let_go(self) -> None:
        self.world.node.hold_at = ""

    def break_(self, key: SessionKey) -> None:
        self.world.node.failures_of[key] = {"dump": BROKEN}

    def intact(self) -> None:
        """Each is there once, with its contents; nothing is lost."""
        node = self.world.node
        for key in self.keys:
            if self.world.phase(self.controller, key) == "running":
                assert node.works(key) == [str(key)]
            else:
                infos = [info for info, *_ in node.saved.values() if info.key == key]
                saved = [node.contents(info.id) for info in infos]
                assert (node.works(key), saved) == ([], [str(key)])


@pytest.fixture
def group(world) -> Group:
    return Group(world)


async def test_suspend_of_one_suspends_all_and_none_ends_before_all_are_saved(group):
    await group.start(A, B, C)
    group.hold(C)
    await group.suspend()
    await group.are("releasing", "releasing", "suspending")
    await asyncio.sleep(2.0)
    assert group.phases() == ["releasing", "releasing", "suspending"]
    assert group.world.hub.orders == []
    group.let_go()
    await group.are("suspended")
    group.intact()


async def test_other_servers_of_that_user_are_left_alone(group):
    await group.start(A, B, ALONE)
    await group.suspend()
    await group.are("suspended", "suspended", "running")
    group.intact()


async def test_one_that_cannot_be_saved_lets_the_others_go_on(group):
    await group.start(A, B, C)
    group.break_(B)
    await group.suspend()
    await group.world.until(lambda: group.failure(A))
    await group.are("running")
    assert group.failure(A).code == "together_failed"
    assert "ada/job-b" in group.failure(A).message
    assert "A file cannot be saved." in group.failure(A).message
    failure = group.failure(B)
    assert (failure.code, failure.message) == (BROKEN.code, BROKEN.message)
    assert group.world.hub.orders == []
    await group.world.until(lambda: group.world.node.saved == {})
    await asyncio.sleep(2.0)
    assert group.phases() == ["running"] * 3
    group.intact()


async def test_what_is_still_being_saved_is_called_off_at_once(group):
    await group.start(A, B)
    group.hold(A)
    group.break_(B)
    await group.suspend()
    await group.world.until(lambda: group.failure(A))
    await group.are("running")
    assert group.failure(A).code == "together_failed"
    group.intact()


@pytest.mark.parametrize("wanted", [A, B])
async def test_user_who_returns_to_one_gets_all_back_at_once(group, wanted):
    await group.start(A, B)
    group.hold(B)
    await group.suspend()
    await group.are("releasing", "suspending")
    await group.controller.users.resume(wanted, "ada")
    await group.are("running")  # what is held is not waited for
    await asyncio.sleep(2.0)
    assert group.phases() == ["running"] * 2
    group.intact()


async def test_return_of_one_brings_back_the_others(group):
    await group.start(A, B, ALONE)
    await group.suspend()
    await group.suspend(ALONE)
    await group.are("suspended")
    assert await group.world.hub.start(B) == "restore"
    await group.are("running", "running", "suspended")
    group.intact()


async def test_one_that_its_user_must_decide_about_does_not_come_back_by_itself(group):
    await group.start(A, B)
    await group.suspend()
    await group.are("suspended")
    group.controller._sessions.update(B, failure=BROKEN)
    assert await group.world.hub.start(A) == "restore"
    await group.are("running", "suspended")
    await asyncio.sleep(2.0)
    assert group.phases() == ["running", "suspended"]


async def test_idle_ones_wait_until_all_are_idle(group):
    await group.start(A, B)
    group.busy = {B}
    why = group.controller.users.why
    await group.world.until(lambda: why(A)[0].code == "together_busy")
    assert why(A)[0].message == (
        "It is suspended only together with ada/job-b, which is to stay:"
        " Kernel k is busy."
    )
    await asyncio.sleep(2.0)
    assert group.phases() == ["running"] * 2
    group.busy = set()
    await group.are("suspended")
    group.intact()


async def test_one_that_is_used_before_its_turn_keeps_the_others(group):
    group.world.change(captures=1)
    await group.start(A, B)
    group.hold(A, B)
    group.busy = set()
    await group.world.until(lambda: "suspending" in group.phases())
    group.busy = {A, B}
    group.let_go()
    await group.are("running")
    await asyncio.sleep(2.0)
    assert group.phases() == ["running"] * 2
    assert group.world.hub.orders == []
    group.intact()


async def test_all_are_warned_as_long_as_any_of_them(group):
    group.world.change(warn_for=60.0)
    await group.start(A, B)
    group.busy = set()
    await group.are("warned")
    await group.controller.users.keep(B, 3600, "ada")
    group.busy = {B}
    await group.are("running")


async def test_silent_node_does_not_keep_the_others_frozen_for_ever(group):
    group.world.change(release_limit=5.0)
    await group.start(A, B)
    group.hold(B)
    await group.suspend()
    await group.are("releasing", "suspending")
    await group.world.until(lambda: group.failure(A), limit=10)
    await group.are("running", limit=10)
    assert group.failure(A).code == "together_failed"
    assert "was not saved in time" in group.failure(A).message
    group.intact()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_one_that_is_stopped_or_deleted_in_the_middle_keeps_nobody(
    group, is_deleted
):
    await group.start(A, B)
    group.hold(B)
    await group.suspend()
    await group.are("releasing", "suspending")
    if is_deleted:
        group.world.hub.states[B] = "stopped"
        group.world.give_up(B)
        await group.controller.forget(Deletion(user="ada", server="job-b"))
        group.keys = (A,)
    else:
        await group.world.hub.stop(A)
        group.let_go()
    await group.are("suspended")
    group.intact()


async def test_one_that_naps_goes_with_the_others(group):
    await group.start(A, B)
    tree = group.world.node.places[group.incarnations[B]].tree
    tree.gpu_bytes, tree.on_gpu = 1, True
    await group.controller.users.nap(B, "ada")
    await group.are("running", "napping")
    await group.suspend()
    await group.are("suspended")


async def test_server_of_a_former_account_does_not_belong_to_them(group):
    await group.start(A, B)
    group.controller._sessions.update(B, account="17:2020")
    await group.suspend()
    await group.are("suspended", "running")


async def test_those_of_a_drained_node_go_whatever_the_others_do(group):
    await group.start(A, B)
    group.break_(B)
    idle = KernelSample(id="k", name="k", execution_state="idle", last_activity=1.0)
    group.world.node.says = {"kernels": [idle]}
    group.controller.nodes.drain("", DrainOrder(), "root")
    await group.are("suspended", "running")
    group.intact()


async def test_one_that_has_gone_on_before_is_not_ordered_to_come_back(group):
    await group.start(A, B)
    sessions = group.controller._sessions
    sessions.update(B, stop_asked=sessions.clock.now())
    saved = msgspec.structs.replace(sessions.row(A), phase=Phase.RELEASING)
    Together(sessions, lambda view, now: []).went_on(saved)
    assert not group.controller.users.session(B).facts.intent


async def test_what_was_ended_comes_back_if_another_goes_on(group):
    await group.start(A, B)
    await group.suspend()
    places = group.world.node.places
    while len(places) == 2:
        await asyncio.sleep(0.001)
    (left,) = places.values()
    left.tree.stopped.clear()  # somebody wakes the other one before its end
    await group.are("running")
    group.intact()


@pytest.mark.parametrize("writes", but([*range(1, 25)], 3, 8, 16, 23))
@pytest.mark.parametrize("broken", [False, True])
async def test_service_killed_after_write_all_or_none(group, writes, broken):
    world = group.world
    await group.start(A, B)
    await world.kill(group.controller)
    if broken:
        group.break_(B)
    await group.service(writes)
    first = group.controller
    with contextlib.suppress(Killed):
        await group.suspend()

    def ended() -> bool:
        phases = group.phases()
        return phases == ["suspended"] * 2 or bool(group.failure(A))

    await world.until(lambda: world.is_dead(first) or ended())
    await replaced(group)
    assert len(set(group.phases())) == 1
    if broken:
        assert group.phases() == ["running"] * 2


@pytest.mark.parametrize("writes", but([*range(1, 21)], 3, 12, 19))
async def test_service_killed_on_the_way_back_all_or_none(group, writes):
    world = group.world
    await group.start(A, B)
    await group.suspend()
    await group.are("suspended")
    await world.kill(group.controller)
    await group.service(writes)
    first = group.controller
    with contextlib.suppress(Killed):
        await group.controller.users.resume(A, "ada")
    both = ["running"] * 2
    await world.until(lambda: world.is_dead(first) or group.phases() == both)
    await replaced(group)
    for key in (A, B):  # its user is told what has not come back, and tries again
        if group.phases() != both and group.failure(key):
            await group.controller.users.resume(key, "ada")
            await group.are("running")
    assert len(set(group.phases())) == 1


async def replaced(group) -> None:
    """Another service takes over, and settles them alike."""
    await group.world.kill(group.controller)
    await group.service()
    await settled(group)
    group.intact()


async def settled(group) -> None:
    def quiet() -> bool:
        views = [group.controller.users.session(key) for key in group.keys]
        return all(
            view.phase.value in {"running", "suspended"} and not view.facts.intent
            for view in views
        ) and all(
            place.tree and place.tree.runs for place in group.world.node.places.values()
        )

    for _ in range(5):
        await group.world.until(quiet)
        await asyncio.sleep(0.5)
