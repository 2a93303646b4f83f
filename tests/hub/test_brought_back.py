"""The login of a session that was put aside: valid again with it, and only then."""

import pytest

from tests.hub.test_lost_database import REVOKED, start
from tests.hub.test_traps import rows, tokens


def _start_fresh(hub, service, person):
    """Put what is saved aside and start cold; what was saved."""
    saved = service.put_aside(person.name)
    hub.start_server(person.name)
    return saved


def _state(hub, name):
    return hub.server(name)["state"]["gpu_reclaim"]


@pytest.mark.long
def test_login_of_a_state_put_aside_is_deleted_and_comes_back_with_it(
    hub, service, suspended
):
    saved = _start_fresh(hub, service, suspended)
    assert len(tokens(hub, suspended.name)) == 1  # of the new session alone (T5)
    hub.stop_server(suspended.name)
    assert tokens(hub, suspended.name) == []
    token = saved["identity"]["api_token"]
    (text,) = rows(
        hub,
        "select s.state from spawners s join users u on u.id = s.user_id"
        " where u.name = ?",
        suspended.name,
    )
    assert token not in text[0]  # a salted hash, never a token (T13)

    service.saved[suspended.name, ""] = saved
    hub.start_server(suspended.name)
    assert suspended.visit(f"/user/{suspended.name}/lab").status_code == 200
    assert len(tokens(hub, suspended.name)) == 1


def test_login_that_comes_back_is_the_sessions_own_until_it_is_revoked(
    hub, service, suspended
):
    saved = _start_fresh(hub, service, suspended)
    hub.stop_server(suspended.name)
    others = {**saved, "identity": {**saved["identity"], "api_token": "0" * 32}}
    service.saved[suspended.name, ""] = others
    refused = start(hub, suspended.name)
    assert refused.status_code == 409
    assert REVOKED in refused.json()["message"]

    service.saved[suspended.name, ""] = saved
    hub.start_server(suspended.name)
    service.suspend(hub, suspended.name)
    (number,) = {
        each["id"]
        for each in hub.api("GET", f"users/{suspended.name}/tokens").json()[
            "api_tokens"
        ]
        if each["note"].startswith("Server at")
    }
    hub.api("DELETE", f"users/{suspended.name}/tokens/{number}")
    refused = start(hub, suspended.name)
    assert refused.status_code == 409
    assert REVOKED in refused.json()["message"]
