"""Passes of open tabs: who gets one, and how little it opens."""

from __future__ import annotations

import re

import pytest
from tornado.web import create_signed_value

from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.service import passes

#: What a browser says of a frame in the page of ada's server.
FRAME = {
    "Sec-Fetch-Dest": "iframe",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "same-origin",
    "Referer": "http://hub/user/ada/lab/tree/mine.ipynb",
}
SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}


def login(service, token: str = "token-ada") -> dict[str, str]:
    secret = service.app.settings["cookie_secret"]
    name = "service-gpu-reclaim"
    return {"Cookie": f"{name}={create_signed_value(secret, name, token).decode()}"}


async def ask_for_a_pass(service, path="tab/ada/-", token="token-ada", **headers):
    headers = {**FRAME, **login(service, token), **headers}
    return await service.call(path, token="", headers=headers)


async def call_with(service, tab_pass, path, method="GET", token="token-ada", **more):
    headers = {**SCRIPT, **login(service, token), passes.HEADER: tab_pass}
    return await service.call(path, "", method, headers=headers, **more)


@pytest.fixture
def ada(service) -> str:
    """The pass of a tab of ada's default server."""
    return passes.made(service.app.settings["cookie_secret"], SessionKey("ada"))


async def test_frame_in_a_page_of_the_own_server_gets_a_pass_that_works(service):
    service.control.put("ada")
    page = await ask_for_a_pass(service)
    assert page.code == 200
    assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"]
    content = re.search(r'name="gpu-reclaim-tab" content="([^"]+)"', page.body.decode())
    seen = await call_with(service, content[1], "api/sessions/ada/-")
    assert seen.code == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("tab/ada/-", {"Sec-Fetch-Dest": "empty", "Sec-Fetch-Mode": "cors"}),
        ("tab/ada/-", {"Sec-Fetch-Dest": "document"}),
        ("tab/ada/-", {"Sec-Fetch-Site": "cross-site"}),
        ("tab/ada/-", {"Referer": "http://hub/user/bob/lab"}),
        ("tab/ada/-", {"Referer": "http://hub/user/ada2/lab"}),
        ("tab/ada/-", {"Referer": "http://hub/files?/user/ada/lab"}),
        ("tab/ada/-", {"Referer": ""}),
        ("tab/ada/train", {"Referer": "http://hub/user/ada/lab"}),
        ("tab/bob/-", {"Referer": "http://hub/user/bob/lab"}),
    ],
)
async def test_nobody_else_gets_a_pass(service, path, headers):
    page = await ask_for_a_pass(service, path, **headers)
    assert page.code == 403
    assert b"gpu-reclaim-tab" not in page.body


async def test_manager_gets_no_pass_in_the_page_of_another(service):
    assert (await ask_for_a_pass(service, token="token-root")).code == 403


async def test_frame_without_a_login_is_led_through_the_hubs(service):
    page = await service.call("tab/ada/-", token="", headers=FRAME)
    assert page.code == 302
    assert "/hub/api/oauth2/authorize" in page.headers["Location"]


async def test_pass_keeps_and_suspends_its_session_and_nothing_else(service, ada):
    service.control.put("ada")
    service.control.put("ada", "train")
    one = "api/sessions/ada"
    body = {"seconds": 60}
    kept = await call_with(service, ada, f"{one}/-/keep", "POST", body=body)
    why = await call_with(service, ada, f"{one}/-/why")
    saved = await call_with(service, ada, f"{one}/-/suspend", "POST", body={})
    assert [kept.code, why.code, saved.code] == [200, 200, 202]
    other = await call_with(service, ada, f"{one}/train/suspend", "POST", body={})
    assert other.code == 404
    for method, path in [
        ("POST", f"{one}/-/start-fresh"),
        ("POST", f"{one}/-/opt-out"),
        ("DELETE", f"{one}/-/saved"),
        ("GET", "api/sessions"),
        ("GET", "api/events"),
        ("GET", ""),
        ("GET", "metrics"),
    ]:
        refused = await call_with(service, ada, path, method, body={})
        assert refused.code == 403, path


async def test_pass_of_a_manager_does_not_manage(service):
    secret = service.app.settings["cookie_secret"]
    service.control.put("root")
    mine = passes.made(secret, SessionKey("root"))
    path, body = "api/sessions/root/-/keep", {"seconds": 30 * 86400}
    await call_with(service, mine, path, "POST", token="token-root", body=body)
    assert service.control.calls
    assert service.control.managed_keeps == 0


async def test_pass_without_the_login_of_its_user_opens_nothing(service, ada):
    service.control.put("ada")
    path = "api/sessions/ada/-"
    headers = {**SCRIPT, passes.HEADER: ada}
    assert (await service.call(path, "", headers=headers)).code == 401
    assert (await call_with(service, ada, path, token="token-bob")).code == 404


@pytest.mark.parametrize("forged", ["", "x", "2|1:0|10:1|15:gpu-reclaim-tab|0:|x"])
async def test_what_is_no_pass_counts_for_nothing(service, forged):
    service.control.put("ada")
    refused = await call_with(service, forged, "api/sessions/ada/-")
    assert refused.code == 401


async def test_other_signed_values_and_old_passes_are_no_pass(service):
    secret = service.app.settings["cookie_secret"]
    other = create_signed_value(secret, "service-gpu-reclaim", "ada/-").decode()
    assert passes.read(secret, other) is None
    old = create_signed_value(
        secret, "gpu-reclaim-tab", "ada/-", clock=lambda: 1_700_000_000
    )
    assert passes.read(secret, old.decode()) is None
