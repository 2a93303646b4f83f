"""A server under a real Hub is suspended and resumed: what people and programs see."""

import requests

from demo.processes import alive


def test_suspended_server_comes_back_with_cookie_token_and_port(hub, service, amy):
    before = service.capture(amy.name)
    assert hub.stop_server(amy.name).status_code in {202, 204}
    page = amy.visit(f"/user/{amy.name}/lab")
    assert page.status_code == 200
    assert amy.logins == 1
    assert amy.server().json("GET", "status")["started"]
    assert service.capture(amy.name)["identity"] == before["identity"]
    service.thaw(amy.name)


def test_programs_never_wake_a_suspended_server(hub, service, suspended):
    server = suspended.server()
    for path in ("api/kernels", "api/status", "api/contents"):
        for method in ("GET", "POST"):
            answer = server.user.http.request(
                method, f"{hub.url}{server.prefix}{path}", timeout=30
            )
            assert answer.status_code in {403, 424}, (method, path)
    fetched = suspended.http.get(
        f"{hub.url}{server.prefix}lab",
        headers={"Accept": "application/json", "Sec-Fetch-Mode": "cors"},
        timeout=30,
    )
    assert fetched.status_code == 424
    assert not service.called("plan-start")
    page = suspended.http.get(f"{hub.url}{server.prefix}lab", timeout=30)
    assert page.status_code == 424
    assert f"/hub/spawn/{suspended.name}" in page.text
    # The person's browser goes on before it has the page's styles and scripts.
    assert page.text.index('gpuReclaimVisit("resume"') < page.text.index("<link")
    assert not service.called("plan-start")


def test_proxys_error_page_is_503_and_reloads_for_people_only(hub):
    answer = requests.get(f"{hub.url}/hub/error/503", timeout=30)
    assert "gpuReclaimVisit(" in answer.text
    assert "window.top !== window.self" in answer.text


def test_real_stop_ends_the_processes_and_the_login(hub, service, amy):
    init = service.init(amy.name)
    hub.stop_server(amy.name)
    told = [body["key"] for call, body in service.calls if call == "stopped"]
    assert [amy.name in str(key) for key in told].count(True) == 1
    # Nothing is pointed at; what says which logins were ours is no login.
    state = (hub.server(amy.name) or {}).get("state") or {}
    pointer = state.get("gpu_reclaim", {})
    assert not any(pointer.get(name) for name in ("phase", "checkpoint", "token_id"))
    assert not alive(init)
