"""JupyterHub's own application in the test's process, as pytest-jupyterhub makes it.

For tests of what JupyterHub answers and of what we change in it. It can be neither
killed nor restarted, and has no real proxy: for that there is ``tests/support/hub.py``.
"""

import asyncio

import pytest
from jupyterhub import orm, roles, version_info
from jupyterhub.proxy import Proxy
from jupyterhub.spawner import Spawner
from pytest_jupyterhub.jupyterhub_spawners import configured_mockhub_instance, hub_app
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME, SERVICE_SCOPES

__all__ = [
    "TOKEN",
    "add_user",
    "api_url",
    "configured_mockhub_instance",
    "hub_app",
    "mock_hub",
]

TOKEN = "token-of-the-service-0123456789"


class RoutesInMemory(Proxy):
    """A proxy that nobody can reach."""

    should_start = False

    def __init__(self, **traits) -> None:
        super().__init__(**traits)
        self._routes: dict[str, dict] = {}

    async def add_route(self, routespec, target, data):
        self._routes[routespec] = {
            "routespec": routespec,
            "target": target,
            "data": {**data},
        }

    async def delete_route(self, routespec):
        self._routes.pop(routespec, None)

    async def get_all_routes(self):
        return dict(self._routes)


class ServerInProcess(Spawner):
    """A server that says that it is there, some time after it was started."""

    start_seconds = 1.0
    stop_seconds = 3.0  #: a busy Hub has given several answers meanwhile
    _http: HTTPServer | None = None

    async def start(self):
        await asyncio.sleep(self.start_seconds)
        sockets = bind_sockets(0, "127.0.0.1")
        self._http = HTTPServer(Application([(".*", _Answers)]))
        self._http.add_sockets(sockets)
        return f"http://127.0.0.1:{sockets[0].getsockname()[1]}"

    async def poll(self):
        return None if self._http is not None else 0

    async def stop(self, now=False):
        await asyncio.sleep(self.stop_seconds)
        if self._http is not None:
            self._http.stop()
            await self._http.close_all_connections()
        self._http = None


class _Answers(RequestHandler):
    def prepare(self) -> None:
        self.finish({})


_CONFIG = {
    "JupyterHub": {
        "allow_named_servers": True,
        "log_level": "WARN",
        "proxy_class": RoutesInMemory,
        "spawner_class": ServerInProcess,
        "services": [{"name": SERVICE_NAME, "api_token": TOKEN}],
        "load_roles": [
            {
                "name": SERVICE_NAME,
                "services": [SERVICE_NAME],
                "scopes": list(SERVICE_SCOPES),
            }
        ],
    }
}


@pytest.fixture
async def mock_hub(hub_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it leaves its cookie secret
    hub = await hub_app(_CONFIG)
    if version_info[0] < 6:  # its end stops the event loop, which is the test's
        hub.shutdown_cancel_tasks = hub.cleanup
    return hub


def add_user(hub, name: str):
    user = orm.User(name=name)
    hub.db.add(user)
    hub.db.commit()
    roles.assign_default_roles(hub.db, entity=user)
    return hub.users[user]


def api_url(hub) -> str:
    return hub.hub.api_url.rstrip("/")
