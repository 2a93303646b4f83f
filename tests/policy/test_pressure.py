import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import GpuSample, Phase, SessionKey, Usage
from jupyterhub_gpu_reclaim.policy.decide import Decider, SessionSnapshot
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.pressure import (
    PressurePolicy,
    Want,
    choose_to_go,
)

NOW = 1_700_000_000.0
GB = 10**9
ZOE = Want(key=SessionKey("zoe"))


def decider(after=300.0, idle_after=900.0, **guards):
    idle = IdlePolicy(idle_after=idle_after)
    pressure = PressurePolicy(idle, pressure_idle_after=after)
    return Decider(Guards(**guards).denials, [idle, pressure])


def session(
    user, *, idle=600.0, vram=10 * GB, gpu="A100", cards=1, usage=None, **changes
):
    values = {
        "at": NOW,
        "watched": 3600.0,
        "sample_age": 1.0,
        "last_active": NOW - idle,
        "cpu_percent": 0.1,
        "gpu_percent": 0.0,
        "gpu_memory": vram,
        "memory": GB,
        "kernels": 1,
        "terminals": 0,
        "complete": True,
    } | (usage or {})
    held = [GpuSample(uuid=f"{user}-{i}", name=gpu) for i in range(cards)]
    made = SessionSnapshot(
        key=SessionKey(user),
        phase=Phase.RUNNING,
        started_at=NOW - 7200,
        usage=Usage(**values),
        gpus=held,
    )
    return msgspec.structs.replace(made, **changes)


def choose(views, *wants, **settings):
    return choose_to_go(decider(**settings), views, wants, NOW)


def names(chosen):
    return [key.user for key in chosen]


def test_only_as_many_as_are_needed_go_and_for_whom_is_told():
    chosen = choose([session("ada"), session("bob"), session("eve")], ZOE)
    assert chosen == {SessionKey("ada"): ZOE.key}


def test_longest_idle_times_most_vram_goes_first():
    idle_long = session("ada", idle=800, vram=2 * GB)
    holds_much = session("bob", idle=400, vram=30 * GB)
    wants = [Want(key=SessionKey(f"w{n}")) for n in range(2)]
    assert names(choose([idle_long, holds_much], *wants)) == ["bob", "ada"]


def test_cheapest_restore_breaks_ties():
    dear = session("ada", usage={"memory": 9 * GB})
    cheap = session("bob", usage={"memory": 2 * GB})
    assert names(choose([dear, cheap], ZOE)) == ["bob"]


def test_several_cards_are_covered_by_several_sessions():
    want = Want(key=SessionKey("zoe"), gpus=3)
    views = [session("ada", cards=2), session("bob"), session("eve")]
    assert len(choose(views, want)) == 2


@pytest.mark.parametrize(
    "spared",
    [
        session("ada", idle=200),
        session("ada", usage={"busy_kernel": "train.ipynb"}),
        session("ada", usage={"gpu_peak_percent": 40.0}),
        session("ada", usage={"outside": ["10.1.2.3:5432"]}),
        session("ada", usage={"cpu_percent": 99.0}),
        session("ada", usage={"complete": False}),
        session("ada", usage={"sample_age": 500.0}),
        session("ada", usage={"watched": 100.0}),
        session("ada", kept_until=NOW + 60),
        session("ada", opted_out_by="root"),
        session("ada", resumed_at=NOW - 60),
        session("ada", phase=Phase.SUSPENDING),
        session("ada", gpus=[]),
        session("ada", gpu="T4"),
        session("zoe"),
    ],
    ids=lambda each: "",
)
def test_session_that_is_used_guarded_or_of_no_help_is_never_chosen(spared):
    want = Want(key=SessionKey("zoe"), gpu="A100")
    assert choose([spared], want) == {}


def test_chosen_before_stays_chosen_though_another_is_idle_for_longer():
    warned = session("ada", idle=400, wanted=1, phase=Phase.WARNED)
    assert names(choose([session("bob", idle=800), warned], ZOE)) == ["ada"]


def test_chosen_session_goes_with_the_reason_and_another_does_not():
    decide = decider()
    chosen = decide(session("ada", wanted=2), NOW)[0]
    assert (chosen.reclaim, chosen.code) == (True, "pressure")
    assert chosen.message == (
        "Idle for 10 min, and somebody is waiting for a GPU (2 in the queue)."
    )
    other = decide(session("ada"), NOW)[0]
    assert (other.reclaim, other.code) == (False, "recently_active")


def test_off_by_default_nobody_goes_earlier():
    default = PressurePolicy(IdlePolicy()).pressure_idle_after
    assert default == 0.0
    assert choose([session("ada")], ZOE, after=default) == {}


def test_under_pressure_only_idle_sessions_go_while_somebody_waits():
    decide = decider(idle_after=0.0)
    assert decide(session("ada"), NOW)[0].code == "idle_off"
    assert decide(session("ada", wanted=1), NOW)[0].reclaim


idles = st.floats(0, 5000)


@given(
    sessions=st.lists(st.tuples(idles, st.integers(0, 80), st.booleans()), max_size=8),
    wants=st.integers(0, 5),
)
def test_whoever_is_chosen_may_go_and_no_more_than_wanted(sessions, wants):
    views = [
        session(
            f"u{n}", idle=idle, vram=vram * GB, usage={"busy_kernel": "k"} if b else {}
        )
        for n, (idle, vram, b) in enumerate(sessions)
    ]
    wanting = [Want(key=SessionKey(f"w{n}")) for n in range(wants)]
    chosen = choose(views, *wanting)
    assert len(chosen) <= wants
    decide = decider()
    for each in views:
        if each.key in chosen:
            wanted = msgspec.structs.replace(each, wanted=1)
            assert decide(wanted, NOW)[0].reclaim
            assert NOW - each.usage.last_active >= 300
            assert each.usage.busy_kernel is None


def test_nap_in_a_pod_goes_for_those_who_wait_by_what_it_has_moved_out():
    card = GpuSample(uuid="n", name="A100", memory=20 * GB)
    naps = session("nap", phase=Phase.NAPPING, vram=0, gpus=[card])
    awake = session("ada", vram=10 * GB)
    assert list(choose([awake, naps], ZOE)) == [naps.key]
    assert list(choose([awake, msgspec.structs.replace(naps, gpus=[])], ZOE)) == [
        awake.key
    ]
