"""A Hub whose database is lost, or is a backup: who may let sessions back in."""

import pytest

from demo.user import User
from tests.hub.test_traps import tokens
from tests.support.hub import PASSWORD, wait_until

REVOKED = "does not know the login"


def start(hub, name):
    """Start the server by the API, and wait until that has ended."""
    answer = hub.api("POST", f"users/{name}/server")
    wait_until(lambda: not hub.server(name)["pending"], 90, hub.log)
    return answer


@pytest.fixture
def lost(hub, suspended):
    hub.terminate()
    (hub.folder / "jupyterhub.sqlite").unlink()
    hub.start()
    again = User(hub.url, suspended.name, PASSWORD)
    again.login()
    return again


@pytest.mark.long
def test_session_of_a_lost_database_comes_back_by_a_managers_order_alone(
    hub, service, lost
):
    refused = start(hub, lost.name)
    assert refused.status_code == 409
    assert REVOKED in refused.json()["message"]
    assert "renew-login" in refused.json()["message"]
    assert tokens(hub, lost.name) == []
    assert hub.server(lost.name)["state"]["gpu_reclaim"]["phase"] == "suspended"

    service.renew_login = True
    hub.start_server(lost.name)
    assert len(tokens(hub, lost.name)) == 1
    page = lost.visit(f"/user/{lost.name}/lab")
    assert page.status_code == 200

    service.renew_login = False
    service.suspend(hub, lost.name)  # and it can be suspended and brought back as ever
    assert lost.visit(f"/user/{lost.name}/lab").status_code == 200
    assert len(tokens(hub, lost.name)) == 1


def test_session_that_runs_is_not_ended_by_a_start_that_is_refused(hub, service, name):
    """Its Hub has forgotten login and server, and stops what it could not start."""
    amy = hub.user(name)
    amy.start_server()
    init = service.init(amy.name)
    placed = next(facts for call, facts in reversed(service.calls) if call == "placed")
    hub.terminate()
    (hub.folder / "jupyterhub.sqlite").unlink()
    hub.start()
    again = User(hub.url, amy.name, PASSWORD)
    again.login()
    service.plan = {"action": "adopt", "incarnation": placed["incarnation"]}

    for _ in range(2):
        refused = start(hub, amy.name)
        assert refused.status_code == 409
        assert "is running already" in refused.json()["message"]
        assert service.init(amy.name) == init
        assert not hub.server(amy.name)["ready"]
        assert tokens(hub, amy.name) == []
    told = [call for call, facts in service.calls if facts["key"] == placed["key"]]
    assert told == ["plan-start", "placed", "plan-start", "plan-start"]

    service.plan["renew_login"] = True
    hub.start_server(amy.name)
    assert service.init(amy.name) == init
    assert again.visit(f"/user/{amy.name}/lab").status_code == 200
    service.plan = None
    hub.stop_server(amy.name)
    with pytest.raises(LookupError):
        service.init(amy.name)


def test_session_that_runs_and_whose_login_was_revoked_is_left_alone(hub, service, amy):
    """The Hub knows the session: its login is unknown since somebody revoked it."""
    service.capture(amy.name)
    init = service.init(amy.name)
    service.down()
    hub.stop_server(amy.name)
    service.up()
    service.thaw(amy.name)
    state = hub.server(amy.name)["state"]["gpu_reclaim"]
    assert state["phase"] == "unknown"
    hub.api("DELETE", f"users/{amy.name}/tokens/a{state['token_id']}")

    incarnation = state["incarnation"]
    service.plan = {"action": "adopt", "incarnation": incarnation, "owned": True}
    refused = start(hub, amy.name)
    assert refused.status_code == 409
    assert "may have been revoked" in refused.json()["message"]
    assert tokens(hub, amy.name) == []
    assert service.init(amy.name) == init


def test_order_makes_no_token_valid_that_is_anothers_or_that_no_hub_has_made(
    hub, service, suspended
):
    victim = hub.user("victim")
    made = hub.api("POST", "users/victim/tokens", json={"note": "mine"}).json()
    service.renew_login = True
    saved = service.saved[suspended.name, ""]
    for forged in (made["token"], "short", "password-of-somebody-whom-we-know"):
        saved["identity"]["api_token"] = forged
        answer = start(hub, suspended.name)
        assert answer.status_code == 409
        assert REVOKED in answer.json()["message"]
    assert victim.name == "victim"
    assert hub.api("GET", f"users/victim/tokens/{made['id']}").status_code == 200
