"""What users of LocalProcessSpawner expect: identity, home, shell, limits, log."""

import json
import os
import pwd
import signal
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.session_init.command_line import parse
from tests.support.hub import wait_until


@pytest.fixture
def ask(hub, service):
    """Start a named user's small server and ask it; see ``conftest.CONFIG``."""
    started = []

    def asked(user):
        started.append(user)
        hub.api("POST", f"users/{user}")
        hub.start_server(user)
        port = hub.server(user)["state"]["gpu_reclaim"]["port"]
        return requests.get(f"http://127.0.0.1:{port}/", timeout=60).json()

    yield asked
    for user in started:
        hub.stop_server(user)


def test_session_runs_as_the_system_user_and_its_init_as_root(hub, service, ask):
    facts = ask("games")
    entry = pwd.getpwnam("games")
    assert facts["ids"] == [entry.pw_uid] * 3 + [entry.pw_gid] * 3
    assert set(facts["groups"]) <= {entry.pw_gid}
    assert facts["cwd"] == entry.pw_dir
    assert facts["env"]["HOME"] == entry.pw_dir
    assert facts["env"]["USER"] == "games"
    init = service.init("games")
    assert Path(f"/proc/{init}/status").stat().st_uid == 0
    assert Path(f"/proc/{init}/comm").exists()
    assert service.tree("games").root
    assert "hello from the session" in hub.log()


def test_return_is_told_the_rights_that_a_fresh_start_would_give_today(
    hub, service, ask
):
    ask("games")
    first = rights_told(service)
    service.suspend(hub, "games")
    ask("games")
    words = procfs.words(service.init("games"), "cmdline")
    assert parse(words).holding
    entry = pwd.getpwnam("games")
    assert rights_told(service) == first
    assert (first.uid, first.gid) == (entry.pw_uid, entry.pw_gid)
    assert set(first.groups) == set(os.getgrouplist("games", entry.pw_gid))


def rights_told(service):
    return parse(procfs.words(service.init("games"), "cmdline")).system_user


def test_shell_limits_and_loader_variables_reach_the_session(hub, service, ask):
    facts = ask("shelly")
    assert facts["env"]["FROM_SHELL"] == "yes"
    assert facts["env"]["LD_LIBRARY_PATH"] == "/opt/lib"
    assert facts["files"] == 321
    init = service.init("shelly")
    assert b"LD_LIBRARY_PATH" not in Path(f"/proc/{init}/environ").read_bytes()
    assert "jupyterhub-gpu-reclaim" in facts["cgroup"]


@pytest.mark.parametrize("name", ["ghost", "gh%00ost"])
def test_user_who_does_not_exist_is_refused_with_a_sentence(hub, service, name):
    hub.api("POST", f"users/{name}")
    answer = hub.api("POST", f"users/{name}/server")
    assert answer.status_code == 409
    assert f"no system user {unquote(name)}" in answer.json()["message"]
    assert json.dumps(answer.json()).count("Traceback") == 0


def test_session_that_crashed_has_ended_by_itself(hub, service, ask):
    ask("games")
    os.kill(service.tree("games").server.pid, signal.SIGKILL)
    wait_until(lambda: "games server stopped" in hub.log(), 60, hub.log)
    (told,) = [
        body
        for call, body in service.calls
        if call == "stopped" and body["key"]["user"] == "games"
    ]
    assert told["failure"]["code"] == "session_ended"
