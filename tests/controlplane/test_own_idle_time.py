"""Users' own idle times: within the bounds, below a rule, and kept by the journal."""

from __future__ import annotations

import dataclasses

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionPolicy
from jupyterhub_gpu_reclaim.controlplane.decide.own_idle_time import OwnIdleTimes
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from tests.controlplane.conftest import KEY

BOUNDS = Settings(own_idle_shortest=600.0, own_idle_longest=3600.0)


class OneSession:
    """A journal whose only session has that wish."""

    def __init__(self, wish: float | None) -> None:
        self._wish = wish

    def session(self, key):
        return SessionRow(key=key, own_idle_time=self._wish)


@pytest.mark.parametrize(
    ("wish", "ruled", "held", "chosen"),
    [
        (None, None, None, False),
        (1800.0, None, 1800.0, True),
        (60.0, None, 600.0, True),  # the bounds of today hold
        (9000.0, None, 3600.0, True),
        (1800.0, 900.0, 900.0, False),  # a rule that is stricter
        (1800.0, 0.0, 0.0, False),  # or says never
        (1800.0, 2700.0, 1800.0, True),
    ],
)
def test_wish_holds_within_the_bounds_and_below_a_rule(wish, ruled, held, chosen):
    times = OwnIdleTimes(
        OneSession(wish), BOUNDS, lambda _: SessionPolicy(idle_after=ruled)
    )
    policy = times(KEY)
    assert (policy.idle_after, policy.chosen) == (held, chosen)
    said = ", as its user has chosen" if chosen else ""
    assert policy.rule("idle_after") == said


async def test_chosen_time_is_shown_kept_and_taken_back(world):
    world.settings = dataclasses.replace(
        world.settings, own_idle_shortest=600.0, own_idle_longest=3600.0
    )
    await world.running()
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    view = await controller.users.choose_idle_time(KEY, 1800.0, "ada")
    own = view.facts.own_idle_time
    assert (own.chosen, own.shortest, own.longest) == (1800.0, 600.0, 3600.0)
    for wrong in (599.0, 3601.0):
        with pytest.raises(Refused, match="Choose from 10 min to 1 h"):
            await controller.users.choose_idle_time(KEY, wrong, "ada")
    await world.kill(controller)
    again = await world.controller()
    assert again.users.session(KEY).facts.own_idle_time.chosen == 1800.0
    view = await again.users.choose_idle_time(KEY, None, "ada")
    assert view.facts.own_idle_time.chosen is None


async def test_no_time_can_be_chosen_where_the_administrator_gives_no_bounds(world):
    await world.running()
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    assert not controller.users.session(KEY).facts.own_idle_time
    with pytest.raises(Refused, match="Users do not choose idle times here"):
        await controller.users.choose_idle_time(KEY, 1800.0, "ada")
