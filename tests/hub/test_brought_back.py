"""The login of a session that was put aside: valid again with it, and only then."""

from tests.hub.test_lost_database import REVOKED, start


def _start_fresh(hub, service, person):
    """Put what is saved aside and start cold; what was saved."""
    saved = service.put_aside(person.name)
    hub.start_server(person.name)
    return saved


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
