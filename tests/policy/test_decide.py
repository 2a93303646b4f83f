import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import Decision, Phase, SessionKey, Usage
from jupyterhub_gpu_reclaim.policy.decide import Decider, SessionSnapshot
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy

NOW = 1_700_000_000.0


class Hungry:
    """A policy that wants every session."""

    def reasons(self, snapshot, now):
        return [Decision(reclaim=True, code="pressure", message="Somebody waits.")]


@pytest.fixture
def decider():
    return Decider(Guards().denials, [IdlePolicy()])


def test_veto_of_a_guard_wins_over_idleness(decider, snapshot):
    (verdict,) = decider(snapshot(kept_until=NOW + 60), NOW)
    assert not verdict.reclaim
    assert verdict.code == "kept"


def test_guard_comes_before_policy_and_all_are_told(decider, snapshot):
    found = decider(snapshot({"last_active": NOW - 100}, kept_until=NOW + 60), NOW)
    assert [verdict.code for verdict in found] == ["kept", "recently_active"]
    assert found[0].at == NOW + 800


def test_reason_without_known_end_leaves_the_time_open(decider, snapshot):
    found = decider(snapshot({"busy_kernel": "a"}, kept_until=NOW + 60), NOW)
    assert found[0].at is None


def test_second_policy_that_wants_it_is_enough(snapshot):
    decider = Decider(Guards().denials, [IdlePolicy(), Hungry()])
    (verdict,) = decider(snapshot({"last_active": NOW}), NOW)
    assert verdict.code == "pressure"
    found = decider(snapshot({"last_active": NOW}, opted_out_by="ada"), NOW)
    assert [verdict.code for verdict in found] == ["opted_out"]


def test_decider_of_a_bare_snapshot_is_missing(decider):
    bare = SessionSnapshot(key=SessionKey("ada"), phase=Phase.RUNNING)
    assert [v.code for v in decider(bare, NOW)] == ["samples_missing"]


# --- laws ----------------------------------------------------------------------------

times = st.none() | st.floats(NOW - 10_000, NOW + 10_000)
usages = st.none() | st.builds(
    Usage,
    at=st.floats(NOW - 200, NOW + 10),
    watched=st.floats(0, 5000),
    sample_age=st.floats(0, 200),
    last_active=times,
    busy_kernel=st.none() | st.just("b"),
    unknown_kernel=st.none() | st.just("u"),
    cpu_percent=st.none() | st.floats(0, 800),
    connections=st.none() | st.integers(0, 3),
    kernels=st.none() | st.integers(0, 3),
    terminals=st.none() | st.integers(0, 3),
    complete=st.booleans(),
)
snapshots = st.builds(
    SessionSnapshot,
    key=st.just(SessionKey("ada")),
    phase=st.sampled_from(Phase),
    usage=usages,
    started_at=times,
    resumed_at=times,
    kept_until=times,
    opted_out_by=st.sampled_from(["", "ada"]),
    backoff_until=times,
)
NEEDED = ("last_active", "kernels", "terminals", "cpu_percent", "gpu_percent")


@given(snapshots)
def test_decision_of_anything_keeps_the_laws(snapshot):
    found = Decider(Guards().denials, [IdlePolicy()])(snapshot, NOW)
    assert found
    assert all(verdict.message.endswith(".") for verdict in found)
    if found[0].reclaim:
        usage = snapshot.usage
        assert len(found) == 1
        assert usage is not None
        assert usage.complete
        assert None not in [getattr(usage, name) for name in NEEDED]
        assert usage.busy_kernel is usage.unknown_kernel is None
        assert snapshot.phase in (Phase.RUNNING, Phase.WARNED)
        assert NOW - usage.last_active >= 900
        assert usage.watched >= 900
    else:
        assert not any(verdict.reclaim for verdict in found)


@given(st.sets(st.sampled_from(NEEDED), min_size=1))
def test_decision_with_any_field_missing_is_never_reclaim(missing):
    whole = Usage(
        at=NOW,
        watched=3600.0,
        sample_age=0.0,
        last_active=NOW - 3600,
        cpu_percent=0.0,
        gpu_percent=0.0,
        kernels=0,
        terminals=0,
        complete=True,
    )
    usage = msgspec.structs.replace(whole, **dict.fromkeys(missing))
    key = SessionKey("ada")
    decider = Decider(Guards().denials, [IdlePolicy()])
    good = SessionSnapshot(key=key, phase=Phase.RUNNING, usage=whole)
    assert decider(good, NOW)[0].reclaim
    bad = SessionSnapshot(key=key, phase=Phase.RUNNING, usage=usage)
    assert not decider(bad, NOW)[0].reclaim
