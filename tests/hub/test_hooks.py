"""An administrator's hooks: those of an end run at an end, which a suspend is not."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hub.conftest import SERVICE
from tests.hub.test_traps import (
    FAILED,
    asked_by_our_service,
    comes_back,
    pointer,
    resume,
    settled,
    stopped_by_our_service,
)
from tests.support.hub import PASSWORD, HubUnderTest, wait_until

PERSONS = "small-amy"


class Hooks:
    """Those that have run of one person's servers since the test looked last."""

    def __init__(self, hub, person):
        self._file = hub.folder / f"hooks-of-{person.name}"
        self._file.touch()
        self.run()

    def run(self):
        names = [line.strip() for line in self._file.read_text().splitlines()]
        self._file.write_text("")
        return names

    def close(self):
        self._file.unlink()


@pytest.fixture
def hooks(hub, request):
    """Those of the person whose fixture the test has."""
    names = {"amy", "suspended"} & set(request.fixturenames)
    found = Hooks(hub, request.getfixturevalue(names.pop()))
    yield found
    found.close()


@pytest.fixture
def card(hub):
    """Sets the card that a hook gives to somebody's server; None: none."""
    files = []

    def give(person, card):
        file = hub.folder / f"card-of-{person.name}"
        files.append(file)
        if card is None:
            file.unlink()
        else:
            file.write_text(card)

    yield give
    for file in files:
        file.unlink(missing_ok=True)


def _start_with(hub, person, card, give):
    hub.stop_server(person.name)
    give(person, card)
    person.start_server()


def test_hook_of_an_end_runs_at_an_end_and_not_at_a_suspend(hub, service, amy, hooks):
    service.capture(amy.name)
    assert stopped_by_our_service(hub, amy.name) == "suspended"
    assert hooks.run() == []
    assert comes_back(amy)
    assert hooks.run() == ["auth_state", "auth_state", "pre_spawn"]  # the page's, too
    hub.stop_server(amy.name)
    assert hooks.run() == ["post_stop"]


def test_hook_of_an_end_does_not_run_where_a_return_fails(
    hub, service, suspended, hooks
):
    service.fail_restore = FAILED
    assert resume(hub, suspended.name).status_code == 409
    settled(hub, suspended.name)
    service.fail_restore = None
    (hub.folder / f"hook-of-{suspended.name}").write_text("lost it failed")
    assert resume(hub, suspended.name).status_code == 409
    (hub.folder / f"hook-of-{suspended.name}").unlink()
    service.plan = {"action": "refuse", "failure": FAILED}
    assert resume(hub, suspended.name).status_code == 409
    assert "post_stop" not in hooks.run()
    service.plan = None
    hub.start_server(suspended.name)


def test_hook_of_an_end_runs_for_programs_that_ended_unless_they_were_saved(
    hub, service, amy, hooks
):
    service.capture(amy.name)
    os.kill(service.init(amy.name), signal.SIGKILL)
    wait_until(lambda: pointer(hub, amy.name)["phase"] == "suspended", 30, hub.log)
    settled(hub, amy.name)
    assert hooks.run() == []
    assert comes_back(amy)
    hooks.run()
    os.kill(service.init(amy.name), signal.SIGKILL)
    wait_until(lambda: not hub.server(amy.name)["ready"], 30, hub.log)
    settled(hub, amy.name)
    assert hooks.run() == ["post_stop"]


def test_hook_of_an_end_runs_before_the_next_start_if_what_was_suspended_is_gone(
    hub, service, suspended, hooks
):
    service.put_aside(suspended.name)  # deleted, or set aside
    hub.start_server(suspended.name)
    assert hooks.run() == ["auth_state", "post_stop", "pre_spawn"]


def test_hook_of_an_end_runs_as_what_is_suspended_is_deleted_by_our_pages(
    hub, service, suspended, hooks
):
    def home():
        return suspended.http.get(f"{hub.url}/hub/home", timeout=60).text

    assert "Resume my session" in home()
    service.put_aside(suspended.name)
    assert stopped_by_our_service(hub, suspended.name) == ""
    assert hooks.run() == ["post_stop"]
    assert "Resume my session" not in home()
    assert stopped_by_our_service(hub, suspended.name) == ""
    hub.start_server(suspended.name)
    assert hooks.run() == ["auth_state", "pre_spawn"]


def test_our_service_ends_no_start_that_has_begun(hub, service, amy, hooks):
    """What it asks for is of the session before."""
    hub.stop_server(amy.name)
    held = hub.folder / f"held-hook-of-{amy.name}"
    held.touch()
    with ThreadPoolExecutor() as others:
        start = others.submit(resume, hub, amy.name)
        wait_until(held.read_text, 30, hub.log)  # the hook of that start waits
        assert asked_by_our_service(hub, amy.name).status_code == 400
        held.unlink()
        assert start.result().status_code in {201, 202}
    hub.comes_up(amy.name)
    assert hooks.run().count("pre_spawn") == 1


def test_hook_of_an_end_does_not_run_where_the_service_has_not_said_so(
    hub, service, suspended, hooks
):
    service.put_aside(suspended.name)
    service.unanswered.add("plan-stop")
    hub.start_server(suspended.name)
    assert hooks.run() == ["auth_state", "pre_spawn"]


def test_hook_of_an_end_runs_once_where_a_suspended_server_is_deleted(
    hub, service, amy, hooks
):
    assert hub.api("POST", f"users/{amy.name}/servers/small-1").status_code == 201
    service.suspend(hub, amy.name, "small-1")
    hooks.run()
    gone = {"remove": True}
    answer = hub.api("DELETE", f"users/{amy.name}/servers/small-1", json=gone)
    assert answer.status_code == 204
    assert hooks.run() == ["post_stop small-1"]


def test_return_with_another_card_is_refused_by_name(hub, service, amy, card, hooks):
    _start_with(hub, amy, "0", card)
    service.suspend(hub, amy.name)
    card(amy, "1")
    answer = resume(hub, amy.name)
    assert answer.status_code == 409
    assert "CUDA_VISIBLE_DEVICES was 0 and would be 1" in answer.json()["message"]
    settled(hub, amy.name)
    assert pointer(hub, amy.name)["phase"] == "suspended"
    assert not any(
        body["checkpoint"] for call, body in service.calls if call == "placed"
    )
    card(amy, "0")
    hub.start_server(amy.name)


def test_return_without_a_card_of_a_hook_keeps_the_one_it_has(hub, service, amy, card):
    _start_with(hub, amy, "0", card)
    service.suspend(hub, amy.name)
    card(amy, None)
    assert comes_back(amy)


def test_link_of_a_course_leads_to_the_session_that_comes_back(hub, suspended):
    page = suspended.visit("/hub/user-redirect/api/status?of=the+course")
    assert page.status_code == 200
    assert page.url.endswith(f"/user/{suspended.name}/api/status?of=the+course")
    assert suspended.logins == 1


def _activity(hub, person):
    user = hub.api("GET", f"users/{person.name}?include_stopped_servers=1").json()
    return [user["last_activity"], user["servers"][""]["last_activity"]]


def test_activity_is_that_of_a_stop_and_of_a_start(hub, service, amy):
    before = _activity(hub, amy)
    service.capture(amy.name)
    assert _activity(hub, amy) == before
    hub.stop_server(amy.name)
    suspended = _activity(hub, amy)
    assert min(suspended) > max(before)
    time.sleep(1.1)
    assert _activity(hub, amy) == suspended  # nobody reports anything
    hub.start_server(amy.name)
    assert min(_activity(hub, amy)) > max(suspended)


OWN = """
c.JupyterHub.shutdown_on_logout = True
from jupyterhub.auth import DummyAuthenticator
import os
class Ours(DummyAuthenticator):
    def pre_spawn_start(self, user, spawner):
        note(user, f"start {spawner.reclaim_suspended}")
    def post_spawn_stop(self, user, spawner):
        note(user, f"stop {spawner.reclaim_suspended}")
    async def refresh_user(self, user, handler=None, **_):
        return not os.path.exists(os.path.join(FOLDER, f"expired-{user.name}"))
def note(user, hook):
    print(hook, file=open(os.path.join(FOLDER, f"hooks-of-{user.name}"), "a"))
c.JupyterHub.authenticator_class = Ours
c.DummyAuthenticator.password = c.Ours.password = PASSWORD
c.Authenticator.refresh_pre_spawn = c.Authenticator.refresh_pre_stop = True
"""


@pytest.mark.long
def test_logins_and_logouts_beside_a_suspended_session(own_service):
    """An authenticator's hooks come in pairs; a logout ends what runs, and no more."""
    folder = own_service.folder
    facts = f"\nFOLDER, PASSWORD = {str(folder)!r}, {PASSWORD!r}\n"
    hub = HubUnderTest(folder, own_service.config + facts + SERVICE + OWN).start()
    try:
        ann = hub.user("ann")
        hooks = Hooks(hub, ann)
        ann.start_server()
        assert hooks.run() == ["start False"]
        own_service.capture("ann")
        (folder / "expired-ann").touch()
        assert stopped_by_our_service(hub, "ann") == "suspended"
        assert hooks.run() == ["stop True"]
        # JupyterHub 6.1.1 fails here before it asks a spawner: no _token_authenticated.
        assert not ann.http.get(f"{hub.url}/hub/spawn/ann", timeout=60).ok
        assert pointer(hub, "ann")["phase"] == "suspended"
        assert hooks.run() == []
        (folder / "expired-ann").unlink()
        ann.http.get(f"{hub.url}/hub/logout", timeout=60)
        assert pointer(hub, "ann")["phase"] == "suspended"
        hub.start_server(ann.name)
        assert hooks.run() == ["start True"]
        hub.user("ann").http.get(f"{hub.url}/hub/logout", timeout=60)
        wait_until(lambda: not hub.server("ann")["ready"], 60, hub.log)
        assert hooks.run() == ["stop False"]
    finally:
        hub.close()


def test_example_of_a_hook_for_cards_gives_a_server_the_card_that_it_has():
    page = Path(__file__).parents[2] / "docs/reference/jupyterhub-traps.md"
    code = page.read_text().partition("```python\ncards")[2].partition("```")[0]
    c = SimpleNamespace(Spawner=SimpleNamespace())
    exec(f"cards{code}", {"c": c})

    def card(name):
        user = SimpleNamespace(name=name)
        spawner = SimpleNamespace(user=user, name="", environment={})
        c.Spawner.pre_spawn_hook(spawner)
        return spawner, spawner.environment["CUDA_VISIBLE_DEVICES"]

    (ann, first), (_, second) = card("ann"), card("bob")
    assert first != second
    assert card("ann")[1] == first  # it comes back
    c.Spawner.post_stop_hook(ann)
    assert card("eve")[1] == first
