"""Who is believed to be a session's init, and who is not."""

import os
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
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


def proc(folder, words=WORDS, uid="0\t0\t0\t0", pids="7\t1", state="S", realm=""):
    entry = folder / "7"
    entry.mkdir()
    (entry / "cmdline").write_bytes(b"\0".join(w.encode() for w in words) + b"\0")
    (entry / "status").write_text(STATUS.format(uid=uid, pids=pids))
    (entry / "stat").write_text(STAT.format(state=state))
    (folder / "self").mkdir()
    return LocalPlacements(realm, folder)


def test_list_init_of_root_in_a_pid_namespace_is_a_session(tmp_path):
    (session,) = proc(tmp_path).list()
    assert session.incarnation == "inc-1"
    assert session.key == SessionKey("ann", "gpu")
    assert (session.hint.session, session.hint.account) == ("its-id", "7.x")
    assert (session.init_pid, session.init_start) == (7, 4242)
    assert not session.holding


def test_list_inline_source_in_a_container_is_a_session(tmp_path):
    source = '"""Pid 1"""\nfrom session_init import x\n'
    (session,) = proc(tmp_path, ("python3", "-c", source, *words("hold")[4:])).list()
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
def test_list_impostor_is_no_session(tmp_path, changes):
    assert proc(tmp_path, **changes).list() == []


def test_list_words_behind_the_dashes_belong_to_the_user(tmp_path):
    theirs = (*WORDS, *words(user="bob")[3:])
    (session,) = proc(tmp_path, theirs).list()
    assert session.key.user == "ann"


def test_list_session_of_another_realm_is_none_of_ours(tmp_path):
    placements = proc(tmp_path, words(realm="lab-2"), realm="lab-2")
    assert len(placements.list()) == 1
    assert LocalPlacements("", tmp_path).list() == []
    assert LocalPlacements("lab-3", tmp_path).list() == []


def test_find_unknown_incarnation_is_not_found(tmp_path):
    with pytest.raises(NotFound) as caught:
        proc(tmp_path).find("inc-2")
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
