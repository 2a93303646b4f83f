"""The service as a real JupyterHub runs it: login, scopes, the Hub's death and its own.

The agent is a double that knows three suspended sessions and nothing else: what the
service shows of them came the whole way, over the agent's wire format, the journal and
the Hub.
"""

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import requests
from msgspec.structs import replace

from demo.stack import free_port
from jupyterhub_gpu_reclaim.common.auth.scopes import STOPS_ALL
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, HubState, SessionKey
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from tests.support.checkpoints import checkpoint
from tests.support.hub import HubUnderTest, wait_until
from tests.support.keeping_agent import TOKEN, AgentThatOnlyKeeps

PAGE = "/services/gpu-reclaim/"
WHEN = {"generation": 3, "created": 1_700_000_000.0}
SAVED = checkpoint(
    "ckpt-of-ada", SessionKey("ada", "train"), logical_bytes=1_500_000_000, **WHEN
)
#: Of people who are deleted while the service cannot be asked, or are not.
DORA, EMIL = (
    replace(SAVED, id=f"ckpt-of-{user}", key=SessionKey(user), incarnation=f"i-{user}")
    for user in ("dora", "emil")
)
#: A server that says yes to everything.
SERVER = """
import http.server, os, urllib.parse
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
url = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.HTTPServer(("127.0.0.1", url.port), Handler).serve_forever()
"""
CONFIG = """
from jupyterhub_gpu_reclaim.hub.config import configure
c.JupyterHub.load_groups = {{"course-101": {{"users": ["carl"]}}}}
c.Spawner.cmd = ["python3", "-c", {server!r}]
c.Spawner.get_args = lambda: []
# the Hub looks after its services every 30 s, which no setting changes
from jupyterhub.services.service import _ServiceSpawner
_ServiceSpawner.poll_interval = 1
configure(
    c,
    agent="{agent}",
    agent_token_file="{folder}/agent.token",
    state_dir="{folder}/state",
    service_port={service},
    sample_interval=1,
    rules=[{{"group": "course-*", "idle_after": 60}}],
    service_environment={{"GPU_RECLAIM_TEST": "{folder}"}},
)
"""


class Stack:
    """A Hub with our service, and the agent's double, which has these checkpoints."""

    def __init__(
        self, folder: Path, *saved: CheckpointInfo, server: str = SERVER
    ) -> None:
        self.agent = AgentThatOnlyKeeps(folder, *saved)
        self.port = free_port()
        (folder / "agent.token").write_text(TOKEN)
        config = CONFIG.format(
            agent=self.agent.address, folder=folder, service=self.port, server=server
        )
        self.hub = HubUnderTest(folder, config)
        self.hub.start()
        try:  # the Hub does not wait for it
            wait_until(self.hub.service_ready, 60, self.hub.log)
        except BaseException:
            self.close()
            raise

    @property
    def service(self) -> str:
        return self.hub.url + PAGE

    def pids(self) -> list[int]:
        return [
            pid
            for pid in self.hub.marked()
            if b"jupyterhub_gpu_reclaim.service"
            in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def token(self, user: str, **more: object) -> dict[str, str]:
        if self.hub.api("GET", f"users/{user}").status_code == 404:
            assert self.hub.api("POST", f"users/{user}").ok
        made = self.hub.api("POST", f"users/{user}/tokens", json=more)
        assert made.ok, made.text
        return {"Authorization": f"token {made.json()['token']}"}

    def sessions(self, headers: dict[str, str]) -> list[dict]:
        answer = requests.get(
            self.service + "api/sessions", headers=headers, timeout=20
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> None:
        self.hub.close()
        self.agent.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """One Hub for this file; it comes up again after each killing."""
    stack = Stack(tmp_path_factory.mktemp("hub"), SAVED, DORA, EMIL)
    try:
        yield stack
    finally:
        stack.close()


def test_saved_session_is_found_and_shown_to_its_user(stack):
    ada = stack.token("ada")
    wait_until(lambda: stack.sessions(ada), 30, stack.hub.log)
    (view,) = stack.sessions(ada)
    assert view["phase"] == "suspended"
    assert view["checkpoint"] == SAVED.id
    assert stack.sessions(stack.token("bob")) == []


def test_administrator_of_the_hub_sees_all_with_a_token_that_may_stop_all(stack):
    admin = stack.token("admin")
    wait_until(lambda: stack.sessions(admin), 30, stack.hub.log)
    limited = stack.token("admin", scopes=["access:services!service=gpu-reclaim"])
    assert stack.sessions(limited) == []
    enough = stack.token(
        "admin", scopes=["access:services!service=gpu-reclaim", STOPS_ALL]
    )
    assert len(stack.sessions(enough)) == 3


def test_page_shows_all_to_the_hubs_administrators_and_to_nobody_else(stack):
    """Their login at the page has that scope of theirs, and no other."""
    for name, status in (("admin", 200), ("bob", 403)):
        http = stack.hub.user(name).http
        assert http.get(f"{stack.service}all", timeout=30).status_code == status


def test_hub_tells_groups_and_options_to_whom_it_gives_our_scopes(stack):
    token = (stack.hub.folder / "state" / "service.token").read_text().strip()
    hub = HubClient(f"{stack.hub.url}/hub/api", token)
    key = SessionKey("carl", "train")
    stack.token("carl")
    options = {"profile": "h100", "gpu_reclaim": ["off"], "deep": {"a": 1}}
    assert stack.hub.api("POST", "users/carl/servers/train", json=options).ok
    try:
        wait_until(
            lambda: asyncio.run(hub.servers()).get(key) is HubState.RUNNING,
            30,
            stack.hub.log,
        )
        assert hub.groups("carl") == ["course-101"]
        told = hub.options(key)
        assert (told["profile"], told["gpu_reclaim"]) == (["h100"], ["off"])
    finally:
        assert stack.hub.api("DELETE", "users/carl/servers/train").ok
        hub.close()
    assert (hub.groups("nobody"), hub.options(SessionKey("nobody"))) == (None, None)


def test_person_logs_in_once_and_sees_the_card(stack):
    ada = stack.hub.user("ada")
    page = ada.http.get(stack.service, timeout=30)
    assert page.status_code == 200
    assert page.url == stack.service
    assert 'data-session="ada/train"' in page.text
    assert "1.5 GB" in page.text
    for address in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        if "static" in address or "logo" in address:
            answer = requests.get(stack.hub.url + address, timeout=60)
            assert answer.status_code == 200, address


def test_events_pass_the_proxy_at_once(stack):
    with requests.get(
        stack.service + "api/events",
        headers=stack.token("ada"),
        stream=True,
        timeout=20,
    ) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        lines = stream.iter_lines()
        data = next(line for line in lines if line.startswith(b"data: "))
        view = json.loads(data.removeprefix(b"data: "))
        assert view["key"] == {"user": "ada", "server": "train"}


def test_metrics_come_from_the_running_orchestrator(stack):
    address = stack.service + "metrics"
    assert requests.get(address, timeout=60).status_code == 401
    answer = requests.get(address, headers=stack.token("admin"), timeout=60)
    assert 'sessions{phase="suspended"} 3.0' in answer.text
    assert "sample_age_seconds" in answer.text


def test_service_may_ask_the_hub_all_it_needs(stack):
    log = stack.hub.log()
    assert "hub_unreachable" not in log
    assert not re.search(r"\] 403 .*gpu-reclaim", log)


def test_hub_that_is_killed_takes_the_service_along_and_starts_a_new_one(stack):
    ada = stack.hub.user("ada")
    assert ada.http.get(stack.service, timeout=30).ok
    before = stack.pids()
    assert len(before) == 1
    stack.hub.kill()
    wait_until(lambda: not stack.pids(), 20, stack.hub.log)
    stack.hub.start()
    wait_until(stack.hub.service_ready, 30, stack.hub.log)
    assert len(stack.pids()) == 1
    assert stack.pids() != before
    # the login of the browser outlives it: no redirect to the Hub
    page = ada.http.get(stack.service, timeout=30, allow_redirects=False)
    assert page.status_code == 200


def test_killed_service_has_its_journal_again_and_deletes_who_was_deleted_meanwhile(
    stack,
):
    hub, agent = stack.hub, stack.agent
    assert [view["phase"] for view in stack.sessions(stack.token("dora"))] == [
        "suspended"
    ]
    stack.token("emil")
    (pid,) = stack.pids()
    os.kill(pid, signal.SIGSTOP)  # it takes calls and answers none
    assert hub.api("DELETE", "users/dora").status_code == 204
    os.kill(pid, signal.SIGKILL)  # with all that it was told and has not read
    assert {*agent.saved} == {SAVED.id, DORA.id, EMIL.id}

    wait_until(lambda: stack.pids() not in ([], [pid]), 60, hub.log)
    wait_until(hub.service_ready, 60, hub.log)
    wait_until(lambda: {*agent.saved} == {SAVED.id, EMIL.id}, 60, hub.log)
    assert stack.sessions(stack.token("dora")) == []  # somebody else
    for user in ("ada", "emil"):
        (view,) = stack.sessions(stack.token(user))
        assert view["phase"] == "suspended"
    wait_until(lambda: not [*hub.folder.glob("state/deletions/*.json")], 30, hub.log)


def test_secrets_are_in_no_log_and_no_process_list(stack):
    folder = stack.hub.folder
    secrets = [
        (folder / "state" / name).read_text().strip()
        for name in ("spawner.token", "service.token")
    ] + ["token-of-the-agent"]
    log = stack.hub.log()
    commands = [Path(f"/proc/{p}/cmdline").read_text() for p in stack.hub.marked()]
    for secret in secrets:
        assert secret not in log
        assert not any(secret in command for command in commands)


def test_hub_that_ends_is_not_held_up_by_the_service(stack):
    with requests.get(
        stack.service + "api/events",
        headers=stack.token("ada"),
        stream=True,
        timeout=20,
    ):
        begun = time.monotonic()
        stack.hub.terminate()
        assert time.monotonic() - begun < 15
        assert stack.pids() == []
    log = stack.hub.log()
    assert "the end took longer" not in log
    assert "Unclosed" not in log
    ours = [line for line in log.splitlines() if " jupyterhub_gpu_reclaim." in line]
    assert any("service: ready" in line for line in ours)
    assert not [line for line in ours if "Z E " in line or "Z C " in line]
