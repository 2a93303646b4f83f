"""Limits on "keep": how long, and for whom."""

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from tests.support.simulated import KEY

HOUR = 3600.0


async def test_keep_of_a_session_is_bound_for_users_and_survives_a_restart(world):
    controller, _ = await world.started(keep_limit=2 * HOUR)
    await controller.users.keep(KEY, HOUR, "ada")
    kept = controller.users.session(KEY).kept_until
    await world.kill(controller)
    controller = await world.controller()
    assert controller.users.session(KEY).kept_until == kept
    await controller.users.keep(KEY, controller.users.longest_keep(), "ada")
    with pytest.raises(Refused, match="for 2 h at most"):
        await controller.users.keep(KEY, 3 * HOUR, "ada")
    await controller.users.keep(KEY, 30 * HOUR, "root", manages=True)
    view = controller.users.session(KEY)
    assert view.kept_until > kept + 28 * HOUR
    with pytest.raises(Refused, match="at most"):
        await controller.users.keep(KEY, 1e9, "root", manages=True)
    await controller.users.keep(KEY, 0, "ada")
    assert controller.users.session(KEY).kept_until is None
