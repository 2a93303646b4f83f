"""What was asked of a session, or noted of it, does not hit the next one."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane import session
from jupyterhub_gpu_reclaim.controlplane.session import Intent, SessionEvent, SessionRow
from tests.support.simulated import KEY


async def test_keep_lasts_through_a_suspend_and_ends_with_a_new_session(world):
    controller, incarnation = await world.started("old")
    await controller.users.keep(KEY, 3600, "ada")
    until = controller.users.session(KEY).kept_until
    await world.suspend(controller)
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    view = controller.users.session(KEY)
    assert (view.kept_until, controller._sessions.row(KEY).kept_by) == (until, "ada")
    assert view.incarnation != incarnation
    await world.hub.stop(KEY)
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    view = controller.users.session(KEY)
    assert (view.kept_until, controller._sessions.row(KEY).kept_by) == (None, "")


async def test_keep_lasts_when_one_goes_back_to_an_earlier_incarnation(world):
    controller, _ = await world.started("old")
    older = await world.suspend(controller)
    await world.resume(controller, "new")
    await controller.users.keep(KEY, 3600, "ada")
    until = controller.users.session(KEY).kept_until
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await world.until(lambda: world.node.works() == ["old"])
    await world.reaches(controller, "running")
    view = controller.users.session(KEY)
    assert (view.kept_until, controller._sessions.row(KEY).kept_by) == (until, "ada")


FULL = SessionRow(
    key=KEY,
    phase=Phase.RUNNING,
    since=1.0,
    session="s1",
    incarnation="i1",
    stamp=(0, 3),
    checkpoint="c1",
    attempt="c2",
    intent=Intent.SUSPEND,
    intent_by="eve",
    failures=2,
    backoff_until=9.0,
    kept_until=8.0,
    kept_by="ada",
    opted_out_by="root",
    stop_asked=3.0,
)
ORDER = {"intent", "intent_by"}
PROCESSES = ORDER | {"failures", "backoff_until", "stop_asked", "node"}
SESSION = PROCESSES | {"kept_until", "kept_by"}
NEW = {"session": "s2", "incarnation": "i2"}


@pytest.mark.parametrize(
    ("change", "over"),
    [
        ({}, set()),
        ({"phase": Phase.SUSPENDING}, set()),
        ({"phase": Phase.SUSPENDED}, ORDER),
        ({"intent": Intent.RESUME}, ORDER),
        ({"intent": Intent.RESUME, "phase": Phase.SUSPENDED}, set()),
        ({"incarnation": "i2"}, PROCESSES),
        ({"incarnation": "i2", "phase": Phase.RESUMING}, PROCESSES),
        ({"incarnation": "i2", "checkpoint": "c9"}, PROCESSES),
        ({**NEW, "checkpoint": "c9"}, SESSION),
        ({**NEW, "checkpoint": ""}, SESSION),
        ({"phase": Phase.STOPPED}, SESSION),
    ],
)
def test_ended_is_what_belonged_to_the_processes_or_to_the_session(change, over):
    after = msgspec.structs.replace(FULL, **change)
    void = session.ended(SessionEvent.RELEASED, FULL, after)
    left, fresh = msgspec.structs.replace(after, **void), SessionRow(key=KEY)
    ended = {name for name in void if getattr(after, name) != getattr(left, name)}
    assert ended - {"attempt"} == over - {"node"}
    for name in over:
        assert getattr(left, name) == getattr(fresh, name)
    assert left.opted_out_by == "root"
    assert left.stamp == (0, 3)
