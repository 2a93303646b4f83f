"""JupyterHub's traps T1 to T20: each test shows one, were it not handled.

The list with causes and with the traps that are only documented:
``docs/reference/jupyterhub-traps.md``.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time

import pytest
import requests

from demo.user import User
from tests.support.hub import PASSWORD, wait_until

FAILED = {"code": "file_missing", "message": "The file /home/x is gone."}


@pytest.fixture
def amy(hub):
    """A person whose server runs."""
    amy = hub.user("amy")
    amy.start_server()
    return amy


@pytest.fixture
def suspended(hub, service, amy):
    """The same person; the server is suspended."""
    service.capture("amy")
    hub.stop_server("amy")
    assert pointer(hub)["phase"] == "suspended"
    return amy


def pointer(hub, user="amy", name=""):
    server = hub.server(user, name) or {}
    return (server.get("state") or {}).get("gpu_reclaim", {})


def rows(hub, query):
    with sqlite3.connect(
        f"file:{hub.folder}/jupyterhub.sqlite?mode=ro", uri=True
    ) as db:
        return db.execute(query).fetchall()


def server_tokens(hub):
    """Ids of API tokens that were made for servers."""
    return [
        number
        for (number,) in rows(
            hub, "select id from api_tokens where note like 'Server at %'"
        )
    ]


def oauth_clients(hub):
    return dict(rows(hub, "select identifier, allowed_scopes from oauth_clients"))


def resume(hub, user="amy", name=""):
    where = f"servers/{name}" if name else "server"
    return hub.api("POST", f"users/{user}/{where}")


def wait_ready(hub, user="amy", name=""):
    wait_until(lambda: (hub.server(user, name) or {}).get("ready"), 60, hub.log)


def test_t1_tree_that_dies_after_it_was_saved_keeps_login_and_pointer(
    hub, service, amy
):
    hub.configure(service.config + "\nc.Spawner.poll_interval = 1\n")
    hub.restart()
    service.capture("amy")
    before = server_tokens(hub)
    os.kill(service.init("amy"), signal.SIGKILL)  # behind the Hub's back
    wait_until(lambda: pointer(hub).get("phase") == "suspended", 30, hub.log)
    assert server_tokens(hub) == before
    assert "jupyterhub-user-amy" in oauth_clients(hub)
    assert amy.visit("/user/amy/lab").status_code == 200


def test_t1_frozen_tree_counts_as_running(hub, service, amy):
    hub.configure(service.config + "\nc.Spawner.poll_interval = 1\n")
    hub.restart()
    service.capture("amy")
    time.sleep(2.5)  # two polls must pass without any effect: nothing to await
    assert hub.server("amy")["ready"]
    service.thaw("amy")
    assert amy.server().json("GET", "status")["started"]


def test_t2_t4_hub_killed_while_suspended_keeps_client_cookies_and_session(
    hub, suspended
):
    clients = oauth_clients(hub)
    hub.restart("kill")
    assert oauth_clients(hub).keys() == clients.keys()
    assert suspended.visit("/user/amy/lab").status_code == 200
    assert suspended.logins == 1


def test_t2_orderly_restart_while_suspended_keeps_the_session(hub, suspended):
    hub.restart("terminate")
    assert pointer(hub)["phase"] == "suspended"
    assert suspended.visit("/user/amy/lab").status_code == 200


def test_t3_resume_keeps_the_oauth_clients_scopes(hub, suspended):
    before = oauth_clients(hub)["jupyterhub-user-amy"]
    assert before
    resume(hub)
    wait_ready(hub)
    assert oauth_clients(hub)["jupyterhub-user-amy"] == before
    newcomer = User(hub.url, "amy", PASSWORD)  # another browser, a new OAuth login
    newcomer.login()
    assert newcomer.visit("/user/amy/lab").status_code == 200


def test_t4_t5_t16_failed_resumes_keep_login_leak_no_token_and_say_why(
    hub, service, suspended
):
    service.fail_restore = FAILED
    before = server_tokens(hub)
    for _ in range(3):
        answer = resume(hub)
        wait_until(lambda: not hub.server("amy")["pending"], 30, hub.log)
        assert answer.status_code in {202, 409}
    assert server_tokens(hub) == before
    assert pointer(hub)["phase"] == "suspended"
    assert "jupyterhub-user-amy" in oauth_clients(hub)
    assert "consecutive spawns failed" not in hub.log()

    page = suspended.http.get(f"{hub.url}/hub/spawn/amy", timeout=60)
    for _ in range(20):
        if "spawn-pending" not in page.url or page.status_code != 200:
            break
        time.sleep(0.2)
        page = suspended.http.get(page.url, timeout=60)
    assert page.status_code == 409
    assert "did not come back" in page.text
    assert FAILED["message"] in page.text
    assert "/services/gpu-reclaim/sessions/amy/-/fresh" in page.text
    assert "kept 30 days" in page.text
    assert 'href="/hub/spawn/amy/"' in page.text

    service.fail_restore = None
    assert suspended.http.get(f"{hub.url}/hub/spawn/amy", timeout=60).ok
    assert suspended.visit("/user/amy/lab").status_code == 200
    assert server_tokens(hub) == before


def test_t5_fresh_start_after_a_suspend_deletes_the_saved_login(
    hub, service, suspended
):
    before = server_tokens(hub)
    service.saved.clear()  # the service has put it aside
    suspended.visit("/user/amy/lab")
    after = server_tokens(hub)
    assert len(after) == 1
    assert after != before


def test_t6_hub_killed_during_the_release_comes_back_suspended(hub, service, amy):
    service.capture("amy")
    service.hold_release.clear()
    hub.api("DELETE", "users/amy/server", timeout=30)  # 202: slow
    assert pointer(hub)["phase"] == "releasing"
    hub.kill()
    service.hold_release.set()
    wait_until(lambda: _gone(service), 20)
    hub.start()
    assert pointer(hub)["phase"] == "releasing"
    assert not hub.server("amy")["ready"]
    assert amy.visit("/user/amy/lab").status_code == 200
    assert amy.logins == 1


def _gone(service, user="amy"):
    try:
        service.init(user)
    except LookupError:
        return True
    return False


def test_t6_hub_killed_during_a_resume_keeps_the_session(hub, service, suspended):
    service.hold_restore.clear()
    resume(hub)
    wait_until(lambda: service.called("placed") > 1, 30, hub.log)
    hub.kill()
    service.hold_restore.set()
    hub.start()
    assert pointer(hub)["checkpoint"]
    os.kill(service.init("amy"), signal.SIGKILL)  # as the service's reconciler does
    assert suspended.visit("/user/amy/lab").status_code == 200


def test_t7_revoked_token_is_not_resurrected(hub, suspended):
    [number] = server_tokens(hub)
    assert hub.api("DELETE", f"users/amy/tokens/a{number}").status_code == 204
    answer = resume(hub)
    wait_until(lambda: not hub.server("amy")["pending"], 30, hub.log)
    assert answer.status_code == 409
    assert "revoked" in answer.json()["message"]
    assert server_tokens(hub) == []
    assert pointer(hub)["phase"] == "suspended"


def test_t8_running_tree_of_a_stopped_server_is_adopted(hub, service, suspended):
    resume(hub)
    wait_ready(hub)
    init = service.init("amy")
    saved = service.saved["amy", ""]
    service.captured.add(("amy", ""))
    service.down()
    for child in _tree(init):
        os.kill(child, signal.SIGSTOP)
    hub.stop_server("amy")  # cannot ask: a stopped tree is kept
    assert pointer(hub)["phase"] == "unknown"
    assert service.init("amy") == init
    service.up()
    for child in _tree(init):
        os.kill(child, signal.SIGCONT)
    service.plan = {
        "action": "adopt",
        "incarnation": pointer(hub)["incarnation"],
        "identity": saved["identity"],
    }
    assert suspended.visit("/user/amy/lab").status_code == 200
    assert service.init("amy") == init
    assert len(server_tokens(hub)) == 1


def _tree(init):
    from tests.support.relaunching_service import children, tree

    return [pid for child in children(init) for pid in tree(child)]


def test_t9_stop_during_a_resume_leaves_no_orphan_and_keeps_the_session(
    hub, service, suspended
):
    service.hold_restore.clear()
    before = server_tokens(hub)
    resume(hub)
    wait_until(lambda: service.called("placed") > 1, 30, hub.log)
    assert not _gone(service)
    hub.stop_server("amy")
    service.hold_restore.set()
    assert _gone(service)
    assert service.called("cancelled") >= 1
    assert pointer(hub)["phase"] == "suspended"
    assert server_tokens(hub) == before
    assert suspended.visit("/user/amy/lab").status_code == 200


def test_t9_stop_of_a_suspended_server_changes_nothing(hub, suspended):
    assert hub.api("DELETE", "users/amy/server").status_code == 204
    assert pointer(hub)["phase"] == "suspended"


def test_t10_suspended_named_server_is_not_renamed_and_deletes_its_login(hub, service):
    amy = hub.user("amy")
    amy.start_server("lab1")
    service.capture("amy", "lab1")
    hub.stop_server("amy", "lab1")
    answer = hub.api("PATCH", "users/amy/servers/lab1", json={"name": "lab2"})
    assert answer.status_code == 409
    assert "cannot be renamed" in answer.json()["message"]
    assert (
        "lab1" in hub.api("GET", "users/amy?include_stopped_servers").json()["servers"]
    )

    answer = hub.api("DELETE", "users/amy/servers/lab1", json={"remove": True})
    assert answer.status_code == 204
    assert service.called("forget") == 1
    assert server_tokens(hub) == []


def test_t13_state_shows_no_token(hub, service, amy):
    token = service.capture("amy")["identity"]["api_token"]
    assert token not in str(hub.server("amy"))
    hub.stop_server("amy")
    assert token not in str(hub.server("amy"))
    assert token.encode() not in (hub.folder / "jupyterhub.sqlite").read_bytes()


def test_t14_no_options_form_on_a_resume(hub, service, amy):
    hub.configure(service.config + "\nc.Spawner.options_form = '<input name=size>'\n")
    hub.restart()
    service.capture("amy")
    hub.stop_server("amy")
    page = amy.http.get(f"{hub.url}/hub/spawn/amy", timeout=60)
    assert "name=size" not in page.text
    assert amy.visit("/user/amy/lab").status_code == 200


def test_t15_visit_during_the_release_ends_in_the_resumed_session(hub, service, amy):
    service.capture("amy")
    service.hold_release.clear()
    hub.api("DELETE", "users/amy/server", timeout=30)
    page = amy.http.get(f"{hub.url}/user/amy/lab", timeout=60)
    assert page.status_code == 200
    assert "is being saved" in page.text
    service.hold_release.set()
    assert amy.visit("/user/amy/lab").status_code == 200
    assert amy.logins == 1


def test_t17_idle_culler_leaves_a_suspended_server_alone(hub, suspended):
    answer = requests.get(
        f"{hub.url}/hub/api/users?state=ready",
        headers={"Authorization": "token token-of-the-test-service-0123456789"},
        timeout=30,
    )
    assert "amy" not in [user["name"] for user in answer.json()]
    assert hub.cull("--timeout=1", "--cull-every=1") == 0
    assert pointer(hub)["phase"] == "suspended"
    assert suspended.visit("/user/amy/lab").status_code == 200
