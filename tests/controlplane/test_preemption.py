"""What is lacking for those who wait, given all that is on its way already."""

from itertools import pairwise

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    GpuSample,
    Nap,
    Phase,
    Sample,
    SessionKey,
    SessionPolicy,
    Tree,
    TreeState,
    Waiting,
)
from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import SETTLE, Preemption
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import snapshot_of
from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from tests.support.checkpoints import checkpoint
from tests.support.manual_clock import ManualClock

ADA, BOB, EVE, ZOE = (SessionKey(name) for name in ("ada", "bob", "eve", "zoe"))


class ChoosesTheFirst:
    """A policy for which everybody is idle: the first ones go; notes what it heard."""

    def __init__(self) -> None:
        self.wants = []

    def __call__(self, views, wants, now):
        self.wants = list(wants)
        able = [view.key for view in views if view.key not in {w.key for w in wants}]
        lacking = [want.key for want in wants for _ in range(want.gpus)]
        return dict(zip(able, lacking, strict=False))


@pytest.fixture
def sessions():
    journal = Journal("sqlite://")
    made = Sessions(journal, ManualClock())
    yield made
    journal.close()


@pytest.fixture
def policy():
    return ChoosesTheFirst()


@pytest.fixture
def preemption(sessions, policy):
    return Preemption(sessions, policy, Together(sessions, lambda view, now: []))


def put(sessions, key, phase=Phase.RUNNING, gpus=0, **more):
    now, kept = sessions.clock.now(), []
    if not phase.live and phase is not Phase.SUSPENDING:
        cards = [GpuSample(uuid=f"GPU-{n}", name="A100") for n in range(gpus)]
        info = checkpoint(f"c-{key.user}", key, created=now, gpus=cards)
        kept, more["checkpoint"] = [CheckpointRow(info=info)], info.id
    row = SessionRow(key=key, phase=phase, since=now, **more)
    sessions.journal.save(row, None, kept)
    card = GpuSample(uuid=f"GPU-{key.user}")
    sample = Sample(incarnation="", key=key, at=sessions.clock.now(), gpus=[card])
    runtime = sessions.runtime(key)
    runtime.sample = sample


def wanted(sessions):
    return {key: each.wanted for key, each in sessions.runtimes.items() if each.wanted}


def wait(sessions, key, gpus=1):
    return Waiting(key=key, place=1, since=sessions.clock.now(), gpus=gpus)


def test_nobody_waits_nobody_is_wanted(sessions, policy, preemption):
    put(sessions, ADA)
    preemption.select([])
    assert (wanted(sessions), policy.wants) == ({}, [])


def test_chosen_session_is_wanted_until_it_is_not(sessions, preemption):
    put(sessions, ADA)
    put(sessions, BOB)
    preemption.select([wait(sessions, ZOE)])
    assert wanted(sessions) == {ADA: 1}
    preemption.select([])
    assert wanted(sessions) == {}


def test_session_whose_company_stays_is_not_chosen(sessions, policy):
    other = SessionKey("ada", "other")
    terms = SessionPolicy(together=True, by={"together": "user ada"})
    sessions.policies = lambda key: terms if key.user == "ada" else SessionPolicy()
    stays = Decision(reclaim=False, code="kernel_busy", message="Busy.")
    together = Together(sessions, lambda view, now: [stays])
    put(sessions, ADA)
    put(sessions, other)
    put(sessions, BOB)
    Preemption(sessions, policy, together).select([wait(sessions, ZOE)])
    assert wanted(sessions) == {BOB: 1}


@pytest.mark.parametrize("phase", [Phase.SUSPENDING, Phase.RELEASING, Phase.SUSPENDED])
def test_gpu_that_comes_free_anyway_is_not_freed_twice(
    sessions, policy, preemption, phase
):
    put(sessions, ADA)
    put(sessions, BOB, phase, gpus=1)
    preemption.select([wait(sessions, ZOE)])
    assert (policy.wants, wanted(sessions)) == ([], {})
    preemption.select([wait(sessions, ZOE, gpus=2)])
    assert [want.gpus for want in policy.wants] == [1]


def test_session_that_is_warned_for_its_own_idleness_counts(
    sessions, policy, preemption
):
    put(sessions, ADA)
    put(sessions, BOB)
    sessions.runtime(BOB).suspends_at = 1.0
    preemption.select([wait(sessions, ZOE)])
    assert policy.wants == []


def test_session_that_is_warned_because_it_was_chosen_stays_wanted(
    sessions, preemption
):
    put(sessions, ADA)
    preemption.select([wait(sessions, ZOE)])
    sessions.runtime(ADA).suspends_at = 1.0
    preemption.select([wait(sessions, ZOE)])
    assert wanted(sessions) == {ADA: 1}


def test_who_waits_on_in_vain_is_given_less_and_less(sessions, policy, preemption):
    """Others take what is freed, or it lacks something else."""
    waiting = [wait(sessions, ZOE)]
    put(sessions, ADA)
    gone_after = []
    begun = sessions.clock.now()
    for _ in range(60):
        sessions.clock.advance(10)
        preemption.select(waiting)
        for key in list(wanted(sessions)):
            gone_after.append(sessions.clock.now() - begun)
            put(sessions, key, Phase.SUSPENDED, gpus=1)
            put(sessions, SessionKey(f"{key.user}x"))
    assert len(gone_after) == 4
    waits = [b - a for a, b in pairwise(gone_after)]
    assert waits == sorted(waits)
    assert waits[-1] >= 2 * SETTLE


def test_of_those_who_share_a_machine_only_the_first_is_freed_for(
    sessions, policy, preemption
):
    put(sessions, ADA)
    put(sessions, EVE)
    for key in (BOB, ZOE):
        put(sessions, key, Phase.RESUMING, gpus=4)
        sessions.runtime(key).lacks_memory_since = sessions.clock.now()
    preemption.select([wait(sessions, BOB, 4), wait(sessions, ZOE, 4)])
    (want,) = policy.wants
    assert (want.key, want.gpus, want.gpu) == (BOB, 1, "A100")


@pytest.mark.parametrize(("pod", "names"), [("pod-1", ["A100"]), ("", [])])
def test_nap_in_a_pod_still_holds_a_gpu_that_its_suspend_frees(sessions, pod, names):
    row = SessionRow(key=ADA, phase=Phase.NAPPING, since=1.0, incarnation="i1")
    sessions.journal.save(row)
    nap = Nap(begun=1.0, gpus=[GpuSample(uuid="a", name="A100", memory=5)])
    tree = Tree(
        incarnation="i1", key=ADA, state=TreeState.NAPPING, init_pid=1, pod=pod, nap=nap
    )
    sessions.note_nap(ADA, tree)
    assert [gpu.name for gpu in snapshot_of(sessions, row).gpus] == names
