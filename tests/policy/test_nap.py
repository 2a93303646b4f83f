"""When a session naps by itself, and why not."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules, Subject


def decider(after=180.0, **guards):
    return NapPolicy(IdlePolicy(), Guards(**guards), nap_after=after)


def codes(decisions):
    return [decision.code for decision in decisions]


def test_naps_are_off_by_default(snapshot, now):
    (verdict,) = NapPolicy(IdlePolicy(), Guards())(snapshot(), now)
    assert (verdict.reclaim, verdict.code) == (False, "nap_off")


def test_naps_come_after_three_minutes_where_sessions_share_gpus(snapshot, now):
    idle = snapshot({"last_active": now - 200}, since=now - 3600)

    def verdict(seats, **settings):
        policy = NapPolicy(IdlePolicy(), Guards(), seats=seats, **settings)
        return policy(idle, now)[0].code

    assert (verdict(1), verdict(2)) == ("nap_off", "nap_idle")
    assert verdict(4, nap_after=0.0) == "nap_off"
    assert verdict(1, nap_after=180.0) == "nap_idle"


def test_idle_session_naps_long_before_it_is_suspended(snapshot, now):
    idle = snapshot({"last_active": now - 200}, since=now - 3600)
    (verdict,) = decider()(idle, now)
    assert (verdict.reclaim, verdict.code, verdict.at) == (True, "nap_idle", now)
    assert verdict.message == "Idle for 3 min 20 s (naps after 3 min)."
    connected = snapshot({"last_active": now - 200, "outside": ["10.1.2.3:5432"]})
    assert decider()(connected, now)[0].reclaim  # a nap ends no connection
    assert not Decider(Guards().denials, [IdlePolicy()])(idle, now)[0].reclaim


@pytest.mark.parametrize(
    ("usage", "code"),
    [
        ({"gpu_memory": 0}, Reason.GPU_UNUSED),
        ({"last_active": 1_700_000_000.0 - 100}, Reason.RECENTLY_ACTIVE),
        ({"busy_kernel": "train.ipynb"}, Reason.KERNEL_BUSY),
        ({"watched": 100.0}, Reason.WINDOW_TOO_SHORT),
    ],
)
def test_what_keeps_it_from_being_idle_keeps_it_awake(snapshot, now, usage, code):
    verdict = decider()(snapshot(usage), now)[0]
    assert (verdict.reclaim, verdict.code) == (False, code.value)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"opted_out_by": "root"}, Reason.OPTED_OUT),
        ({"kept_until": 1_700_000_060.0}, Reason.KEPT),
        ({"phase": Phase.SUSPENDING}, Reason.OPERATION_IN_FLIGHT),
    ],
)
def test_what_forbids_its_suspend_forbids_its_nap(snapshot, now, changes, code):
    verdict = decider()(snapshot(**changes), now)[0]
    assert (verdict.reclaim, verdict.code) == (False, code.value)


def test_nap_that_was_refused_waits_with_its_reason(snapshot, now):
    refused = Failure(code="device_open", message="Process 7 holds a device open.")
    waits = snapshot(backoff_until=now + 60, failure=refused)
    (verdict,) = decider()(waits, now)
    assert (verdict.code, verdict.at) == ("backing_off", now + 60)
    assert "holds a device open" in verdict.message


def test_session_that_was_woken_without_being_used_does_not_nap_at_once(snapshot, now):
    woken = snapshot(since=now - 100)
    (verdict,) = decider()(woken, now)
    assert (verdict.reclaim, verdict.code, verdict.at) == (False, "nap_woken", now + 80)
    assert decider()(snapshot(since=now - 180), now)[0].reclaim


def test_rules_set_it_for_some_sessions(snapshot, now):
    rules = Rules(
        rules=[{"group": "gpu", "nap_after": 60}, {"user": "ada", "nap_after": 0}]
    )
    assert rules.longest("nap_after") == 60
    key = snapshot().key
    terms = rules.policy_for(Subject(key=key, groups=["gpu"], options={}, labels={}))
    idle = snapshot({"last_active": now - 90}, terms=terms)
    (verdict,) = decider(after=0)(idle, now)
    assert verdict.reclaim
    assert "naps after 1 min by the rule for group gpu" in verdict.message
    terms = rules.policy_for(Subject(key=key, groups=[], options={}, labels={}))
    off = msgspec.structs.replace(idle, terms=terms)
    (verdict,) = decider(after=180)(off, now)
    assert verdict.code == "nap_off"
    assert "by the rule for user ada" in verdict.message


def test_session_that_naps_goes_on_being_idle_and_is_suspended(snapshot, now):
    naps = snapshot({"gpu_memory": 0}, phase=Phase.NAPPING, since=now - 1700)
    (verdict,) = Decider(Guards().denials, [IdlePolicy(idle_after=900)])(naps, now)
    assert (verdict.reclaim, verdict.code) == (True, "idle")
