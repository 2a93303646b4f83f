"""Passes of open tabs: who can make one, and how little it opens."""

import pytest

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import SessionKey

#: What a browser says of a script's question.
SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
ADA = SessionKey("ada")
LONG_AGO = 1_700_000_000.0


def pass_of(service, key=ADA, *, started=None, at=None) -> str:
    """As the server of that session makes it."""
    now = service.context.clock.now()
    secret = service.context.spawner_token
    started = now if started is None else started
    given = tab_tokens.session_key(secret, key, "5e55", started)
    return tab_tokens.made({tab_tokens.VARIABLE: given}, now if at is None else at)


async def call_with(service, tab_pass, path, method="GET", **more):
    headers = {**SCRIPT, tab_tokens.HEADER: tab_pass}
    return await service.call(path, "", method, headers=headers, **more)


async def test_pass_keeps_and_suspends_its_session_and_nothing_else(service):
    ada = pass_of(service)
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
        ("POST", f"{one}/-/delete"),
        ("GET", "api/sessions"),
        ("GET", "api/events"),
        ("GET", ""),
        ("GET", "metrics"),
    ]:
        refused = await call_with(service, ada, path, method, body={})
        assert refused.code == 403, path


async def test_pass_renames_a_save_point_and_takes_no_name_away(service):
    """Who has none is deleted soon, and a tab may be a guest's."""
    service.control.put("ada")
    path = "api/sessions/ada/-/rename"
    codes = []
    for name in ("good", "", " \t"):
        body = {"checkpoint": "c1", "name": name}
        given = await call_with(service, pass_of(service), path, "POST", body=body)
        codes.append(given.code)
    assert codes == [200, 403, 403]


async def test_pass_of_a_manager_does_not_manage(service):
    service.control.put("root")
    mine = pass_of(service, SessionKey("root"))
    path, body = "api/sessions/root/-/keep", {"seconds": 30 * 86400}
    await call_with(service, mine, path, "POST", body=body)
    assert service.control.calls
    assert service.control.managed_keeps == 0


@pytest.mark.parametrize(
    "key", [SessionKey("ada"), SessionKey("a/b c%41ü", "tr.ain"), SessionKey("x", "--")]
)
async def test_pass_names_its_session_whatever_that_is_called(service, key):
    found = tab_tokens.read(
        service.context.spawner_token,
        pass_of(service, key),
        service.context.clock.now(),
    )
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize("forged", ["", "x", "s.1.2.3.ada/-", ".....", "²." * 5, "é"])
async def test_what_is_no_pass_counts_for_nothing(service, forged):
    service.control.put("ada")
    refused = await call_with(service, forged, "api/sessions/ada/-")
    assert refused.code == 401


async def test_pass_that_is_changed_old_or_of_the_future_counts_for_nothing(service):
    service.control.put("ada")
    now = service.context.clock.now()
    session, since, at, mac, path = pass_of(service).split(".")
    for changed in (
        ".".join(["07e2", since, at, mac, path]),
        ".".join([session, str(int(since) + 1), at, mac, path]),
        ".".join([session, since, str(int(at) + 1), mac, path]),
        ".".join([session, since, at, mac, "bob/-"]),
        pass_of(service, started=LONG_AGO, at=now - tab_tokens.SECONDS - 1),
        pass_of(service, at=now + 2 * tab_tokens.AHEAD),
    ):
        refused = await call_with(service, changed, "api/sessions/ada/-")
        assert refused.code == 401, changed


def test_server_that_was_started_without_a_key_makes_no_pass():
    assert tab_tokens.made({}, LONG_AGO) == ""
    assert tab_tokens.made({tab_tokens.VARIABLE: "x"}, LONG_AGO) == ""


async def test_tab_of_an_earlier_start_is_told_so(service):
    service.control.put("ada")
    headers = {tab_tokens.HEADER: pass_of(service)}
    path = "api/sessions/ada/-"
    assert (await service.call(path, "", headers=headers)).code == 200
    revoked = await service.call(f"{path}/revoke-tabs", method="POST")
    assert revoked.code == 200
    refused = await service.call(path, "", headers=headers)
    assert refused.code == 403
    assert b'"tab_key_over"' in refused.body
    by_tab = await service.call(f"{path}/revoke-tabs", "", "POST", headers=headers)
    assert by_tab.code == 403  # a guest takes nobody else's
    other = await service.call(f"{path}/revoke-tabs", "token-bob", "POST")
    assert other.code == 404
