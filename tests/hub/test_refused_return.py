"""A return that the Hub's own configuration does not let through is a refusal.

Hooks, logins and profiles are the administrator's. What they raise has a reason and
the two choices on the page, leaves no token behind, and never counts as a failure of
the Hub, which would end it (trap T16).
"""

import contextlib
import json

import pytest

from tests.hub.test_traps import comes_back, pointer, rows, scopes, settled, tokens
from tests.support.hub import wait_until

PERSONS = "small-amy"


@contextlib.contextmanager
def failing(hub, name, moment, words):
    file = hub.folder / f"{moment}-of-{name}"
    file.write_text(words)
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("moment", "raised", "code", "told"),
    [
        pytest.param(
            "hook",
            "lost the quota service",
            "start_failed",
            "RuntimeError",
            marks=pytest.mark.long,
        ),
        ("hook", "group You may use no GPU.", "start_denied", "You may use no GPU."),
        pytest.param(
            "login",
            "group You may use no GPU.",
            "start_denied",
            "You may use no GPU.",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "start",
            "lost its mind",
            "start_failed",
            "RuntimeError",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_the_hubs_own_configuration_raises_is_a_refusal_with_both_choices(
    hub, suspended, moment, raised, code, told
):
    name = suspended.name
    before = tokens(hub, name)
    with failing(hub, name, moment, raised):
        page = suspended.http.get(f"{hub.url}/hub/spawn/{name}", timeout=60)
        while "spawn-pending" in page.url and page.status_code == 200:
            page = suspended.http.get(page.url, timeout=60)
        assert page.status_code == 409, page.text
        assert f'data-code="{code}"' in page.text
        assert told in page.text
        assert f"/services/gpu-reclaim/sessions/{name}/-" in page.text
        assert "gpu-reclaim-again" in page.text
        refused = hub.api("POST", f"users/{name}/server")
        assert refused.status_code == 409, refused.text
        settled(hub, name)
    assert "consecutive spawn failures" not in hub.log()
    assert hub.process.poll() is None
    assert tokens(hub, name) == before
    assert pointer(hub, name)["phase"] == "suspended"
    assert scopes(hub, name)
    suspended.http.get(f"{hub.url}/hub/spawn/{name}", timeout=60)
    assert comes_back(suspended)
    assert tokens(hub, name) == before


def test_returning_session_has_the_rights_at_the_hub_that_a_fresh_start_would_have(
    hub, service, name
):
    """Its token is the old one; what the administrator has taken from it is gone."""
    name = f"small-{name}"
    wide = hub.folder / f"wide-{name}"
    wide.touch()
    person = hub.user(name)
    person.start_server()
    assert any("read:users:groups" in each for each in scopes_of_token(hub, name))
    service.suspend(hub, name)
    wide.unlink()
    assert comes_back(person)
    assert not any("read:users:groups" in each for each in scopes_of_token(hub, name))
    assert any("users:activity" in each for each in scopes_of_token(hub, name))


def test_what_a_session_was_started_with_stays_its_options_whatever_is_sent(
    hub, suspended
):
    """The service's rules go by them: a profile that is never suspended, say."""
    name = suspended.name
    sent = hub.api("POST", f"users/{name}/server", json={"profile": "never"})
    assert sent.status_code in {201, 202}, sent.text
    settled(hub, name)
    assert hub.server(name)["ready"]
    assert hub.server(name)["user_options"] == {}


def scopes_of_token(hub, name):
    [number] = tokens(hub, name)
    [(scopes,)] = rows(hub, "select scopes from api_tokens where id = ?", number)
    return json.loads(scopes)


@pytest.mark.long
def test_return_that_takes_longer_than_the_hub_waits_is_a_refusal(
    hub, service, suspended
):
    name = suspended.name
    before = tokens(hub, name)
    service.hold_restore.clear()
    impatient = hub.folder / f"impatient-{name}"
    impatient.touch()
    try:
        refused = hub.api("POST", f"users/{name}/server")
        assert refused.status_code == 409, refused.text
        assert "took longer than 2 s" in refused.text
    finally:
        service.hold_restore.set()
        impatient.unlink()
    settled(hub, name)
    # What the Hub has cancelled is taken back in the background.
    wait_until(lambda: pointer(hub, name)["phase"] == "suspended", 60, hub.log)
    assert hub.process.poll() is None
    assert tokens(hub, name) == before
