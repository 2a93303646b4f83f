"""Who is believed to be a session's init, and who is not."""

import os
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from tests.support.init_words import init_words

STAT = "7 (a ) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0"
STATUS = "Name:\tx\nUid:\t{uid}\nNSpid:\t{pids}\n"
INIT = ("python3", "-I", "-S", "/usr/lib/session_init.py")


def words(mode="start", **facts):
    names = {"incarnation": "inc-1", "server": "gpu"}
    more = {"session": "its-id", "account": "7.x"}
    return (*INIT, *init_words(mode, "jupyterhub", **{**names, **more, **facts}))


WORDS = words()


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Makes placements of a /proc with one process, 7."""
    monkeypatch.setattr(procfs, "PROC", tmp_path)

    def make(words=WORDS, uid="0\t0\t0\t0", pids="7\t1", state="S", realm=""):
        entry = tmp_path / "7"
        entry.mkdir()
        (entry / "cmdline").write_bytes(b"\0".join(w.encode() for w in words) + b"\0")
        (entry / "status").write_text(STATUS.format(uid=uid, pids=pids))
        (entry / "stat").write_text(STAT.format(state=state))
        return LocalPlacements(realm)

    return make


def test_list_init_of_root_in_a_pid_namespace_is_a_session(proc):
    (session,) = proc().list()
    assert session.incarnation == "inc-1"
    assert session.key == SessionKey("ann", "gpu")
    assert (session.hint.session, session.hint.account) == ("its-id", "7.x")
    assert (session.init_pid, session.init_start) == (7, 4242)
    assert not session.holding


def test_list_inline_source_in_a_container_is_a_session(proc):
    source = '"""Pid 1"""\nfrom session_init import x\n'
    (session,) = proc(("python3", "-c", source, *words("hold")[4:])).list()
    assert session.holding


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "1000\t1000\t1000\t1000"},
        {"uid": "0\t1000\t0\t0"},
        {"pids": "7"},
        {"pids": "7\t2"},
        {"state": "Z"},
        {"words": ("python3", "other.py", *WORDS[4:])},
        {"words": WORDS[:4]},
        {"words": words(incarnation="../../etc")},
        {"words": words(incarnation="")},
        {"words": words(user="")},
        {"words": words(user="a\nb")},
        {"words": (*INIT, "{}")},
    ],
)
def test_list_impostor_is_no_session(proc, changes):
    assert proc(**changes).list() == []


def test_list_words_behind_the_dashes_belong_to_the_user(proc):
    theirs = (*WORDS, *words(user="bob")[3:])
    (session,) = proc(theirs).list()
    assert session.key.user == "ann"


def test_list_session_of_another_realm_is_none_of_ours(proc):
    placements = proc(words(realm="lab-2"), realm="lab-2")
    assert len(placements.list()) == 1
    assert LocalPlacements("").list() == []
    assert LocalPlacements("lab-3").list() == []


def test_find_unknown_incarnation_is_not_found(proc):
    with pytest.raises(NotFound) as caught:
        proc().find("inc-2")
    assert caught.value.reason is Reason.UNKNOWN_SESSION


def test_list_real_program_with_the_words_but_no_namespace_is_no_session():
    fake = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "# session_init\nimport time; time.sleep(60)",
            *WORDS[4:],
        ]
    )
    try:
        mine = [s for s in LocalPlacements().list() if s.init_pid == fake.pid]
    finally:
        fake.kill()
        fake.wait(60)
    assert mine == []
    assert os.getpid() not in [s.init_pid for s in LocalPlacements().list()]
