"""JupyterHub's traps T1 to T20: each test shows one, were it not handled.

The list with causes and with the traps that are only documented:
``docs/reference/jupyterhub-traps.md``.
"""

import contextlib
import os
import signal
import sqlite3
import threading
import time

import jupyterhub
import pytest
import requests

from demo.user import User
from tests.hub.conftest import SERVICE_TOKEN
from tests.support.hub import API_TOKEN, PASSWORD, wait_until

FAILED = {"code": "file_missing", "message": "The file /home/x is gone."}


def pointer(hub, user, name=""):
    server = hub.server(user, name) or {}
    return (server.get("state") or {}).get("gpu_reclaim", {})


def rows(hub, query, *values):
    where = f"file:{hub.folder}/jupyterhub.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(where, uri=True)) as db:
        return db.execute(query, values).fetchall()


def tokens(hub, user, name=""):
    """Ids of the API tokens that were made for a user's server."""
    query = (
        "select t.id from api_tokens t join users u on u.id = t.user_id"
        " where u.name = ? and t.note = ?"
    )
    note = f"Server at /user/{user}/{name}/".replace("//", "/")
    return [number for (number,) in rows(hub, query, user, note)]


def scopes(hub, user, name=""):
    """Allowed scopes of a server's OAuth client; None when there is none."""
    client = f"jupyterhub-user-{user}" + (f"-{name}" if name else "")
    query = "select allowed_scopes from oauth_clients where identifier = ?"
    found = rows(hub, query, client)
    return found[0][0] if found else None


def resume(hub, user, name=""):
    where = f"servers/{name}" if name else "server"
    return hub.api("POST", f"users/{user}/{where}")


def held(hub, service, user):
    """Begin a resume that waits for ``hold_restore``; the Hub itself answers late."""
    service.hold_restore.clear()
    _unanswered(hub, "POST", user)
    wait_until(lambda: service.called("placed"), 30, hub.log)


def _unanswered(hub, method, user):
    def call():
        with contextlib.suppress(requests.RequestException):
            hub.api(method, f"users/{user}/server")

    threading.Thread(target=call).start()


def settled(hub, user):
    wait_until(lambda: not hub.server(user)["pending"], 60, hub.log)
    return hub.server(user)


def gone(service, user, name=""):
    try:
        service.init(user, name)
    except LookupError:
        return True
    return False


def asked_by_our_service(hub, user):
    return requests.delete(
        f"{hub.url}/hub/api/users/{user}/server",
        headers={"Authorization": f"token {SERVICE_TOKEN}"},
        timeout=60,
    )


def stopped_by_our_service(hub, user):
    """Let our service ask for a stop; the pointer's phase when the Hub has none."""
    assert asked_by_our_service(hub, user).status_code in {202, 204}
    wait_until(lambda: not hub.server(user)["ready"], 60, hub.log)
    return settled(hub, user)["state"]["gpu_reclaim"]["phase"]


def comes_back(person):
    page = person.visit(f"/user/{person.name}/lab")
    return page.status_code == 200 and person.logins == 1


def test_t1_tree_that_dies_after_it_was_saved_keeps_login_and_pointer(
    hub, service, amy
):
    service.capture(amy.name)
    before = tokens(hub, amy.name)
    os.kill(service.init(amy.name), signal.SIGKILL)  # behind the Hub's back
    wait_until(lambda: pointer(hub, amy.name)["phase"] == "suspended", 30, hub.log)
    settled(hub, amy.name)
    assert tokens(hub, amy.name) == before
    assert scopes(hub, amy.name)
    assert comes_back(amy)


def test_t1_frozen_tree_counts_as_running(hub, service, amy):
    service.capture(amy.name)
    time.sleep(2.2)  # two polls must pass without any effect: nothing to await
    assert hub.server(amy.name)["ready"]
    service.thaw(amy.name)
    assert amy.server().json("GET", "status")["started"]


def test_t2_t4_hub_restarted_while_suspended_keeps_client_cookies_and_session(
    hub, suspended
):
    before = scopes(hub, suspended.name)
    hub.restart("terminate")  # T6 has one that is killed
    assert pointer(hub, suspended.name)["phase"] == "suspended"
    assert scopes(hub, suspended.name) == before
    assert comes_back(suspended)


def test_t3_resume_keeps_the_oauth_clients_scopes(hub, suspended):
    before = scopes(hub, suspended.name)
    assert "access:servers" in before
    resume(hub, suspended.name)
    assert settled(hub, suspended.name)["ready"]
    assert scopes(hub, suspended.name) == before
    newcomer = User(hub.url, suspended.name, PASSWORD)  # another browser logs in
    newcomer.login()
    assert newcomer.visit(f"/user/{suspended.name}/lab").status_code == 200


def test_t4_t5_t16_failed_resumes_keep_login_leak_no_token_and_say_why(
    hub, service, suspended
):
    name = suspended.name
    service.fail_restore = FAILED
    before = tokens(hub, name)
    for _ in range(3):
        assert resume(hub, name).status_code in {202, 409}
        settled(hub, name)
    assert tokens(hub, name) == before
    assert pointer(hub, name)["phase"] == "suspended"
    assert scopes(hub, name)
    assert "consecutive spawns failed" not in hub.log()

    page = suspended.http.get(f"{hub.url}/hub/spawn/{name}", timeout=60)
    while "spawn-pending" in page.url and page.status_code == 200:
        page = suspended.http.get(page.url, timeout=60)
    assert page.status_code == 409
    assert "could not be resumed" in page.text
    assert FAILED["message"] in page.text
    assert f"/services/gpu-reclaim/sessions/{name}/-" in page.text
    assert f'href="/hub/spawn/{name}' in page.text
    assert "data-gpu-reclaim-resume" not in page.text  # the person decides now

    service.fail_restore = None
    suspended.http.get(f"{hub.url}/hub/spawn/{name}", timeout=60)
    assert comes_back(suspended)
    assert tokens(hub, name) == before


def test_t5_fresh_start_after_a_suspend_deletes_the_saved_login(
    hub, service, suspended
):
    before = tokens(hub, suspended.name)
    service.put_aside(suspended.name)
    suspended.visit(f"/user/{suspended.name}/lab")
    after = tokens(hub, suspended.name)
    assert len(before) == len(after) == 1
    assert after != before


def test_t6_t15_hub_killed_during_the_release_comes_back_suspended(hub, service, amy):
    before = scopes(hub, amy.name)
    service.capture(amy.name)
    service.hold_release.clear()
    _unanswered(hub, "DELETE", amy.name)
    # It notes the phase, and asks after that.
    wait_until(lambda: service.called("release"), 30, hub.log)
    hub.kill()
    service.hold_release.set()
    wait_until(lambda: gone(service, amy.name), 60)
    hub.start()
    assert pointer(hub, amy.name)["phase"] == "releasing"
    assert not hub.server(amy.name)["ready"]
    assert scopes(hub, amy.name) == before
    assert comes_back(amy)


@pytest.mark.long
def test_t6_hub_killed_during_a_resume_keeps_the_session(hub, service, suspended):
    held(hub, service, suspended.name)
    hub.kill()
    service.hold_restore.set()
    hub.start()
    assert pointer(hub, suspended.name)["checkpoint"]
    os.kill(service.init(suspended.name), signal.SIGKILL)  # as the reconciler does
    assert comes_back(suspended)


@pytest.mark.long
def test_t25_hub_killed_as_a_cold_start_ends_finds_the_session_again(
    hub, service, name
):
    """It has noted the incarnation, and not yet where that runs."""
    file = hub.folder / f"held-start-of-{name}"
    file.touch()
    amy = hub.user(name)
    _unanswered(hub, "POST", name)
    wait_until(file.read_text, 30, hub.log)
    init = service.init(name)
    hub.kill()
    file.unlink()
    hub.start()
    hub.comes_up(name)
    assert service.init(name) == init
    assert pointer(hub, name)["place"]["pid"] == init
    assert len(tokens(hub, name)) == 1
    assert amy.visit(f"/user/{name}/lab").status_code == 200
    hub.stop_server(name)
    assert gone(service, name)
    assert tokens(hub, name) == []


def test_t7_revoked_token_is_not_resurrected(hub, suspended):
    [number] = tokens(hub, suspended.name)
    revoked = hub.api("DELETE", f"users/{suspended.name}/tokens/a{number}")
    assert revoked.status_code == 204
    answer = resume(hub, suspended.name)
    settled(hub, suspended.name)
    assert answer.status_code == 409
    assert "revoked" in answer.json()["message"]
    assert tokens(hub, suspended.name) == []
    assert pointer(hub, suspended.name)["phase"] == "suspended"


def test_revoked_login_of_a_running_server_is_told_to_the_service_once(
    hub, service, amy
):
    [number] = tokens(hub, amy.name)
    assert not service.called("login-revoked")
    assert hub.api("DELETE", f"users/{amy.name}/tokens/a{number}").status_code == 204
    wait_until(lambda: service.called("login-revoked"), 20, hub.log)
    time.sleep(2.2)  # more looks of the Hub
    assert service.called("login-revoked") == 1
    assert hub.server(amy.name)["ready"]


def test_t8_stopped_tree_is_kept_without_the_service_and_adopted_later(
    hub, service, amy
):
    service.capture(amy.name)
    init = service.init(amy.name)
    service.down()
    hub.stop_server(amy.name)
    assert pointer(hub, amy.name)["phase"] == "unknown"
    assert service.init(amy.name) == init
    # The start waits for a service that does not listen yet, and is refused then.
    assert resume(hub, amy.name).status_code == 409
    settled(hub, amy.name)
    assert service.init(amy.name) == init
    assert pointer(hub, amy.name)["phase"] == "unknown"

    service.up()
    for process in service.tree(amy.name).processes:
        os.kill(process.pid, signal.SIGCONT)
    service.plan = {
        "action": "adopt",
        "incarnation": pointer(hub, amy.name)["incarnation"],
    }
    amy.http.get(f"{hub.url}/hub/spawn/{amy.name}", timeout=60)
    assert comes_back(amy)
    assert service.init(amy.name) == init
    assert len(tokens(hub, amy.name)) == 1


@pytest.mark.long  # likewise
def test_t28_stop_that_our_service_asks_for_ends_nothing_without_its_plan(
    hub, service, amy
):
    """It was let go on by hand before the stop, and the service is killed meanwhile."""
    init = service.init(amy.name)
    service.down()
    assert stopped_by_our_service(hub, amy.name) == "unknown"
    assert service.init(amy.name) == init

    service.up()
    service.plan = {
        "action": "adopt",
        "incarnation": pointer(hub, amy.name)["incarnation"],
    }
    assert comes_back(amy)
    hub.stop_server(amy.name)  # an administrator's is a real one, with or without it
    assert gone(service, amy.name)


def test_t9_stop_during_a_resume_leaves_no_orphan_and_keeps_the_session(
    hub, service, suspended
):
    name = suspended.name
    before = tokens(hub, name)
    held(hub, service, name)
    assert not gone(service, name)
    hub.stop_server(name)
    service.hold_restore.set()
    wait_until(lambda: gone(service, name), 60)
    assert service.called("cancelled") >= 1
    assert pointer(hub, name)["phase"] == "suspended"
    assert tokens(hub, name) == before
    assert comes_back(suspended)


@pytest.mark.long
def test_stop_during_a_resume_is_not_held_up_by_a_service_that_answers_late(
    hub, service, suspended
):
    """The Hub gives a cancelled start one second, then takes it for a server."""
    name = suspended.name
    held(hub, service, name)
    service.late["cancelled"] = 3.0
    assert hub.api("DELETE", f"users/{name}/server").status_code in {202, 204}
    assert not settled(hub, name)["ready"]
    service.hold_restore.set()
    wait_until(lambda: gone(service, name), 60)
    # The place is ended first, and the pointer is written then.
    wait_until(lambda: pointer(hub, name)["phase"] == "suspended", 60)
    service.late.clear()
    assert comes_back(suspended)


@pytest.mark.long
def test_t9_visit_after_a_cancelled_resume_waits_until_its_place_has_ended(
    hub, service, suspended
):
    """The Hub makes another spawner meanwhile, and what still runs could be adopted."""
    name = suspended.name
    held(hub, service, name)
    service.late["cancelled"] = 1.5  # less than the Hub waits for the service here
    hub.api("DELETE", f"users/{name}/server")
    settled(hub, name)
    service.hold_restore.set()
    planned = service.called("plan-start")
    resume(hub, name)
    # The Hub does not call it pending while the former place ends.
    wait_until(lambda: service.called("plan-start") > planned, 30, hub.log)
    settled(hub, name)
    calls = [call for call, _ in service.calls if call in {"plan-start", "cancelled"}]
    assert calls[-2:] == ["cancelled", "plan-start"]
    service.late.clear()
    assert comes_back(suspended)


def test_t10_suspended_named_server_is_not_renamed_and_deletes_its_login(
    hub, service, name
):
    amy = hub.user(name)
    amy.start_server("small-1")
    service.suspend(hub, name, "small-1")
    answer = hub.api("PATCH", f"users/{name}/servers/small-1", json={"name": "small-2"})
    if jupyterhub.version_info[0] < 6:
        assert answer.status_code == 405  # no server can be renamed
    else:
        assert answer.status_code == 409
        assert "cannot be renamed" in answer.json()["message"]
    assert pointer(hub, name, "small-1")["phase"] == "suspended"

    answer = hub.api("DELETE", f"users/{name}/servers/small-1", json={"remove": True})
    assert answer.status_code == 204
    wait_until(lambda: service.called("forget") == 1, 30, hub.log)
    assert tokens(hub, name, "small-1") == []


def test_t13_state_shows_no_token(hub, service, amy):
    token = service.capture(amy.name)["identity"]["api_token"]
    assert token not in str(hub.server(amy.name))
    hub.stop_server(amy.name)
    assert token not in str(hub.server(amy.name))
    assert token.encode() not in (hub.folder / "jupyterhub.sqlite").read_bytes()


def test_t14_no_options_form_on_a_resume(hub, suspended, name):
    def form_of(person):
        file = hub.folder / f"form-of-{person.name}"
        file.touch()
        page = person.http.get(f"{hub.url}/hub/spawn/{person.name}", timeout=60)
        file.unlink()
        return "name=size" in page.text

    assert form_of(hub.user(name))
    assert not form_of(suspended)
    assert comes_back(suspended)


@pytest.mark.long
def test_t15_visit_during_the_release_ends_in_the_resumed_session(hub, service, amy):
    service.capture(amy.name)
    service.hold_release.clear()
    _unanswered(hub, "DELETE", amy.name)
    wait_until(lambda: pointer(hub, amy.name)["phase"] == "releasing", 30, hub.log)
    page = amy.http.get(f"{hub.url}/user/{amy.name}/lab", timeout=60)
    assert page.status_code == 200
    assert "is being suspended" in page.text
    assert "<main>" in page.text
    service.hold_release.set()
    assert comes_back(amy)


def test_t9_t17_stop_and_idle_culler_leave_a_suspended_server_alone(hub, suspended):
    assert hub.api("DELETE", f"users/{suspended.name}/server").status_code == 204
    assert pointer(hub, suspended.name)["phase"] == "suspended"
    answer = requests.get(
        f"{hub.url}/hub/api/users?state=ready",
        headers={"Authorization": f"token {API_TOKEN}"},
        timeout=30,
    )
    assert suspended.name not in [user["name"] for user in answer.json()]
    assert hub.cull("--timeout=1", "--cull-every=1") == 0
    assert pointer(hub, suspended.name)["phase"] == "suspended"
    assert comes_back(suspended)
