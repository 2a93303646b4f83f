"""A server under a real Hub is suspended and resumed: what people and the Hub see."""

from __future__ import annotations


def test_suspended_server_comes_back_with_cookie_token_and_port(hub, service):
    amy = hub.user("amy")
    amy.start_server()
    before = service.capture("amy")
    assert hub.stop_server("amy").status_code in {202, 204}
    state = hub.server("amy")["state"]["gpu_reclaim"]
    assert state["phase"] == "suspended"
    assert before["identity"]["api_token"] not in str(hub.server("amy")["state"])

    page = amy.visit("/user/amy/lab")
    assert page.status_code == 200
    assert amy.logins == 1
    assert amy.server().json("GET", "status")["started"]
