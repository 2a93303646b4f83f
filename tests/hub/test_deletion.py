"""What a real Hub tells when servers and users are deleted, renamed and made anew."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.support.hub import wait_until

PERSONS = "small-amy"


def _orders(service) -> list[dict]:
    orders = []
    for file in Path(service.token_file).parent.glob("deletions/*.json"):
        with contextlib.suppress(FileNotFoundError):  # the service removes what it took
            orders.append(json.loads(file.read_text()))
    return orders


def _asked(service, name: str) -> list[str]:
    """The account that each start of that user's server was for."""
    return [
        body["owner"]
        for call, body in service.calls
        if call == "plan-start" and body["key"]["user"] == name
    ]


def test_user_deleted_while_the_service_is_away_is_written_down(hub, service, name):
    assert hub.api("POST", f"users/{name}").ok
    assert hub.server(name) is None or not hub.server(name)["ready"]
    before = _orders(service)
    service.down()
    assert hub.api("DELETE", f"users/{name}").status_code == 204
    new = [order for order in _orders(service) if order not in before]
    assert [(one["user"], one["server"]) for one in new] == [(name, "")]
    assert new[0]["account"]
    wait_until(lambda: "the service does it later" in hub.log(), 30, hub.log)


def test_user_deleted_while_the_service_hangs_is_deleted_at_once(hub, service, name):
    """Else a visit meanwhile starts a session that the Hub forgets at the end."""
    assert hub.api("POST", f"users/{name}").ok
    service.late["forget"] = 6.0
    assert hub.api("DELETE", f"users/{name}").status_code == 204
    assert not service.called("forget")
    assert name in [order["user"] for order in _orders(service)]
    wait_until(lambda: service.called("forget") == 1, 30, hub.log)
    service.late.clear()


def test_order_that_the_service_has_taken_is_not_left_for_another_day(
    hub, service, name
):
    amy = hub.user(name)
    amy.start_server("small-1")
    service.suspend(hub, name, "small-1")
    answer = hub.api("DELETE", f"users/{name}/servers/small-1", json={"remove": True})
    assert answer.status_code == 204
    wait_until(lambda: service.called("forget") == 1, 30, hub.log)
    gone = {"user": name, "server": "small-1"}
    wait_until(lambda: gone not in _orders(service), 30, hub.log)


def test_account_is_told_with_each_start_and_outlives_a_new_name(hub, service, name):
    name = f"small-{name}"
    assert hub.api("POST", f"users/{name}").ok
    hub.start_server(name)
    hub.stop_server(name)
    renamed = f"{name}b"
    assert hub.api("PATCH", f"users/{name}", json={"name": renamed}).ok
    hub.start_server(renamed)
    hub.stop_server(renamed)
    (first,), (second,) = _asked(service, name), _asked(service, renamed)
    assert first == second != ""
    assert hub.api("DELETE", f"users/{renamed}").status_code == 204
    assert hub.api("POST", f"users/{renamed}").ok
    hub.start_server(renamed)
    hub.stop_server(renamed)
    assert _asked(service, renamed)[-1] not in {first, ""}


@pytest.mark.long
def test_culler_of_users_leaves_who_has_a_suspended_session(hub, service, suspended):
    """Session and account are kept: they come back to the same login."""
    name = suspended.name
    culled = hub.api("POST", "users", json={"usernames": [f"{name}-gone"]})
    assert culled.status_code == 201

    def judged():
        gone = hub.api("GET", f"users/{name}-gone").status_code == 404
        return gone and "has a suspended session, and is not deleted" in hub.log()

    options = ("--timeout=1", "--cull-every=1", "--cull-users=true")
    assert hub.cull(*options, until=judged) == 0
    assert judged()
    assert hub.api("GET", f"users/{name}").status_code == 200
    forgotten = {body["user"] for call, body in service.calls if call == "forget"}
    assert name not in forgotten


def test_user_whom_a_program_deletes_leaves_what_is_suspended_for_a_while(
    hub, service, suspended
):
    """A person at the Hub's page means it; a program may not know what is there."""
    before = _orders(service)
    assert hub.api("DELETE", f"users/{suspended.name}").status_code == 204
    wait_until(lambda: service.called("forget") == 1, 30, hub.log)
    [told] = [body for call, body in service.calls if call == "forget"]
    assert (told["user"], told["kept_from"]) == (suspended.name, "service tests")
    assert _orders(service) == before


def test_stop_by_a_culler_is_told_as_one(hub, service, amy):
    """The service can say what ends sessions before they are saved."""

    def told():
        of_amy = [b for c, b in service.calls if c == "stopped"]
        return [body for body in of_amy if body["key"]["user"] == amy.name]

    assert hub.cull("--timeout=1", "--cull-every=1", until=told) == 0
    wait_until(lambda: not hub.server(amy.name)["ready"], 30, hub.log)
    assert [(body["by"], body["culled"]) for body in told()] == [
        ("service cull-idle", True)
    ]
