"""A key of an open tab is worth one session of one start, and can be taken back.

It stands in the session's environment: a guest of today reads it, and would steer
every later session of that server with it, for ever.
"""

from jupyterhub_gpu_reclaim.common.models import Failure, Placement
from tests.support.simulated import KEY


def session_of(controller) -> str:
    return controller._sessions.row(KEY).session


async def begun(world, controller) -> str:
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(controller, "running")
    return session_of(controller)


async def test_key_of_an_earlier_start_does_not_steer_a_later_session(world):
    controller, _ = await world.started()
    first, counts = session_of(controller), controller.users.tab_counts
    assert counts(KEY, first)
    await world.suspend(controller)
    assert counts(KEY, first)  # a tab says that it is suspended, and resumes it
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert counts(KEY, first)  # its environment came back as it was
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    assert not counts(KEY, first)
    second = await begun(world, controller)
    assert counts(KEY, second)
    assert not counts(KEY, first)
    await world.kill(controller)
    again = await world.controller()  # and no restart forgets that
    assert again.users.tab_counts(KEY, second)
    assert not again.users.tab_counts(KEY, first)
    await world.suspend(again)
    await again.users.bring_back(KEY, saved, "ada")
    assert again.users.tab_counts(KEY, first)  # it has its own key alone
    assert not again.users.tab_counts(KEY, second)


async def test_revoked_key_stays_revoked_through_suspends_and_restarts(world):
    controller, _ = await world.started()
    first = session_of(controller)
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    second = await begun(world, controller)
    await controller.users.revoke_tabs(KEY, "ada")
    assert ("ada", "revoke tabs") in [
        (line.who, line.what) for line in controller.users.audit(KEY)
    ]
    await world.suspend(controller)
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert not controller.users.tab_counts(KEY, second)
    await world.kill(controller)
    again = await world.controller()
    assert not again.users.tab_counts(KEY, second)
    await world.suspend(again)
    await again.users.bring_back(KEY, saved, "ada")
    assert not again.users.tab_counts(KEY, first)  # so are those of before
    await again.users.start_fresh(KEY, "ada")
    third = await begun(world, again)
    assert again.users.tab_counts(KEY, third)


async def test_revoked_login_revokes_the_key(world):
    controller = await world.suspended()
    session = session_of(controller)
    world.hub.states[KEY] = "spawning"
    placement = Placement(key=KEY, incarnation="i9")
    await controller.plan_start(placement)
    assert controller.users.tab_counts(KEY, session)
    failure = Failure(code="token_revoked", message="It was revoked.")
    told = Placement(key=KEY, incarnation="i9", failure=failure)
    await controller.cancelled(told)
    assert not controller.users.tab_counts(KEY, session)


async def test_login_that_is_revoked_while_the_session_runs_revokes_the_key(world):
    controller, incarnation = await world.started()
    session = session_of(controller)
    await controller.login_revoked(Placement(key=KEY, incarnation="of-before"))
    assert controller.users.tab_counts(KEY, session)
    await controller.login_revoked(Placement(key=KEY, incarnation=incarnation))
    assert not controller.users.tab_counts(KEY, session)


async def test_no_key_outlives_its_session(world):
    controller, _ = await world.started()
    session = session_of(controller)
    world.give_up()
    await world.hub.stop(KEY)
    assert not controller.users.tab_counts(KEY, session)
