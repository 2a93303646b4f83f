"""The simulator's Hub by itself: one machine, and a service that a test gives it.

The mixin and its lifecycle are the real ones. It runs in virtual time, by :func:`run`,
or in real time, where programs reach it by the Hub's REST API (:func:`serve`).
"""

import itertools
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from simulation import loop
from simulation.doubles.hub import Database, HubProcess
from simulation.doubles.kernel import replaced
from simulation.doubles.machine import GIB, Machine, Machines, Place, ProgramTree
from simulation.doubles.network import Server, Weather
from simulation.doubles.spawner import substitutes

#: The service's token, and that of a person who manages.
TOKEN, MANAGER = "hub-token", "root-token"


def run(work: Coroutine[Any, Any, None]) -> None:
    with replaced(substitutes(loop.LoopClock())):
        loop.run(work)


def started(
    folder: Path,
    service: object,
    *,
    users: Sequence[str],
    machine: Machine | None = None,
) -> HubProcess:
    machine = machine or Machine("node1", 1, 16 * GIB, lambda *_: None)
    machines = Machines()
    machines.by_name[machine.name] = machine
    (folder / "token").write_text("secret")
    names = itertools.count(1)
    listens = Server(loop.Program("the service"), service)

    async def machine_for(key: SessionKey) -> Machine:
        del key
        return machine

    def place(
        machine: Machine,
        key: SessionKey,
        incarnation: str,
        *,
        session: str,
        account: str,
        login: tuple[str, int],
        cold: bool,
    ) -> Place:
        tree = ProgramTree("a", *login, gpu_bytes=0, on_gpu=False) if cold else None
        return machine.add(
            key, incarnation, tree=tree, session=session, account=account
        )

    hub = HubProcess(
        program=loop.Program("the Hub"),
        database=Database(accounts={user: user for user in users}),
        machines=machines,
        weather=Weather(random.Random(1)),
        folder=folder,
        rng=random.Random(1),
        service=lambda: listens,
        machine_for=machine_for,
        place=place,
        end=machine.end,
        told=lambda _: None,
        new_name=lambda: f"n{next(names)}",
    )
    loop.spawn(hub.program, hub.run())
    return hub


class _Rest(RequestHandler):
    """A call of the Hub's REST API, by the service."""

    hub: ClassVar[HubProcess]

    def prepare(self) -> None:
        if self.request.headers.get("Authorization") != f"token {TOKEN}":
            self.set_status(403)
            self.finish()

    async def model(self, user: str) -> dict[str, Any]:
        servers = {
            key.server: {
                "name": key.server,
                "ready": state == "running",
                "pending": _PENDING.get(state),
            }
            for key, state in (await self.hub.servers()).items()
            if key.user == user
        }
        return {"name": user, "servers": servers}


_PENDING = {"spawning": "spawn", "stopping": "stop", "unsettled": "check"}


class _Users(_Rest):
    async def get(self) -> None:
        models = [await self.model(user) for user in self.hub.database.accounts]
        self.write({"items": models, "_pagination": {"next": None}})


class _User(_Rest):
    async def get(self, user: str) -> None:
        self.write(await self.model(user))


class _Server(_Rest):
    async def post(self, user: str, server: str = "") -> None:
        await self._do(self.hub.start, SessionKey(user, server), 201)

    async def delete(self, user: str, server: str = "") -> None:
        await self._do(self.hub.stop, SessionKey(user, server), 204)

    async def _do(self, order: Any, key: SessionKey, done: int) -> None:
        try:
            await order(key)
        except Refused as error:
            self.set_status(400)
            self.write({"status": 400, "message": error.message})
        else:
            self.set_status(202 if key in self.hub.pending else done)


class _Me(RequestHandler):
    """Who a person's token belongs to, as the service's own logins ask."""

    def get(self) -> None:
        if self.request.headers.get("Authorization") != f"token {MANAGER}":
            self.set_status(403)
            return
        scopes = ["access:services!service=gpu-reclaim", "custom:gpu-reclaim:manage"]
        self.write({"kind": "user", "name": "root", "scopes": scopes})


def serve(hub: HubProcess) -> tuple[HTTPServer, str]:
    """That Hub's REST API, as far as the service asks it; server and address."""
    routes: dict[str, type[_Rest]] = {
        "/hub/api/users": _Users,
        "/hub/api/users/([^/]+)": _User,
        "/hub/api/users/([^/]+)/server": _Server,
        "/hub/api/users/([^/]+)/servers/([^/]+)": _Server,
    }
    mine = [
        (path, type(handler.__name__, (handler,), {"hub": hub}))
        for path, handler in routes.items()
    ]
    server = HTTPServer(Application([*mine, ("/hub/api/user", _Me)]))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    return server, f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api"
