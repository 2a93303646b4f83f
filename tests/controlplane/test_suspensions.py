"""What the user of a suspended session is told: why, and a guess of a time."""

import pytest

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from jupyterhub_gpu_reclaim.controlplane.views import ResumeTimes, cause, suspension_of
from jupyterhub_gpu_reclaim.policy.retention import Retention
from tests.support.simulated import KEY

ADA, BOB = SessionKey("ada"), SessionKey("bob")
GB = 10**9


def line(what: str, who: str = OURSELVES, message: str = "") -> AuditLine:
    return AuditLine(at=1.0, key=ADA, who=who, what=what, message=message)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], ""),
        ([line("released"), line("suspend", message="Idle for 1 h.")], "Idle for 1 h."),
        ([line("suspend", who="ada")], "You suspended it."),
        ([line("suspend", who="root")], "Suspended by root."),
        ([line("suspend"), line("suspend", who="ada")], ""),
        # not why it was suspended another time, before it ran and was lost
        ([line("lost", message="It ended."), line("suspend", who="ada")], "It ended."),
    ],
)
def test_cause_is_the_newest_suspends(lines, why):
    assert cause(lines) == why


def test_time_of_a_resume_is_guessed_from_those_of_its_size_its_own_first():
    times = ResumeTimes()
    assert times.expected(ADA, GB) == 0
    times.add(ADA, GB, 2.0)
    times.add(BOB, 2 * GB, 10.0)
    assert times.expected(ADA, 2 * GB) == 4.0
    assert times.expected(SessionKey("eve"), GB) == 5.0
    assert times.expected(ADA, 100 * GB) == 0  # nothing like it was seen
    assert times.expected(ADA, 0) == 0
    times.add(ADA, 0, 1.0)  # its size is not known
    assert times.expected(ADA, GB) == 2.0


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
    told = suspension_of(row, None, "", ResumeTimes(), Retention(**limits))
    assert (told.until, told.for_quota) == (until, for_quota)


async def test_suspended_session_says_why_and_how_large_also_after_a_restart(
    world, monkeypatch
):
    controller, _ = await world.started()
    assert not controller.users.session(KEY).facts.suspension
    await controller.users.suspend(KEY, "root")
    await world.reaches(controller, "suspended")
    told = controller.users.session(KEY).facts.suspension
    assert told.why == "Suspended by root."
    assert told.bytes == controller.users.session(KEY).last_suspend.logical_bytes
    await world.kill(controller)

    again = await world.controller()
    with monkeypatch.context() as broken:
        broken.setattr(Journal, "audit", unreadable)
        assert again.users.session(KEY).facts.suspension.why == ""
    assert again.users.session(KEY).facts.suspension == told


def unreadable(*_: object) -> None:
    raise StoreError(Reason.STORE_FAILED, why="the disk is gone")
