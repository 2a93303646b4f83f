"""Fixtures: one real Hub with our spawner on the relaunching service (see support/).

The Hub is shared by a module's tests, so every test takes a person of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.hub import HubUnderTest, proxy_command
from tests.support.relaunching_service import RelaunchingService

#: A server that says who and where it is.
PROGRAM = """
import http.server, json, os, resource, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        facts = {
            "ids": [*os.getresuid(), *os.getresgid()],
            "groups": os.getgroups(),
            "cwd": os.getcwd(),
            "env": dict(os.environ),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "cgroup": open("/proc/self/cgroup").read(),
        }
        body = json.dumps(facts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
print("hello from the session", flush=True)
url = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.HTTPServer(("127.0.0.1", url.port), Handler).serve_forever()
"""

#: Of a service of our own name, whose program is the double.
SERVICE_TOKEN = "token-of-our-service-0123456789abcdef"
SERVICE = f"""
c.JupyterHub.services.append({{"name": "gpu-reclaim", "api_token": {SERVICE_TOKEN!r}}})
c.JupyterHub.load_roles.append({{
    "name": "gpu-reclaim", "services": ["gpu-reclaim"], "scopes": ["delete:servers"],
}})
"""
CONFIG = """
c.Spawner.poll_interval = 1
async def form(spawner):
    return "<input name=size>" if spawner.user.name.startswith("picky") else ""
c.Spawner.options_form = form
def limit_files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (321, 4096))
def failing(spawner, moment):
    # what a test has written down, and would end a Hub that counted it
    file = os.path.join(FOLDER, f"{moment}-of-{spawner.user.name}")
    if os.path.exists(file):
        spawner.consecutive_failure_limit = 1
        kind, _, words = open(file).read().partition(" ")
        raise {"lost": RuntimeError, "group": functools.partial(web.HTTPError, 403)}[
            kind
        ](words)
def small_server(spawner):
    failing(spawner, "hook")
    if os.path.exists(os.path.join(FOLDER, f"impatient-{spawner.user.name}")):
        spawner.start_timeout, spawner.consecutive_failure_limit = 2, 1
    name = spawner.user.name
    if spawner.name == "mute":
        spawner.cmd, spawner.get_args = ["sleep", "600"], lambda: []
    if name not in ("games", "ghost", "shelly"):
        return
    spawner.cmd = ["/usr/bin/python3", "-c", PROGRAM]
    spawner.run_as_hub_user = name == "shelly"
    spawner.get_args = lambda: []
    if name == "shelly":
        spawner.shell_cmd = ["sh", "-c", 'export FROM_SHELL=yes; eval "exec $0"']
        spawner.environment = {**spawner.environment, "LD_LIBRARY_PATH": "/opt/lib"}
        spawner.popen_kwargs = {"preexec_fn": limit_files}
        spawner.mem_limit = "512M"
c.Spawner.pre_spawn_hook = small_server
c.Spawner.auth_state_hook = lambda spawner, state: failing(spawner, "login")

import asyncio, functools, os
from tornado import web
from jupyterhub_gpu_reclaim.hub.local.spawner import SessionProcessSpawner
start = SessionProcessSpawner.start
async def held_start(spawner):
    failing(spawner, "start")
    where = await start(spawner)
    held = os.path.join(FOLDER, "held-start-of-" + spawner.user.name)
    while os.path.exists(held):
        open(held, "w").write("it runs")
        await asyncio.sleep(0.05)
    return where
SessionProcessSpawner.start = held_start
"""
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory):
    """The service's double."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    with RelaunchingService(tmp_path_factory.mktemp("hub")) as double:
        yield double


@pytest.fixture(scope="module")
def shared_hub(shared_service):
    """A Hub that runs, with ReclaimLocalSpawner and our templates."""
    folder = shared_service.folder
    config = f"{shared_service.config}\nPROGRAM = {PROGRAM!r}\n"
    config += f"FOLDER = {str(folder)!r}\n{SERVICE}{CONFIG}"
    hub = HubUnderTest(folder, config)
    try:
        yield hub.start()
    finally:
        hub.close()


@pytest.fixture
def service(shared_service):
    """The double, with nothing set and nothing remembered."""
    shared_service.reset()
    yield shared_service
    shared_service.hold_restore.set()
    shared_service.hold_release.set()


@pytest.fixture
def hub(shared_hub, service):
    """The Hub; started again where a test has left it dead."""
    if shared_hub.process is None:
        shared_hub.start()
    return shared_hub


@pytest.fixture
def name():
    """A user's name that no other test has."""
    return f"amy{next(NUMBERS)}"


@pytest.fixture
def amy(hub, service, name):
    """A person whose server runs."""
    amy = hub.user(name)
    amy.start_server()
    yield amy
    with contextlib.suppress(LookupError):  # quicker than an orderly stop
        os.kill(service.init(name), signal.SIGKILL)


@pytest.fixture
def suspended(hub, service, amy):
    """The same person; the server is suspended."""
    service.capture(amy.name)
    hub.stop_server(amy.name)
    assert hub.server(amy.name)["state"]["gpu_reclaim"]["phase"] == "suspended"
    return amy
