"""The stack with a Hub that is set up in another way, as others have theirs."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support import light_server
from tests.support.stack import Stack


class OtherHub(Stack):
    """Whose Hub has some lines of configuration beside the demo's."""

    def __init__(self, folder: Path, lines: str, **settings: Any) -> None:
        command = settings.pop("server", light_server.COMMAND)
        super().__init__(
            folder, idle_after=0, sample_interval=2, server=command, **settings
        )
        self._demo = self.config
        self.config = self.folder / "other_hub.py"
        self._lines = lines

    def start_hub(self) -> None:
        of_demo = f"load_subconfig({str(self._demo)!r})\nc = get_config()\n"
        settings = f"settings = {self.settings!r}\n"
        self.config.write_text(of_demo + settings + self._lines)
        super().start_hub()


class WithSubdomains(OtherHub):
    """Whose users and services each have a host of their own, below localhost."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(
            folder,
            "host = f'http://hub.localhost:{settings[\"port\"]}'\n"
            "c.JupyterHub.subdomain_host = host\n",
            **settings,
        )
        self.url = f"http://hub.localhost:{self.port}"

    def host_of(self, user: str) -> str:
        return f"http://{user}.hub.localhost:{self.port}"

    @property
    def service_url(self) -> str:
        host = f"http://gpu-reclaim--service.hub.localhost:{self.port}"
        return f"{host}/services/gpu-reclaim"


def resolve_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find all hosts below localhost here, as browsers do (RFC 6761)."""
    found = socket.getaddrinfo

    def getaddrinfo(host: Any, *words: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and name.endswith(".localhost"):
            name = "127.0.0.1"
        return found(name, *words, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
