"""Fixtures: one real Hub with our spawner on the relaunching service (see support/).

Each process that runs tests has one, for all tests here. A person whose session a test
has left as a new one would be, is the next test's (:class:`Left`); a test that needs a
person whom nobody knows takes ``name``.
"""

import contextlib
import itertools
import os
import signal
from collections import defaultdict
from typing import Any

import pytest
import requests

from demo.user import User
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
    file = os.path.join(FOLDER, f"form-of-{spawner.user.name}")
    return "<input name=size>" if os.path.exists(file) else ""
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
def note(spawner, hook):
    # for a test that looks at what runs
    file = os.path.join(FOLDER, f"hooks-of-{spawner.user.name}")
    if os.path.exists(file):
        print(hook, spawner.name, file=open(file, "a"))
c.Spawner.post_stop_hook = lambda spawner: note(spawner, "post_stop")
def hand_out_a_card(spawner):
    file = os.path.join(FOLDER, f"card-of-{spawner.user.name}")
    if os.path.exists(file):
        card = {"CUDA_VISIBLE_DEVICES": open(file).read()}
        spawner.environment = {**spawner.environment, **card}
async def held(what, name):
    file = os.path.join(FOLDER, f"held-{what}-of-{name}")
    while os.path.exists(file):
        open(file, "w").write("it waits")
        await asyncio.sleep(0.05)
async def small_server(spawner):
    await held("hook", spawner.user.name)
    note(spawner, "pre_spawn")
    hand_out_a_card(spawner)
    failing(spawner, "hook")
    if os.path.exists(os.path.join(FOLDER, f"impatient-{spawner.user.name}")):
        spawner.start_timeout, spawner.consecutive_failure_limit = 2, 1
    name = spawner.user.name
    if spawner.name == "mute":
        spawner.cmd, spawner.get_args = ["sleep", "600"], lambda: []
    small = "small" in (name.partition("-")[0], spawner.name.partition("-")[0])
    if not small and name not in ("games", "ghost", "shelly"):
        return
    spawner.cmd = ["/usr/bin/python3", "-c", PROGRAM]
    spawner.run_as_hub_user = small or name == "shelly"
    spawner.get_args = lambda: []
    if name == "shelly":
        spawner.shell_cmd = ["sh", "-c", 'export FROM_SHELL=yes; eval "exec $0"']
        spawner.environment = {**spawner.environment, "LD_LIBRARY_PATH": "/opt/lib"}
        spawner.popen_kwargs = {"preexec_fn": limit_files}
        spawner.mem_limit = "512M"
c.Spawner.pre_spawn_hook = small_server
def token_scopes(spawner):
    wide = os.path.exists(os.path.join(FOLDER, f"wide-{spawner.user.name}"))
    return ["users:activity!user", *(["read:users:groups!user"] if wide else [])]
c.Spawner.server_token_scopes = token_scopes
def know_the_login(spawner, state):
    note(spawner, "auth_state")
    failing(spawner, "login")
c.Spawner.auth_state_hook = know_the_login

import asyncio, functools, os
from jupyterhub.auth import Authenticator
from tornado import web
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.hub.local.spawner import SessionProcessSpawner
# Nobody waits as long as a person would for a service that is not there.
ServiceClient.__init__.__kwdefaults__["timeout"] = 2.0
start = SessionProcessSpawner.start
async def held_start(spawner):
    failing(spawner, "start")
    where = await start(spawner)
    await held("start", spawner.user.name)
    return where
SessionProcessSpawner.start = held_start
async def post_spawn_stop(authenticator, user, spawner):
    await held("stop", user.name)
Authenticator.post_spawn_stop = post_spawn_stop
"""
NUMBERS = itertools.count(1)
#: A page of an administrator's own.
SITE = """{% extends "templates/NAME.html" %}
{% block meta %}{{ super() }}<meta name="site" content="NAME">{% endblock %}
"""


class Left:
    """Sessions that tests have left for the next ones: a start takes a second of CPU.

    Only one that cannot be told from a new one is: its server answers its person's
    cookies, or is suspended and saved, with the one login that the Hub has made for it.
    """

    def __init__(self, hub: HubUnderTest) -> None:
        self.hub = hub
        self.running: list[User] = []
        self.suspended: list[tuple[User, dict[str, Any]]] = []

    def take_running(self, service: RelaunchingService) -> User | None:
        """Somebody whose server runs."""
        while self.running:
            person = self.running.pop()
            if self._phase(person) == "running" and self._answers(person):
                return person
            _end(service, person)
        return None

    def take_suspended(self, service: RelaunchingService) -> User | None:
        while self.suspended:
            person, saved = self.suspended.pop()
            if self._phase(person) == "suspended" and self._lets_in(person, saved):
                service.saved[person.name, ""] = saved
                service.captured.add((person.name, ""))
                return person
        return None

    def leave(self, person: User, service: RelaunchingService) -> None:
        """Keep what can be used again, and end what cannot."""
        key = (person.name, "")
        phase = self._phase(person)
        if phase == "running" and key not in service.captured:
            self.running.append(person)
        elif phase == "suspended" and self._lets_in(person, service.saved.get(key)):
            self.suspended.append((person, service.saved[key]))
        else:
            _end(service, person)

    def _phase(self, person: User) -> str:
        """That of its pointer; nothing where more or less is there than a server."""
        with contextlib.suppress(requests.RequestException, LookupError, ValueError):
            where = f"users/{person.name}"
            model = self.hub.api("GET", f"{where}?include_stopped_servers=1").json()
            tokens = self.hub.api("GET", f"{where}/tokens").json()["api_tokens"]
            (server,) = model["servers"].values()
            (_,) = (one for one in tokens if one["note"].startswith("Server at"))
            phase = str(server["state"]["gpu_reclaim"]["phase"])
            if not server["pending"] and server["ready"] == (phase == "running"):
                return phase
        return ""

    def _lets_in(self, person: User, saved: dict[str, Any] | None) -> bool:
        """Whether the Hub knows the saved login: tests forge and revoke some."""
        token = saved["identity"]["api_token"] if saved else ""
        with contextlib.suppress(requests.RequestException):
            answer = requests.get(
                f"{self.hub.url}/hub/api/user",
                headers={"Authorization": f"token {token}"},
                timeout=10,
            )
            return answer.ok and answer.json()["name"] == person.name
        return False

    def _answers(self, person: User) -> bool:
        with contextlib.suppress(requests.RequestException):
            status = person.server().api("GET", "status", timeout=60)
            return status.ok and person.logins == 1
        return False


def _end(service: RelaunchingService, person: User) -> None:
    with contextlib.suppress(LookupError):  # quicker than an orderly stop
        os.kill(service.init(person.name), signal.SIGKILL)


def service_in(folder):
    """The service's double, for Hubs whose folder this is."""
    if os.geteuid() != 0:
        pytest.skip("sessions in namespaces of their own need root")
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    with RelaunchingService(folder) as double:
        yield double


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory):
    yield from service_in(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def own_service(tmp_path):
    yield from service_in(tmp_path)


@pytest.fixture(scope="session")
def shared_hub(shared_service):
    """A Hub that runs, with ReclaimLocalSpawner and our templates."""
    folder = shared_service.folder
    config = f"{shared_service.config}\nPROGRAM = {PROGRAM!r}\n"
    config += f"FOLDER = {str(folder)!r}\n{SERVICE}{CONFIG}"
    _write_pages_of_the_site(folder / "templates")
    config += f"c.JupyterHub.template_paths = [{str(folder / 'templates')!r}]\n"
    hub = HubUnderTest(folder, config)
    try:
        yield hub.start()
    finally:
        hub.close()


def _write_pages_of_the_site(folder):
    """Pages of the administrator's own, each in the way that JupyterHub's manual says.

    All tests see ours over them.
    """
    folder.mkdir()
    for name in ("home", "not_running", "spawn_pending", "error"):
        (folder / f"{name}.html").write_text(SITE.replace("NAME", name))


@pytest.fixture
def service(shared_service):
    """The double, with nothing set and nothing remembered."""
    shared_service.reset()
    yield shared_service
    shared_service.hold_restore.set()
    shared_service.hold_release.set()


@pytest.fixture(scope="session")
def pools(shared_hub):
    return defaultdict(lambda: Left(shared_hub))


@pytest.fixture
def kind(request):
    """What names begin with: ``small-`` where a module needs no Jupyter server."""
    return getattr(request.module, "PERSONS", "amy")


@pytest.fixture
def left(pools, kind):
    return pools[kind]


@pytest.fixture
def hub(shared_hub, service):
    """The Hub; started again where a test has left it dead. Its log begins anew."""
    if shared_hub.process is None or shared_hub.process.poll() is not None:
        shared_hub.start()
    shared_hub.begin_log()
    return shared_hub


@pytest.fixture
def name():
    """A user's name that no other test has."""
    return f"amy{next(NUMBERS)}"


@pytest.fixture
def amy(hub, service, left, kind):
    """A person whose server runs; the service has been asked nothing yet."""
    amy = left.take_running(service)
    if amy is None:
        amy = hub.user(f"{kind}{next(NUMBERS)}")
        amy.start_server()
    service.calls.clear()
    yield amy
    left.leave(amy, service)


@pytest.fixture
def suspended(hub, service, left, request):
    """The same person; the server is suspended."""
    amy = left.take_suspended(service)
    if amy is not None:
        yield amy
        left.leave(amy, service)
        return
    amy = request.getfixturevalue("amy")
    service.suspend(hub, amy.name)
    assert hub.server(amy.name)["state"]["gpu_reclaim"]["phase"] == "suspended"
    service.calls.clear()
    yield amy
