"""A Hub with our service and its own limits shortened, for tests that make it fail."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from demo.stack import free_port
from tests.support.hub import HubUnderTest, proxy_command

if TYPE_CHECKING:
    from tests.support.relaunching_service import RelaunchingService

#: What the Hub runs before every Python of the service: see ``Stack.hold``.
SITE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
if (folder / "hung").exists():
    from jupyterhub_gpu_reclaim.service.process import reporting
    reporting.HUNG_SECONDS = float((folder / "hung").read_text())
if "jupyterhub_gpu_reclaim.service.app" in " ".join(sys.orig_argv):
    while (folder / "slow").exists():
        time.sleep(0.1)
    if (folder / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
"""
#: The Hub's own limits are shortened, so that nobody waits 30 s for its end.
CONFIG = """
from jupyterhub.services.service import Service, _ServiceSpawner
from jupyterhub_gpu_reclaim.hub.config import configure
_ServiceSpawner.poll_interval = 1
configure(
    c,
    agent="unix:{folder}/agent.sock",
    agent_token_file="{folder}/agent.token",
    state_dir="{folder}/state",
    service_port={port},
    service_environment={{
        "PYTHONPATH": "{folder}/site",
        "GPU_RECLAIM_TEST": "{folder}",
    }},
    {more}
)
if hasattr(Service, "timeout"):  # JupyterHub 6
    c.JupyterHub.services[-1]["timeout"] = {patience}
"""


class Stack:
    """A Hub with our service, which a test makes fail."""

    def __init__(self, folder: Path, double: RelaunchingService | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(SITE.format(folder=str(folder)))
        (folder / "agent.token").write_text("token-of-the-agent")
        self.hub = HubUnderTest(folder, double.config if double else "")

    def start(self, more: str = "", patience: int = 8) -> None:
        """Start the Hub with these arguments of ``configure`` on top."""
        self.hub.configure(
            CONFIG.format(
                folder=self.folder, port=self.port, more=more, patience=patience
            )
        )
        self.hub.start()

    def ask(self, path: str) -> requests.Response:
        """Ask the service through the proxy."""
        url = f"{self.hub.url}/services/gpu-reclaim/{path}"
        return requests.get(url, timeout=20, allow_redirects=False)

    def ready(self) -> bool:
        try:
            return self.ask("readyz").status_code == 200
        except requests.Timeout:  # while nobody is there, who asks waits
            return False

    def lives(self) -> bool:
        return self.hub.process is not None and self.hub.process.poll() is None

    def program(self, word: str) -> list[int]:
        """Pids of the service's processes whose command has this word."""
        found = []
        for pid in self.hub.marked():
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found


def stack(tmp_path):
    """A Hub that has not been started."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    stack = Stack(tmp_path)
    try:
        yield stack
    finally:
        stack.hub.close()
