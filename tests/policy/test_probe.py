"""The word of an administrator's probe: what is not understood is use."""

import pytest

from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.probe import HOLDS, Probed, read
from tests.policy.conftest import NOW

DECIDE = Decider(Guards().denials, [IdlePolicy()], probed=True)


@pytest.mark.parametrize(
    "said",
    [
        "in use until 2023-11-14T23:13:20+00:00",
        "In use until 2023-11-14T23:13:20Z\n",
        "in use until 2023-11-15 00:13:20+01:00",
        "in use until 1700003600",
    ],
)
def test_time_is_read_with_its_zone_or_as_seconds(said):
    assert read(said, NOW) == Probed(at=NOW, until=NOW + 3600)


@pytest.mark.parametrize(
    "said",
    [
        *("", "yes", "idle", "idle since", "idle since then", "idle since 1e9"),
        *("idle since 2023-11-14T22:00", "in use until 9999999999999"),
        f"idle since {NOW + 600}",
    ],
)
def test_other_words_and_times_without_a_zone_are_silence(snapshot, said):
    (decision,) = DECIDE(snapshot(probed=read(said, NOW)), NOW)
    assert (decision.reclaim, decision.code) == (False, "probe")


@pytest.mark.parametrize(
    ("probed", "code"),
    [
        (None, "probe"),
        (Probed(at=NOW - HOLDS - 1, since=NOW - 9000), "probe"),
        (Probed(at=NOW, trouble="no answer within 10 s"), "probe"),
        (Probed(at=NOW, until=NOW + 60), "probe"),
        (Probed(at=NOW, until=NOW - 60), "idle"),
        (Probed(at=NOW, since=NOW - 9000), "idle"),
    ],
)
def test_probe_can_spare_what_would_be_suspended(snapshot, probed, code):
    (decision,) = DECIDE(snapshot(probed=probed), NOW)
    assert decision.code == code
    if probed is not None and probed.until == NOW + 60:
        assert decision.at == NOW + 60


def test_probe_takes_no_session_that_is_used(snapshot):
    used = snapshot(usage={"busy_kernel": "a"}, probed=Probed(at=NOW, since=NOW - 9000))
    assert DECIDE(used, NOW)[0].code == "kernel_busy"


def test_silence_about_a_session_that_stays_anyway_is_not_told(snapshot):
    decisions = DECIDE(snapshot(usage={"busy_kernel": "a"}), NOW)
    assert [each.code for each in decisions] == ["kernel_busy"]
