"""What the user of a suspended session is told: why, how large, until when."""

import pytest

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from jupyterhub_gpu_reclaim.controlplane.views import cause, suspension_of
from jupyterhub_gpu_reclaim.policy.retention import Retention
from tests.support.simulated import KEY

ADA = SessionKey("ada")
GB = 10**9


def line(what: str, who: str = OURSELVES, message: str = "") -> AuditLine:
    return AuditLine(at=1.0, key=ADA, who=who, what=what, message=message)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, ""),
        (line("suspend", message="Idle for 1 h."), "Idle for 1 h."),
        (line("suspend", who="ada"), "You suspended it."),
        (line("suspend", who="root"), "Suspended by root."),
        (line("lost", message="It ended."), "It ended."),
    ],
)
def test_cause_is_told_with_who_asked_for_it(line, why):
    assert cause(line) == why


@pytest.mark.parametrize(
    ("limits", "until", "for_quota"),
    [
        ({}, None, False),
        ({"seconds": 60.0, "user_bytes": GB}, None, False),  # not for suspended ones
        ({"seconds": 60.0, "takes_current": True}, 72.5, False),
        ({"total_bytes": GB, "takes_current": True}, None, True),
    ],
)
def test_end_of_a_suspended_session_is_what_the_retention_says(
    limits, until, for_quota
):
    row = SessionRow(key=ADA, since=12.5)
    told = suspension_of(row, None, Retention(**limits))
    assert (told.until, told.for_quota) == (until, for_quota)


async def test_suspended_session_says_why_and_how_large_also_after_a_restart(world):
    controller, _ = await world.started()
    assert not controller.users.session(KEY).facts.suspension
    await controller.users.suspend(KEY, "root")
    await world.reaches(controller, "suspended")
    told = controller.users.session(KEY).facts.suspension
    assert told.why == "Suspended by root."
    assert told.bytes == controller.users.session(KEY).last_suspend.logical_bytes
    await world.kill(controller)

    again = await world.controller()
    assert again.users.session(KEY).facts.suspension == told
