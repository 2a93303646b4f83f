"""Who is believed to be a pod's session, and whose word counts."""

import os
import time

import pytest

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.node.sessions.placements import PodPlacements
from tests.support.init_words import init_words

POD = "0d6ed7e5-3b1a-4c39-9c3f-2d1f5f0a7b11"
OTHER = "ffffffff-3b1a-4c39-9c3f-2d1f5f0a7b11"
ID = "5e" * 32
GROUP = "0::/kubepods/burstable/pod{pod}/" + ID + "\n"
ANN = SessionKey("ann", "gpu")
TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc with the processes of a node's pods."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "self").mkdir()
        (folder / "self" / "status").write_text("Name:\tagent\nNSpid:\t99\n")

    def add(self, pid=7, *, pod=POD, **changes):
        facts = {
            "start": 4242,
            "comm": "session-init",
            "state": "S",
            "pids": f"{pid}\t1",
            "group": GROUP.format(pod=pod),
            "user": "ann",
            "incarnation": "inc-1",
            "mode": "start",
            "realm": "",
        } | changes
        entry = self.folder / str(pid)
        entry.mkdir()
        (entry / "cgroup").write_text(facts["group"])
        (entry / "comm").write_text(facts["comm"] + "\n")
        (entry / "status").write_text(
            f"Name:\tx\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t{facts['pids']}\n"
        )
        (entry / "stat").write_text(
            f"{pid} (a ) b) {facts['state']} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"
            f" {facts['start']} 0"
        )
        words = [
            *("python3", "-c", "'''Pid 1'''\n# session_init"),
            *init_words(
                facts["mode"],
                incarnation=facts["incarnation"],
                user=facts["user"],
                server="gpu",
                realm=facts["realm"],
                session="another's",
                account="another's",
            ),
        ]
        (entry / "cmdline").write_bytes("\0".join(words).encode() + b"\0")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    return Proc(tmp_path)


@pytest.fixture
def placements(proc):
    return PodPlacements(patience=0.2)


def told(pod=POD, **more):
    return PodHint(pod=pod, **more)


def test_session_of_any_user_is_found_in_the_pod_that_was_told(proc, placements):
    proc.add(mode="hold")
    placements.set_hint(
        "inc-1", told(key=ANN, image="x@sha256:1", node_labels={"a": "b"})
    )
    session = placements.find("inc-1")
    assert (session.init_pid, session.init_start) == (7, 4242)
    assert (session.key, session.holding, session.container) == (ANN, True, ID)
    assert (session.hint.image, session.hint.node_labels) == ("x@sha256:1", {"a": "b"})
    assert placements.find("inc-1", POD) == session


def test_session_of_which_nothing_was_told_is_listed_but_not_found(proc, placements):
    proc.add()
    (session,) = placements.list()
    assert (session.hint.pod, session.container) == (POD, ID)
    with pytest.raises(NotFound) as caught:
        placements.find("inc-1")
    assert caught.value.reason is Reason.UNKNOWN_SESSION
    assert placements.find("inc-1", POD).init_pid == 7  # for samples of what is listed


def test_session_without_a_pod_in_the_order_is_not_known(placements):
    with pytest.raises(NotFound):
        placements.set_hint("inc-1", PodHint())


def test_session_and_account_are_those_that_were_told_not_those_that_it_claims(
    proc, placements
):
    proc.add()  # its words claim both
    (claim,) = placements.list()
    assert (claim.hint.session, claim.hint.account) == ("", "")
    placements.set_hint("inc-1", told(session="its-id", account="7.x"))
    session = placements.find("inc-1")
    assert (session.hint.session, session.hint.account) == ("its-id", "7.x")


def test_claim_of_another_pod_is_never_the_session(proc, placements):
    proc.add(7, start=100, pod=OTHER)
    proc.add(8, start=200)
    assert [one.hint.pod for one in placements.list()] == [OTHER, POD]
    placements.set_hint("inc-1", told(key=ANN))
    assert placements.find("inc-1").init_pid == 8
    assert [one.init_pid for one in placements.list()] == [8]


def test_claim_alone_is_no_session_of_the_pod_that_was_told(proc, placements):
    proc.add(pod=OTHER)
    placements.set_hint("inc-1", told())
    with pytest.raises(NotFound):
        placements.find("inc-1")
    assert placements.list() == []


def test_session_that_claims_another_user_is_not_touched(proc, placements):
    proc.add(user="bob")
    placements.set_hint("inc-1", told(key=ANN))
    with pytest.raises(NotFound) as caught:
        placements.find("inc-1")
    assert "bob" in caught.value.detail


def test_what_a_user_starts_later_in_the_pod_is_not_the_init(proc, placements):
    proc.add(70, start=500, pids="70\t40", mode="hold")
    proc.add(7, start=100, pids="7\t9")  # below an entry point of the image
    placements.set_hint("inc-1", told())
    session = placements.find("inc-1")
    assert (session.init_pid, session.holding) == (7, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"pids": "7\t5\t1"},  # a pid namespace that was made inside
        {"pids": "7"},
        {"group": "0::/user.slice\n"},
        {"comm": "python3"},
        {"state": "Z"},
        {"realm": "lab-2"},
        {"incarnation": "../etc"},
    ],
)
def test_impostor_is_no_session(proc, placements, changes):
    proc.add(**changes)
    placements.set_hint("inc-1", told())
    assert placements.list() == []
    with pytest.raises(NotFound):
        placements.find("inc-1")


def test_told_again_keeps_what_was_not_said_of_the_same_pod(proc, placements):
    proc.add()
    placements.set_hint("inc-1", told(key=ANN, image="x"))
    placements.set_hint("inc-1", told())
    assert placements.find("inc-1").hint == told(key=ANN, image="x")
    placements.set_hint("inc-1", told(OTHER))
    with pytest.raises(NotFound):
        placements.find("inc-1")


def test_first_program_that_was_just_started_is_waited_for(proc, placements):
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    proc.add(comm="runc:[2:INIT]", start=now)
    patient = PodPlacements(patience=60)
    patient.set_hint("inc-1", told())
    begun = time.monotonic()
    placements.set_hint("inc-1", told())
    with pytest.raises(NotFound):
        placements.find("inc-1")
    assert time.monotonic() - begun >= 0.15
    (proc.folder / "7" / "comm").write_text("session-init\n")
    assert patient.find("inc-1").init_pid == 7


def test_group_that_a_user_of_the_node_has_made_in_a_pods_name_is_not_believed(proc):
    asked = []

    def owners(pid, pod):
        asked.append((pid, pod))
        return {1000} if pid == 7 else {0}

    placements = PodPlacements(patience=0.0, owners=owners)
    placements.set_hint("inc-1", told())
    proc.add(7, start=100)
    proc.add(8, start=200)
    (session,) = placements.list()
    assert session.init_pid == placements.find("inc-1").init_pid == 8
    # once for each: it takes a look at all mounts of a node
    assert sorted(asked) == [(7, POD), (8, POD)]
