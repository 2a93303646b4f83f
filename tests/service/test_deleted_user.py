"""A user who is deleted in a real Hub while the real service cannot be asked.

The agent is a double that keeps checkpoints and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from demo.stack import free_port
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
from tests.support.hub import HubUnderTest, wait_until
from tests.support.keeping_agent import TOKEN, AgentThatOnlyKeeps

PAGE = "/services/gpu-reclaim/"
CONFIG = """
from jupyterhub_gpu_reclaim.hub.config import configure
# the Hub looks after its services every 30 s, which no setting changes
from jupyterhub.services.service import _ServiceSpawner
_ServiceSpawner.poll_interval = 1
configure(
    c,
    agent="http://127.0.0.1:{agent}",
    agent_token_file="{folder}/agent.token",
    state_dir="{folder}/state",
    service_port={service},
    sample_interval=0.5,
    service_environment={{"GPU_RECLAIM_TEST": "{folder}"}},
)
"""


def _checkpoint(user: str) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"ckpt-of-{user}",
        key=SessionKey(user),
        incarnation=f"i-{user}",
        generation=1,
        created=1_700_000_000.0,
        logical_bytes=1,
        stored_bytes=1,
    )


class Stack:
    """A Hub with our spawner and our service."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentThatOnlyKeeps(_checkpoint("ada"), _checkpoint("bob"))
        (folder / "agent.token").write_text(TOKEN)
        self.hub = HubUnderTest(
            folder,
            CONFIG.format(
                agent=self.agent.server_port, folder=folder, service=free_port()
            ),
        )
        self.hub.start(180)

    def pid(self) -> int:
        (pid,) = [
            pid
            for pid in self.hub.marked()
            if b"gpu_reclaim.service.app" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return pid

    def sessions(self, user: str) -> list[str]:
        """The phases of what that user sees."""
        made = self.hub.api("POST", f"users/{user}/tokens")
        headers = {"Authorization": f"token {made.json()['token']}"}
        answer = requests.get(
            f"{self.hub.url}{PAGE}api/sessions", headers=headers, timeout=30
        )
        assert answer.ok, answer.text
        return [view["phase"] for view in answer.json()]

    def close(self) -> None:
        self.hub.close()
        self.agent.close()


@pytest.fixture
def stack(tmp_path):
    stack = Stack(tmp_path)
    try:
        yield stack
    finally:
        stack.close()


def test_user_deleted_while_the_service_was_down_is_deleted_when_it_is_back(stack):
    hub = stack.hub
    for user in ("ada", "bob"):
        assert hub.api("POST", f"users/{user}").ok
    wait_until(hub.service_ready, 120, hub.log)
    wait_until(lambda: stack.sessions("ada") == ["suspended"], 60, hub.log)
    pid = stack.pid()
    os.kill(pid, signal.SIGSTOP)  # it takes calls and answers none
    assert hub.api("DELETE", "users/ada").status_code == 204
    os.kill(pid, signal.SIGKILL)  # with all that it was told and has not read
    assert set(stack.agent.saved) == {"ckpt-of-ada", "ckpt-of-bob"}

    wait_until(lambda: set(stack.agent.saved) == {"ckpt-of-bob"}, 120, hub.log)
    wait_until(hub.service_ready, 120, hub.log)
    assert hub.api("POST", "users/ada").ok  # somebody else
    assert stack.sessions("ada") == []
    assert stack.sessions("bob") == ["suspended"]
    assert list(hub.folder.glob("state/deletions/*.json")) == []
