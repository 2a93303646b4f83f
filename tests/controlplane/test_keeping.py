"""Limits on "keep": how long at once, how much in a day, and for whom."""

from __future__ import annotations

import dataclasses

import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.sessions.keep_quota import KeepQuota
from tests.controlplane.conftest import KEY
from tests.support.manual_clock import ManualClock

HOUR = 3600.0


class Person:
    """Asks for "keep" as ``people.py`` does, of a journal that lasts."""

    def __init__(self, url: str, per_day: float) -> None:
        self.url, self.per_day, self.clock = url, per_day, ManualClock()

    def keep(self, hours: float, server: str = "", user: str = "ada", bound=True):
        journal = Journal(self.url)  # a service that has just been started
        try:
            keeps = KeepQuota(journal, self.per_day)
            key, now = SessionKey(user, server), self.clock.now()
            journal.write(*keeps.wish(key, hours * HOUR, now, bound=bound))
        finally:
            journal.close()


@pytest.fixture
def person(tmp_path):
    return Person(f"sqlite:///{tmp_path}/journal.sqlite", 4 * HOUR)


def test_keep_beyond_the_day_is_refused_with_what_is_left_and_when(person):
    person.keep(3)
    person.clock.advance(5 * HOUR)
    with pytest.raises(Refused) as caught:
        person.keep(2)
    assert caught.value.reason is Reason.KEEP_SPENT
    assert caught.value.message == (
        "Your sessions can be kept for 4 h in any 24 h; 1 h of that is available now;"
        " 2 h will be in 20 h."
    )
    with pytest.raises(Refused, match=r"1 h of that is available now\.$"):
        person.keep(5)
    person.clock.advance(20 * HOUR)
    person.keep(2)


def test_keep_of_all_sessions_of_a_user_counts_and_of_others_does_not(person):
    person.keep(2)
    person.keep(2, server="train")
    with pytest.raises(Refused):
        person.keep(1, server="third")
    person.keep(4, user="bob")


def test_keep_again_counts_only_what_is_longer_and_taking_back_gives_back(person):
    person.keep(4)
    person.clock.advance(HOUR)
    person.keep(3)  # to the same end
    with pytest.raises(Refused):
        person.keep(4)
    person.keep(0)
    with pytest.raises(Refused):
        person.keep(4)
    person.keep(3)


def test_managers_are_not_bound_and_nobody_pays_for_them(person):
    person.keep(48, bound=False)
    person.keep(4)
    person.per_day = 0.0
    person.keep(48, server="train")


async def test_keep_of_a_session_is_bound_for_users_and_survives_a_restart(world):
    world.settings = dataclasses.replace(
        world.settings, keep_per_day=HOUR, keep_limit=2 * HOUR
    )
    await world.running("tensors")
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.keep(KEY, HOUR, "ada")
    await world.kill(controller)
    controller = await world.controller()
    kept = controller.users.session(KEY).kept_until
    await controller.users.keep(KEY, 0, "ada")
    await controller.users.keep(KEY, HOUR - 60, "ada")
    with pytest.raises(Refused, match="in any 24 h"):
        await controller.users.keep(KEY, 1.5 * HOUR, "ada")
    with pytest.raises(Refused, match="for 2 h at most"):
        await controller.users.keep(KEY, 3 * HOUR, "ada")
    view = await controller.users.keep(KEY, 30 * HOUR, "root", manages=True)
    assert view.kept_until > kept + 28 * HOUR
    for nonsense in (-1, float("nan"), 1e9):
        with pytest.raises(BadRequest):
            await controller.users.keep(KEY, nonsense, "root", manages=True)
