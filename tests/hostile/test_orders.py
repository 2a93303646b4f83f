"""Forged claims and replayed orders: neither a process nor the past is believed."""

import subprocess
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.term import HIGHEST, TERM
from jupyterhub_gpu_reclaim.node.operations.known_term import FILE
from tests.node.conftest import agent, counter, folder, places, shared_agent
from tests.support.agent import goes_on, wait_for
from tests.support.init_words import init_words

__all__ = ["agent", "counter", "folder", "places", "shared_agent"]

pytestmark = pytest.mark.shares_an_agent

STRANGER = 54321


def claim(folder, incarnation: str) -> subprocess.Popen:
    """A user's own program that says it is the init of somebody's session.

    In namespaces that any user can make: there it is pid 1, and calls itself root.
    """
    return subprocess.Popen(
        [
            *(
                "unshare",
                "--user",
                "--map-root-user",
                "--pid",
                "--fork",
                "--kill-child",
            ),
            *("sh", "-c", "while :; do sleep 1; done", "session_init.py"),
            *init_words("hold", incarnation=incarnation, realm=folder.name),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=STRANGER,
        group=STRANGER,
        cwd="/",
    )


def namespaces_for_users() -> bool:
    command = ["unshare", "--user", "--map-root-user", "true"]
    return not subprocess.run(
        command,
        check=False,
        user=STRANGER,
        group=STRANGER,
        capture_output=True,
        cwd="/",
    ).returncode


def test_init_forged_by_a_user_is_no_session(agent, counter):
    if not namespaces_for_users():
        pytest.skip("this kernel gives users no namespaces of their own")
    forged = [claim(agent.folder, counter.incarnation), claim(agent.folder, "f" * 32)]
    try:
        inits = [wait_for(lambda one=one: child(one.pid)) for one in forged]
        assert all(inits)

        listed = agent.get("/v1/sessions").json()
        unknown = agent.get(f"/v1/sessions/{'f' * 32}").status_code

        found = [one for one in listed if one["incarnation"] == counter.incarnation]
        assert [one["init_pid"] for one in found] == [counter.init_pid]
        assert unknown == 404
        assert "f" * 32 not in {one["incarnation"] for one in listed}
    finally:
        for one in forged:
            one.kill()
            one.wait()


def child(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
    except OSError:
        return ""


NAMES = ["..", "../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc", "a/../../b", "a\\..\\b"]


def test_names_with_a_way_out_reach_no_file(agent, counter):
    before = sorted(agent.folder.iterdir())

    answers = {
        name: [
            agent.post(f"/v1/sessions/{name}/thaw").status_code,
            agent.post(f"/v1/checkpoints/{name}/discard").status_code,
            agent.capture(counter, name)[-1].get("status"),
        ]
        for name in NAMES
    }

    for name, (*others, last) in answers.items():
        assert {*others} <= {204, 400, 404}, name
        assert last == 400, name
    assert sorted(agent.folder.iterdir()) == before
    assert agent.get("/v1/checkpoints").json() == []
    assert goes_on(counter)


def test_term_counts_only_from_a_caller_with_the_token(agent):
    with agent.client() as client:
        client.headers["Authorization"] = "Bearer wrong-wrong-wrong-wrong"
        for path in ("/v1/sessions", "/v1/status", "/healthz", "/readyz", "/nothing"):
            client.get(path, headers={TERM: f"{HIGHEST} x"})
    assert agent.get("/v1/status").json()["term"] == 0
    assert not (agent.folder / "state" / FILE).exists()
