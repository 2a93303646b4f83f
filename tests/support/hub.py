"""A real JupyterHub with a real proxy in a temporary folder, for any test.

``HubUnderTest`` starts it with a few lines of configuration on top, kills and restarts
it, and at the end ends everything that carries its mark, by pid. People and programs
are played by ``demo.user.User`` (``hub.user("amy")``) and ``hub.api(...)``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from demo.stack import free_port
from demo.user import User
from tests.support import light_server, preloaded

BIN = Path(sys.executable).parent
MARK = "GPU_RECLAIM_TEST"
PASSWORD = "open sesame"
API_TOKEN = "token-of-the-test-service-0123456789"
CULLER_TOKEN = "token-of-the-culler-0123456789abcdef"

BASE = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_api_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.db_url = "sqlite:///{folder}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = False
c.JupyterHub.services = [
    {{"name": "tests", "api_token": {api_token!r}}},
    {{"name": "cull-idle", "api_token": {culler_token!r}}},
]
c.JupyterHub.load_roles = [{{
    "name": "tests",
    "services": ["tests"],
    "scopes": ["admin:users", "admin:servers", "tokens", "admin:server_state"],
}}, {{
    "name": "cull-idle",
    "services": ["cull-idle"],
    "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers",
               "admin:users"],
}}]
c.Spawner.environment = {{{mark!r}: "{folder}", "JUPYTER_PLATFORM_DIRS": "1"}}
c.Spawner.cmd = {server!r}
c.Spawner.http_timeout = 60
c.Spawner.start_timeout = 90
c.SessionProcessSpawner.realm = "{folder}"
c.SessionProcessSpawner.run_as_hub_user = True
from jupyterhub_gpu_reclaim.hub.local.spawner import SessionProcessSpawner
SessionProcessSpawner.homes = "{folder}/homes/{{username}}"
# What it waits for, it would look at every five seconds in the end.
from jupyterhub.utils import exponential_backoff
first, factor, longest, *times = exponential_backoff.__defaults__
exponential_backoff.__defaults__ = (first, factor, min(0.4, longest), *times)
"""


def proxy_command() -> str | None:
    candidates = [
        os.environ.get("CONFIGURABLE_HTTP_PROXY"),
        shutil.which("configurable-http-proxy"),
        Path(__file__).parents[2]
        / "scripts/proxy/node_modules/.bin/configurable-http-proxy",
    ]
    return next((str(c) for c in candidates if c and Path(c).exists()), None)


class HubUnderTest:
    def __init__(
        self, folder: Path, config: str = "", env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.env = env or {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        proxy = proxy_command()
        assert proxy, "configurable-http-proxy is not installed (npm install)"
        self._base = BASE.format(
            port=self.port,
            hub_port=free_port(),
            proxy_api_port=free_port(),
            proxy=proxy,
            folder=folder,
            password=PASSWORD,
            api_token=API_TOKEN,
            culler_token=CULLER_TOKEN,
            mark=MARK,
            server=light_server.COMMAND,
        )
        self.configure(config)
        self.process: preloaded.Started | None = None
        self._read_from = 0

    def configure(self, config: str) -> None:
        (self.folder / "jupyterhub_config.py").write_text(self._base + config)

    # --- life --------------------------------------------------------------------

    def start(self, seconds: float = 90) -> HubUnderTest:
        with (self.folder / "hub.log").open("ab") as log:
            self.process = preloaded.start(
                preloaded.HUB,
                ["jupyterhub", f"--config={self.folder / 'jupyterhub_config.py'}"],
                log=log.fileno(),
                env={
                    **os.environ,
                    "PATH": f"{BIN}:{os.environ['PATH']}",
                    MARK: str(self.folder),
                    **self.env,
                },
                cwd=self.folder,
            )
        wait_until(self._answers, seconds, self.log)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the Hub ended:\n{self.log()[-4000:]}"
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/hub/api/", timeout=60).ok
        return False

    def service_ready(self) -> bool:
        """Whether our service, which this Hub does not wait for, has begun to work."""
        with contextlib.suppress(requests.RequestException):
            health = f"{self.url}/services/gpu-reclaim/readyz"
            return requests.get(health, timeout=60).ok
        return False

    def kill(self) -> None:
        """SIGKILL to the Hub alone; proxy and sessions live on."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self, how: str = "kill") -> None:
        getattr(self, how)()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        self.process = None

    def close(self) -> None:
        """End the Hub and everything that carries this Hub's mark, by pid."""
        self._end(signal.SIGTERM)
        for _ in range(3):
            for pid in self.marked():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def marked(self) -> list[int]:
        mine = f"{MARK}={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or int(entry.name) == os.getpid():
                    continue
                if mine in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    # --- looking and doing ---------------------------------------------------------

    def log(self) -> str:
        path = self.folder / "hub.log"
        if not path.exists():
            return ""
        with path.open(errors="replace") as log:
            log.seek(self._read_from)
            return log.read()

    def begin_log(self) -> None:
        """Leave out of the log what is in it now; for tests that share a Hub."""
        path = self.folder / "hub.log"
        self._read_from = path.stat().st_size if path.exists() else 0

    def user(self, name: str) -> User:
        user = User(self.url, name, PASSWORD)
        user.login()
        return user

    def api(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", 60)
        return requests.request(
            method,
            f"{self.url}/hub/api/{path.lstrip('/')}",
            headers={"Authorization": f"token {API_TOKEN}"},
            **kwargs,
        )

    def server(self, user: str, name: str = "") -> dict[str, Any] | None:
        model = self.api("GET", f"users/{quote(user)}?include_stopped_servers=1").json()
        found = model.get("servers", {}).get(name)
        return dict(found) if found else None

    def start_server(self, user: str, name: str = "") -> None:
        """By the API; it is ready then."""
        where = f"servers/{quote(name)}" if name else "server"
        answer = self.api("POST", f"users/{quote(user)}/{where}")
        assert answer.status_code in {201, 202}, answer.text
        self.comes_up(user, name)

    def comes_up(self, user: str, name: str = "") -> None:
        up = lambda: (self.server(user, name) or {}).get("ready")  # noqa: E731
        wait_until(up, 60, self.log)

    def stop_server(self, user: str, name: str = "") -> requests.Response:
        where = f"servers/{quote(name)}" if name else "server"
        answer = self.api("DELETE", f"users/{quote(user)}/{where}")
        wait_until(lambda: self._stopped(user, name), 60, self.log)
        return answer

    def cull(self, *options: str, until: Any = None, rounds: int = 3) -> int:
        """Run jupyterhub-idle-culler for a few rounds, or until something is so."""
        looks = self._looks_of_cullers() + rounds + 1  # who looks again has ended one
        enough = until or (lambda: self._looks_of_cullers() >= looks)
        with (self.folder / "culler.log").open("ab") as log:
            culler = subprocess.Popen(
                [BIN / "jupyterhub-idle-culler", *options],
                env={
                    **os.environ,
                    "JUPYTERHUB_API_TOKEN": CULLER_TOKEN,
                    "JUPYTERHUB_API_URL": f"{self.url}/hub/api",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                wait_until(lambda: culler.poll() is not None or enough(), 60, self.log)
                return culler.poll() or 0
            finally:
                culler.kill()
                culler.wait(60)

    def _looks_of_cullers(self) -> int:
        return len(re.findall(r"GET /hub/api/users.*cull-idle", self.log()))

    def _stopped(self, user: str, name: str) -> bool:
        server = self.server(user, name)
        return server is None or (server["stopped"] and not server["pending"])


def wait_until(condition: Any, seconds: float, told: Any = lambda: "") -> Any:
    """Wait for a condition; its value. Fails with the end of ``told()``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.1)
    # Without what the Hub answers well, over and over.
    lines = [line for line in told().splitlines() if " 200 GET /" not in line]
    end = "\n".join(lines)[-6000:]
    raise AssertionError(f"not within {seconds} s: {condition}\n{end}")
