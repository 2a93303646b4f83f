"""A Hub with our service and its own limits shortened, for tests that make it fail."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
import requests

from demo.stack import free_port
from tests.support.hub import HubUnderTest, proxy_command
from tests.support.relaunching_service import RelaunchingService

#: What the Hub runs before every Python of the service: see ``Stack.hold``.
SITE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
if (folder / "hung").exists():
    from jupyterhub_gpu_reclaim.service.process import lifeline
    lifeline.HUNG_SECONDS = float((folder / "hung").read_text())
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(60))  # on the event loop
while (folder / "slow").exists():
    time.sleep(0.1)
if (folder / "deadly").exists():
    os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
from jupyterhub_gpu_reclaim.hub.config import configure
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
"""


class Stack:
    def __init__(self, folder: Path, double: RelaunchingService | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(SITE.format(folder=str(folder)))
        (folder / "agent.token").write_text("token-of-the-agent")
        self.hub = HubUnderTest(folder, double.config if double else "")

    def start(self, more: str = "") -> None:
        self.hub.configure(CONFIG.format(folder=self.folder, port=self.port, more=more))
        self.hub.start()

    def ask(self, path: str) -> requests.Response:
        url = f"{self.hub.url}/services/gpu-reclaim/{path}"
        return requests.get(url, timeout=20, allow_redirects=False)

    def ready(self) -> bool:
        try:
            return self.ask("readyz").status_code == 200
        except requests.Timeout:  # while nobody is there, who asks waits
            return False

    def lives(self) -> bool:
        return self.hub.process is not None and self.hub.process.poll() is None

    def service(self) -> int:
        """Pid of the service; 0: there is none."""
        for pid in self.hub.marked():
            with contextlib.suppress(OSError):
                if (
                    "jupyterhub_gpu_reclaim.service"
                    in Path(f"/proc/{pid}/cmdline").read_text()
                ):
                    return pid
        return 0

    def end_service(self, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.service()
        assert pid
        os.kill(pid, number)
        return pid


def stack(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    stack = Stack(tmp_path)
    try:
        yield stack
    finally:
        stack.hub.close()
