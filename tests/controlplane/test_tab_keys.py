"""A key of an open tab is worth one start of one session, and can be taken back.

It stands in the session's environment: a guest of today reads it, and would steer
every later session of that server with it, for ever.
"""

import itertools
from contextlib import closing
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import Failure, Identity, Phase, Placement
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from jupyterhub_gpu_reclaim.controlplane.tab_keys import TabKeys
from tests.support.simulated import KEY

SECRET = b"secret"
_incarnations = itertools.count(1)


async def begin(world, controller, made: float) -> str:
    """A fresh start whose server gets a key of that time."""
    incarnation = f"start{next(_incarnations)}"
    world.hub.states[KEY] = "spawning"
    owner = world.hub.account()
    placement = Placement(key=KEY, incarnation=incarnation, tab_key=made, owner=owner)
    assert (await controller.plan_start(placement)).action == "cold"
    world.node.run(KEY, "work", incarnation=incarnation).account = owner
    world.hub.process._add_token("a-login", KEY.user)
    world.hub.run()
    await controller.placed(placement)
    return incarnation


async def test_key_of_an_earlier_start_does_not_steer_a_later_session(world):
    controller = await world.controller()
    counts = controller.users.tab_counts
    await begin(world, controller, 100.0)
    assert counts(KEY, 100.0)
    await world.suspend(controller)
    assert counts(KEY, 100.0)  # a tab says that it is suspended, and resumes it
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert counts(KEY, 100.0)  # its environment came back as it was
    await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    assert not counts(KEY, 100.0)
    await begin(world, controller, 200.0)
    assert counts(KEY, 200.0)
    assert not counts(KEY, 100.0)
    assert not counts(KEY, 150.0)
    await world.kill(controller)
    again = await world.controller()  # and no restart forgets that
    assert again.users.tab_counts(KEY, 200.0)
    assert not again.users.tab_counts(KEY, 100.0)


async def test_revoked_key_stays_revoked_through_suspends_and_restarts(world):
    controller = await world.controller()
    await begin(world, controller, 100.0)
    await controller.users.revoke_tabs(KEY, "ada")
    assert ("ada", "revoke tabs") in [
        (line.who, line.what) for line in controller.users.audit(KEY)
    ]
    await world.suspend(controller)
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert not controller.users.tab_counts(KEY, 100.0)
    await world.kill(controller)
    assert not (await world.controller()).users.tab_counts(KEY, 100.0)


async def test_revoked_login_revokes_the_key(world):
    controller = await world.controller()
    await begin(world, controller, 100.0)
    await world.suspend(controller)
    world.hub.states[KEY] = "spawning"
    placement = Placement(key=KEY, incarnation="i9")
    await controller.plan_start(placement)
    assert controller.users.tab_counts(KEY, 100.0)
    failure = Failure(code="token_revoked", message="It was revoked.")
    told = Placement(key=KEY, incarnation="i9", failure=failure)
    await controller.cancelled(told)
    assert not controller.users.tab_counts(KEY, 100.0)


async def test_login_that_is_revoked_while_the_session_runs_revokes_the_key(world):
    controller = await world.controller()
    incarnation = await begin(world, controller, 100.0)
    await controller.login_revoked(Placement(key=KEY, incarnation="of-before"))
    assert controller.users.tab_counts(KEY, 100.0)
    await controller.login_revoked(Placement(key=KEY, incarnation=incarnation))
    assert not controller.users.tab_counts(KEY, 100.0)


@pytest.fixture
def journal():
    with closing(Journal("sqlite://")) as journal:
        journal.save(SessionRow(key=KEY, phase=Phase.RUNNING))
        yield journal


@pytest.fixture
def keys(journal):
    return TabKeys(journal, SimpleNamespace(now=lambda: 1000.5))


def identity(made: float) -> Identity:
    key = tab_tokens.session_key(SECRET, KEY, made)
    return Identity(api_token="t", port=1, environment={tab_tokens.VARIABLE: key})


def test_older_session_that_is_brought_back_has_its_own_key_alone(keys):
    keys.begun(KEY, 100.0)
    keys.begun(KEY, 200.0)
    keys.comes_back(KEY, identity(100.0))
    assert keys.count(KEY, 100.0)
    assert not keys.count(KEY, 200.0)


def test_revocation_holds_for_older_sessions_that_are_brought_back(keys):
    keys.begun(KEY, 100.0)
    keys.begun(KEY, 200.0)
    keys.revoke(KEY)
    keys.comes_back(KEY, identity(100.0))
    assert not keys.count(KEY, 100.0)
    keys.begun(KEY, 1002.0)
    assert keys.count(KEY, 1002.0)


def test_session_that_was_found_takes_no_key_of_a_start_that_is_known(keys):
    """Its fresh start was without the service."""
    keys.begun(KEY, 100.0)
    keys.found(KEY)
    keys.found(KEY)
    assert keys.count(KEY, 300.0)
    assert not keys.count(KEY, 100.0)
    assert not keys.count(KEY, 50.0)


def test_no_key_outlives_its_session(keys, journal):
    keys.begun(KEY, 100.0)
    journal.save(SessionRow(key=KEY))
    assert not keys.count(KEY, 100.0)


@pytest.mark.parametrize("claimed", ["", "x", "1e999.y", "9" * 400 + ".y", "-5.y"])
def test_environment_that_names_no_start_changes_nothing(keys, claimed):
    keys.begun(KEY, 100.0)
    environment = {tab_tokens.VARIABLE: claimed}
    keys.comes_back(KEY, Identity(api_token="", port=0, environment=environment))
    assert keys.count(KEY, 100.0)
