"""A real agent for benchmarks; orders as the service gives them, with their times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from jupyterhub_gpu_reclaim.node import state_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Whom it looks after: ``session.Place`` says so to its init.
REALM = "benchmark"
LIMIT = 600.0
_START_SECONDS = 60.0


class Order:
    """What an order has answered, with the second at which each line came."""

    def __init__(self, lines: Iterator[str]) -> None:
        begun = time.monotonic()
        #: Seconds from the order until a step has ended, by its name.
        self.done: dict[str, float] = {}
        self.last: dict[str, Any] = {}
        for line in lines:
            self.last = json.loads(line)
            step = self.last.get("step")
            if step and step["state"] == "done":
                self.done[step["step"]] = time.monotonic() - begun
        self.seconds = time.monotonic() - begun

    def parts(self) -> str:
        """How long each step took, in order."""
        before, told = 0.0, []
        for name, at in self.done.items():
            told.append(f"{name} {at - before:.2f}")
            before = at
        return ", ".join(told)


class Agent:
    """A real agent with a state folder of its own.

    Args:
        folder: with a short path, as a socket stands in it.
        criu: folder of the private CRIU.
        store: where sessions are saved; None: in the folder.
        options: further ones of its command line.
    """

    def __init__(
        self,
        folder: Path,
        criu: Path,
        store: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        command = Path(sys.executable).with_name("jupyterhub-gpu-reclaim-agent")
        self._log = (folder / "log").open("wb")
        self.popen = subprocess.Popen(
            [
                command,
                f"--listen=unix:{folder}/socket",
                f"--AgentApp.store_url={store or folder / 'store'}",
                f"--AgentApp.token_file={folder}/token",
                f"--AgentApp.criu_dir={criu}",
                f"--AgentApp.realm={REALM}",
                *options,
            ],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, state_folder.VARIABLE: f"{folder}/state"},
        )
        deadline = time.monotonic() + _START_SECONDS
        while not ((folder / "token").exists() and (folder / "socket").exists()):
            if time.monotonic() > deadline or self.popen.poll() is not None:
                sys.exit((folder / "log").read_text())
            time.sleep(0.01)
        # As its service has it: one client, whose making takes as long as a preflight.
        transport = httpx.HTTPTransport(uds=str(folder / "socket"))
        self._client = httpx.Client(transport=transport, timeout=LIMIT)
        # As its service does: whether CRIU works is known before an order comes.
        self._client.get("http://agent/readyz")

    def order(self, what: str, answer: str = "", **body: object) -> Order:
        """An order on the benchmark's session.

        Args:
            what: ``capture``, ``release``, ``restore``, ``nap``, ``wake``.
            answer: what its last line must hold.
            body: of the request.
        """
        with self._client.stream(
            "POST",
            f"http://agent/v1/sessions/{REALM}/{what}",
            json=body,
            headers=self._headers(),
        ) as response:
            order = Order(line for line in response.iter_lines() if line)
        if response.status_code >= 400 or (answer and not order.last.get(answer)):
            sys.exit(f"{what}: {order.last}\n{(self._folder / 'log').read_text()}")
        return order

    def look(self) -> None:
        """Have it look at its sessions, as a service does every few seconds."""
        self._client.get("http://agent/v1/sessions", headers=self._headers())

    def _headers(self) -> dict[str, str]:
        token = (self._folder / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        """End it."""
        self._client.close()
        self.popen.terminate()
        self.popen.wait()
        self._log.close()
