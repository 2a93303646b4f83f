"""A return that the Hub's own configuration does not let through is a refusal.

Hooks, logins and profiles are the administrator's. What they raise has a reason and
the two choices on the page, leaves no token behind, and never counts as a failure of
the Hub, which would end it (trap T16).
"""

from __future__ import annotations

import contextlib

import pytest

from tests.hub.test_traps import comes_back, pointer, scopes, settled, tokens


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
        ("hook", "lost the quota service", "start_failed", "RuntimeError"),
        ("hook", "group You may use no GPU.", "start_denied", "You may use no GPU."),
        ("login", "group You may use no GPU.", "start_denied", "You may use no GPU."),
        ("start", "lost its mind", "start_failed", "RuntimeError"),
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
        assert f"/services/gpu-reclaim/sessions/{name}/-/fresh" in page.text
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
    assert hub.process.poll() is None
    assert tokens(hub, name) == before
    assert pointer(hub, name)["phase"] == "suspended"
