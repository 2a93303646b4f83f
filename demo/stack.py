"""Agent and Hub (with its service and proxy) as this machine's own processes.

Used by ``make demo``, ``make demo-check`` and the end-to-end tests. Everything lies in
one folder, listens on 127.0.0.1 only, and is ended by pid.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import requests

from demo import causes, processes
from jupyterhub_gpu_reclaim.common.term import TERM
from jupyterhub_gpu_reclaim.node import state_folder

if TYPE_CHECKING:
    from types import TracebackType

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
#: For a program that imports something of the demo's.
PATH = {"PYTHONPATH": str(HERE.parent)}

#: The first port of an outgoing connection (ip(7), ip_local_port_range).
_EPHEMERAL = 32_768


class StackError(RuntimeError):
    """A part did not start; the text says which, why, and where its log is."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses, nor gets by chance.

    It lies below the ports that the kernel gives to outgoing connections, as it is set
    up on most machines: what is started on it later, or once more, finds it free.
    """
    while True:
        port = random.randrange(10_000, _EPHEMERAL)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Stack:
    """One Hub, one service, one agent, in one folder.

    Args:
        folder: for state, store, logs and homes; made if it is not there.
        simulated_gpus: whether its agent has simulated GPUs (``simulated_gpu.py``)
            in place of the machine's.
        settings: what ``demo/jupyterhub_config.py`` reads: ``idle_after`` and so on.
    """

    #: What the Hub is started with.
    config = HERE / "jupyterhub_config.py"
    #: How many times longer a part may take to start and to end, on a busy machine.
    patience = 1.0

    def __init__(
        self, folder: Path, *, simulated_gpus: bool = False, **settings: Any
    ) -> None:
        self.simulated_gpus = simulated_gpus
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.port = settings.pop("port", None) or free_port()
        base_url = settings.setdefault("base_url", "/")
        self.url = f"http://127.0.0.1:{self.port}{base_url.rstrip('/')}"
        self.password = secrets.token_urlsafe(9)
        self.settings = {
            "port": self.port,
            "hub_port": free_port(),
            "proxy_api_port": free_port(),
            "service_port": free_port(),
            "password": self.password,
            "folder": str(self.folder),
            **settings,
        }
        if simulated_gpus:  # a notebook imports what holds memory there
            self.settings["environment"] = {**settings.get("environment", {}), **PATH}
        self.criu = Path(
            os.environ.get("GPU_RECLAIM_CRIU", HERE.parent / ".cache/criu")
        )
        self.parts: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start agent and Hub, and wait until both answer."""
        self.start_agent()
        self.start_hub()

    def stop(self) -> None:
        """End the Hub, then every session, then the agent."""
        self.end("hub", signal.SIGTERM)
        self.end_sessions()
        self.end("agent", signal.SIGTERM)
        left = processes.end_all(self.folder)
        if left:
            raise StackError(f"Processes {left} could not be ended.")

    # --- parts ---------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """Where people find the service."""
        return f"{self.url}/services/gpu-reclaim"

    @property
    def agent_socket(self) -> Path:
        """Where the agent listens."""
        return self.folder / "agent.sock"

    def start_agent(self) -> None:
        """Start the agent and wait for its health."""
        self.begin_agent()
        self._until("agent", lambda: self.agent("GET", "/healthz") is not None)

    def begin_agent(self) -> None:
        """Start the agent; it settles what a former one left before it answers."""
        program = [str(BIN / "jupyterhub-gpu-reclaim-agent")]
        env = {**os.environ, state_folder.VARIABLE: str(self.folder / "agent")}
        if self.simulated_gpus:
            program, env = [sys.executable, "-m", "demo.agent"], env | PATH
        self._run(
            "agent",
            [
                *program,
                f"--AgentApp.listen=unix:{self.agent_socket}",
                f"--AgentApp.store_url={self.folder / 'store'}",
                f"--AgentApp.token_file={self.folder / 'agent.token'}",
                f"--AgentApp.criu_dir={self.criu}",
                f"--AgentApp.realm={self.folder}",
            ],
            env=env | processes.mark(self.folder),
        )

    def start_hub(self) -> None:
        """Start the Hub, its proxy and the service, and wait for all three."""
        (self.folder / "settings.json").write_text(json.dumps(self.settings))
        env = {
            **os.environ,
            **processes.mark(self.folder),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        self._run(
            "hub",
            [
                str(BIN / "jupyterhub"),
                "--config",
                str(self.config),
            ],
            env=env,
        )
        self._until("hub", self._hub_answers, seconds=120)

    def _hub_answers(self) -> bool:
        health = requests.get(
            f"http://127.0.0.1:{self.settings['hub_port']}{self.settings['base_url']}hub/health",
            timeout=5,
        )
        page = requests.get(f"{self.service_url}/readyz", timeout=5)
        return health.ok and page.ok

    def kill(self, part: str) -> None:
        """SIGKILL one part: hub, agent, service or proxy.

        Raises:
            StackError: there is none, though the Hub runs, which starts it.
        """
        if part in {"service", "proxy"}:
            pids = self.service_pids() if part == "service" else self.proxy_pids()
            if not pids and "hub" in self.parts:
                raise StackError(f"There is no {part} to kill.")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        else:
            self.end(part, signal.SIGKILL)

    def end(self, part: str, how: signal.Signals) -> None:
        """End a part of ours and wait for it."""
        process = self.parts.pop(part, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10 * self.patience)

    def end_sessions(self) -> None:
        """Kill every session of this stack through the agent, if that is there."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            # Above the service's, for the agent takes no orders of others beside it.
            term = (self.agent("GET", "/v1/status") or {}).get("term", 0) + 1
            for tree in self.trees():
                session = f"/v1/sessions/{tree['incarnation']}"
                self.agent("POST", f"{session}/cancel", term=term)  # what is in hand
                self.agent("POST", f"{session}/kill", term=term)

    # --- looking -------------------------------------------------------------------

    def agent(self, method: str, path: str, body: Any = None, *, term: int = 0) -> Any:
        """Call the agent's API over its socket; None when it answers an error."""
        token = (self.folder / "agent.token").read_text().strip()
        call = _UnixConnection("localhost", timeout=60)
        call.path = str(self.agent_socket)
        try:
            call.request(
                method,
                path,
                json.dumps(body or {}) if method == "POST" else None,
                {
                    "Authorization": f"Bearer {token}",
                    **({TERM: f"{term} stack"} if term else {}),
                },
            )
            answer = call.getresponse()
            text = answer.read()
        finally:
            call.close()
        return json.loads(text) if answer.status < 400 and text else None

    def trees(self) -> list[dict[str, Any]]:
        """What the agent knows of sessions' processes on this machine."""
        return list(self.agent("GET", "/v1/sessions") or [])

    def log(self, part: str) -> str:
        """The log of a part so far."""
        path = self.log_path(part)
        return path.read_text(errors="replace") if path.exists() else ""

    def log_path(self, part: str) -> Path:
        """Where a part writes its log."""
        return self.folder / f"{part}.log"

    def service_pids(self) -> list[int]:
        """The service of this stack (the Hub starts it)."""
        return processes.of(self.folder, "jupyterhub_gpu_reclaim.service")

    def proxy_pids(self) -> list[int]:
        """The proxy of this stack (the Hub starts it)."""
        return processes.of(self.folder, "configurable-http-proxy")

    # --- helpers -------------------------------------------------------------------

    def _run(self, part: str, command: list[str], env: dict[str, str]) -> None:
        with self.log_path(part).open("ab") as log:
            self.parts[part] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _until(self, part: str, ready: Any, seconds: float = 30) -> None:
        seconds *= self.patience
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(requests.RequestException, OSError):
                if ready():
                    return
            if self.parts[part].poll() is not None:
                raise self.failure(part, "did not start")
            time.sleep(0.1)
        raise self.failure(part, f"did not answer within {seconds:.0f} s")

    def failure(self, part: str, what: str) -> StackError:
        """What became of a part, and why, in a sentence."""
        why = causes.cause(self.log(part)) or "its log names no error"
        log = self.folder / f"{part}.log"
        return StackError(f"The {part} {what}: {why}.\n  Its log: {log}")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    path: str

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)
