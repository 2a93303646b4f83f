"""The service's HTTP side in this process, under a Hub that only knows tokens."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from jupyterhub.services.auth import HubOAuth
from prometheus_client import CollectorRegistry
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.auth.scopes import MANAGE, METRICS, STOPS_ALL
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.drain import (
    Drain,
    DrainedSession,
    DrainOrder,
    DrainReport,
)
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.http.client import Answer, Connection
from jupyterhub_gpu_reclaim.common.models import (
    AuditLine,
    CheckpointInfo,
    Decision,
    Event,
    Failure,
    Phase,
    Placement,
    SessionFacts,
    SessionKey,
    SessionView,
    StartPlan,
    Step,
    StopPlan,
)
from jupyterhub_gpu_reclaim.common.orders import LONGEST_KEEP, Deleted, Left
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.people import UserApi
from jupyterhub_gpu_reclaim.service.api.context import Context, Streams
from jupyterhub_gpu_reclaim.service.web import pages
from jupyterhub_gpu_reclaim.service.web.site import MAX_BODY, application
from tests.support.commands import Command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount

PREFIX = "/services/gpu-reclaim/"
SPAWNER_TOKEN = "spawner-secret-of-the-tests"
ACCESS = "access:services!service=gpu-reclaim"
#: Compiled once for all tests, which takes a program's first pages 0.1 s.
TEMPLATES = pages.templates()

#: token → the Hub's model of its owner
PEOPLE = {
    "token-ada": {"kind": "user", "name": "ada", "scopes": [ACCESS]},
    "token-bob": {"kind": "user", "name": "bob", "scopes": [ACCESS]},
    "token-root": {"kind": "user", "name": "root", "scopes": [ACCESS, MANAGE]},
    "token-hub-admin": {"kind": "user", "name": "boss", "scopes": [ACCESS, STOPS_ALL]},
    "token-teacher": {
        "kind": "user",
        "name": "ted",
        "scopes": [ACCESS, f"{STOPS_ALL}!group=physics"],
    },
    "token-culler": {"kind": "service", "name": "cull", "scopes": [ACCESS, STOPS_ALL]},
    "token-stranger": {"kind": "user", "name": "eve", "scopes": []},
    "token-service-ada": {"kind": "service", "name": "ada", "scopes": [ACCESS]},
    "token-prometheus": {"kind": "service", "name": "prom", "scopes": [METRICS]},
}


def checkpoint(key: SessionKey, name: str = "c1") -> CheckpointInfo:
    return CheckpointInfo(
        id=name,
        key=key,
        incarnation="i1",
        generation=1,
        created=1_700_000_000.0,
        logical_bytes=1_500_000_000,
        stored_bytes=400_000_000,
        frozen_seconds=2.0,
        steps=[Step(step="dump", title="Saving the memory", state="done", seconds=3.4)],
    )


def _noted(name: str, then: Any = None) -> Any:
    """An order that is noted; what ``then`` makes of the session is its answer."""

    async def order(
        self: SessionsInMemory,
        key: SessionKey,
        by: str,
        *,
        manages: bool = False,
        **facts: object,
    ) -> SessionView:
        self.calls.append((name, key, *facts.values(), by))
        return then(self, key) if then else self.session(key)

    return order


def _told(name: str) -> Any:
    """What the spawner tells, which is noted alone."""

    async def told(self: SessionsInMemory, placement: Placement) -> None:
        self.calls.append((name, placement))

    return told


class SessionsInMemory:
    """Sessions without anything behind them: only the phases change."""

    def __init__(self) -> None:
        self.users = self.nodes = self  # all calls in one double
        self.drains_known: dict[str, DrainReport] = {}
        self.views: dict[SessionKey, SessionView] = {}
        self.calls: list[tuple[object, ...]] = []
        self.readers: list[asyncio.Queue[SessionView | None]] = []
        self.events: list[Event | Exception] = []
        self.plan = StartPlan(action="cold")
        self.managed_keeps = 0
        self.tabs_revoked: set[SessionKey] = set()
        self.users_since: dict[str, float] = {}
        self.accounts_made: dict[SessionKey, float] = {}
        self.nodes_known: list[NodeHealth] = []
        self.silent_parts: Callable[[], list[str]] = list
        self.gpus: Callable[[], list[GpuCount]] = list
        self.gpu_seconds: Callable[[], float] = float
        self.stored_bytes = int

    def put(self, user: str, server: str = "", **changes: Any) -> SessionView:
        key = SessionKey(user, server)
        old = self.views.get(key) or SessionView(
            key=key, phase=Phase.RUNNING, since=1_700_000_000.0
        )
        if "facts" in changes:
            changes["facts"] = SessionFacts(**changes["facts"])
        view = msgspec.structs.replace(old, **changes)
        self.views[key] = view
        for reader in self.readers:
            reader.put_nowait(view)
        return view

    def sessions(self) -> list[SessionView]:
        return list(self.views.values())

    def drain(self, node: str, order: DrainOrder, by: str) -> DrainReport:
        self.calls.append(("drain", node, order.seconds, order.comes_back, by))
        until = None if order.seconds is None else 1_700_000_000.0 + order.seconds
        drain = Drain(node=node, by=by, since=1_700_000_000.0, until=until)
        self.drains_known[node] = DrainReport(drain=drain)
        self.drained(node, *(v.key.user for v in self.views.values()))
        return self.drains_known[node]

    def drained(self, node: str, *users: str, state: str = "waiting", **more: Any):
        """Sessions of a node that is being drained, in another state from now on."""
        report = self.drains_known[node]
        known = {each.key: each for each in report.sessions}
        for user in users:
            key = SessionKey(user)
            known[key] = DrainedSession(key=key, state=state, **more)
        self.drains_known[node] = msgspec.structs.replace(
            report, sessions=list(known.values())
        )

    def undrain(self, node: str, by: str) -> None:
        self.calls.append(("undrain", node, by))
        if self.drains_known.pop(node, None) is None:
            raise NotFound(Reason.NOT_DRAINED, node=node)

    def drains(self) -> list[DrainReport]:
        return list(self.drains_known.values())

    def session(self, key: SessionKey) -> SessionView:
        if key not in self.views:
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        return self.views[key]

    async def created(self, user: str) -> float:
        """When the Hub has made that user; 0 where a test says nothing."""
        return self.users_since.get(user, 0.0)

    def why(self, key: SessionKey) -> list[Decision]:
        self.session(key)
        return [
            Decision(reclaim=False, code="kernel_busy", message="Kernel a is busy.")
        ]

    async def changes(self) -> AsyncIterator[SessionView]:
        queue: asyncio.Queue[SessionView | None] = asyncio.Queue(100)
        self.readers.append(queue)
        try:
            while (view := await queue.get()) is not None:
                yield view
        finally:
            self.readers.remove(queue)

    order = UserApi.order

    def _phase(
        self, key: SessionKey, needed: Phase, new: Phase, action: str
    ) -> SessionView:
        view = self.session(key)
        if view.phase is not needed:
            raise Refused(Reason.WRONG_PHASE, phase=view.phase, action=action)
        return self.put(key.user, key.server, phase=new)

    async def suspend(self, key: SessionKey, by: str) -> SessionView:
        self.calls.append(("suspend", key, by))
        if self.session(key).phase is Phase.SUSPENDED:
            return self.session(key)
        return self._phase(key, Phase.RUNNING, Phase.SUSPENDING, "be suspended")

    resume = _noted("resume", lambda self, key: self._resumed(key))
    put_files_back = _noted("put_files_back", lambda self, key: self._resumed(key))
    nap = _noted("nap", lambda self, key: self._ordered(key, "nap"))
    wake = _noted("wake", lambda self, key: self._ordered(key, "wake"))
    end_tree, renew_login = _noted("end_tree"), _noted("renew_login")
    opt_out, rename = _noted("opt_out"), _noted("rename")
    placed, cancelled = _told("placed"), _told("cancelled")
    login_revoked, stopped = _told("login_revoked"), _told("stopped")

    async def forget(self, deletion: Deletion) -> None:
        self.calls.append(("forget", deletion))

    def _resumed(self, key: SessionKey) -> SessionView:
        return self._phase(key, Phase.SUSPENDED, Phase.RESUMING, "be resumed")

    async def save(self, key: SessionKey, by: str, name: str = "") -> SessionView:
        self.calls.append(("save", key, by, *([name] if name else [])))
        return self._ordered(key, "save")

    def _ordered(self, key: SessionKey, order: str) -> SessionView:
        view = self.session(key)
        if not view.phase.live:
            raise Refused(Reason.WRONG_PHASE, phase=view.phase, action=order)
        nap = {"nap": view.facts.nap} if view.facts.nap else {}
        return self.put(key.user, key.server, facts={"intent": order, **nap})

    async def keep(
        self, key: SessionKey, seconds: float, by: str, *, manages: bool = False
    ) -> SessionView:
        self.managed_keeps += manages
        self.calls.append(("keep", key, seconds, by))
        return self.session(key)

    def compare_account(self, key: SessionKey, made: float) -> None:
        self.accounts_made[key] = made

    def longest_keep(self, *, manages: bool = False) -> float:
        return LONGEST_KEEP if manages else 2 * 3600.0

    async def revoke_tabs(self, key: SessionKey, by: str) -> SessionView:
        self.calls.append(("revoke_tabs", key, by))
        self.tabs_revoked.add(key)
        return self.session(key)

    def tab_counts(self, key: SessionKey, session: str) -> bool:
        return key not in self.tabs_revoked

    def audit(
        self, of: SessionKey | str | None, limit: int = 100, before: int = 0
    ) -> list[AuditLine]:
        key, what = SessionKey("ada", "gone"), "forget"
        if isinstance(of, SessionKey):
            key, what = of, "suspend"
        else:
            self.calls.append(("audit", of, limit, before))
        row = AuditLine(id=7, at=1_700_000_000.0, key=key, who="ada", what=what)
        return [audit.told(row)] * min(limit, 2000)

    async def start_fresh(self, key: SessionKey, by: str) -> SessionView:
        self.calls.append(("start_fresh", key, by))
        view = self.session(key)
        if view.failure is not None and view.failure.code == Reason.RENAMED.value:
            return view
        return self._phase(key, Phase.SUSPENDED, Phase.STOPPED, "be started fresh")

    async def delete(
        self,
        key: SessionKey,
        by: str,
        checkpoint: str = "",
        *,
        everything: bool = False,
    ) -> Deleted:
        self.session(key)
        self.calls.append(("discard", key, by, checkpoint))
        why = "The session came back from it; it is kept in case it ends."
        left = Left(checkpoint="c1", until=1_700_000_600.0, why=why)
        return Deleted(deleted=["c7"], kept=[] if everything else [left])

    async def bring_back(
        self,
        key: SessionKey,
        checkpoint: str,
        by: str,
        *,
        save_running: bool = False,
        manages: bool = False,
    ) -> SessionView:
        self.calls.append(("bring_back", key, checkpoint, by, save_running))
        if self.session(key).phase is Phase.RUNNING and not save_running:
            raise Refused(Reason.SESSION_RUNS)
        return self.session(key)

    async def plan_start(self, placement: Placement) -> StartPlan:
        self.calls.append(("plan_start", placement))
        return self.plan

    async def progress(self, key: SessionKey) -> AsyncIterator[Event]:
        self.session(key)
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event

    async def plan_stop(self, placement: Placement) -> StopPlan:
        return StopPlan(action="stop")

    async def release(self, placement: Placement) -> None:
        raise Refused(Reason.NOT_CAPTURED)


class HubThatKnowsTokens(RequestHandler):
    """The one call of the Hub that a login needs."""

    async def get(self) -> None:
        if self.settings["silent"]:
            await asyncio.Event().wait()
        if self.settings["broken"]:
            self.set_status(503)
            return
        token = self.request.headers.get("Authorization", "").partition(" ")[2]
        if token not in PEOPLE:
            self.set_status(403)
            self.finish({"status": 403})
            return
        self.finish(PEOPLE[token])


@dataclass
class Running:
    """The service under test and how to talk to it."""

    url: str
    control: SessionsInMemory
    context: Context
    hub: Application
    app: Application
    socket: str  #: address of the spawner's calls

    async def call(
        self,
        path: str,
        token: str = "token-ada",
        method: str = "GET",
        body: object = None,
        **options: object,
    ) -> HTTPResponse:
        headers = dict(options.pop("headers", {}))
        if token:
            headers["Authorization"] = f"token {token}"
        data = body if isinstance(body, bytes | str) else json.dumps(body)
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers=headers,
            body=data if method in ("POST", "PUT", "PATCH") else None,
            follow_redirects=False,
            request_timeout=20,
            allow_nonstandard_methods=True,
            **options,
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def spawner(self, path: str, body: object, method: str = "POST") -> Answer:
        http = Connection(self.socket, dict, Reason.SERVICE_UNREACHABLE)
        data = json.dumps(body).encode() if method == "POST" else None
        where = f"{PREFIX}api/spawner/{path}"
        answer = await http.ask(method, where, limit=20, body=data)
        http.close()
        return answer


def _failure(response: HTTPResponse | Answer, status: int = 0) -> Failure:
    """What a call has failed with."""
    told = response.status if isinstance(response, Answer) else response.code
    assert status in {0, told}
    return msgspec.json.decode(response.body, type=Failure)


@pytest.fixture
def failure():
    return _failure


@asynccontextmanager
async def running() -> AsyncGenerator[Running]:
    """The service over HTTP, with sessions in memory."""
    hub = Application([(r"/hub/api/user", HubThatKnowsTokens)])
    hub.settings.update(broken=False, silent=False)
    hub_server = HTTPServer(hub)
    hub_server.listen(0, "127.0.0.1")
    hub_port = next(iter(hub_server._sockets.values())).getsockname()[1]
    HubOAuth.clear_instance()
    HubOAuth.instance(
        api_url=f"http://127.0.0.1:{hub_port}/hub/api",
        api_token="token-of-the-service",
        oauth_client_id="service-gpu-reclaim",
        base_url=PREFIX,
        access_scopes={ACCESS},
    )
    control = SessionsInMemory()
    context = Context(
        control=control,
        clock=SystemClock(),
        registry=CollectorRegistry(),
        templates=TEMPLATES,
        spawner_token=SPAWNER_TOKEN.encode(),
        prefix=PREFIX,
        hub_prefix="/hub/",
        created=control.created,
        nodes=lambda: control.nodes_known,
        heartbeat=0.1,
        stalled=5.0,
        streams=Streams(per_person=2, total=3),
    )
    app = application(context, cookie_secret=b"c" * 32)
    # A URL beyond Tornado's 64 KiB would be refused before any code of ours sees it.
    server = HTTPServer(app, max_body_size=MAX_BODY, max_header_size=1 << 20)
    server.listen(0, "127.0.0.1")
    port = next(iter(server._sockets.values())).getsockname()[1]
    with TemporaryDirectory() as folder:
        server.add_socket(unix_sockets.listening(Path(folder) / "spawner.sock"))
        yield Running(
            f"http://127.0.0.1:{port}{PREFIX}",
            control,
            context,
            hub,
            app,
            f"unix:{folder}/spawner.sock",
        )
    for one in (server, hub_server):
        one.stop()
        await one.close_all_connections()
    HubOAuth.clear_instance()
    # Its resolver watches /etc/resolv.conf: one of the machine's few inotify instances.
    if (client := _hubs_http_client()) is not None:
        await client.loop_instance().close()


@pytest.fixture
async def service():
    async with running() as one:
        yield one


def _hubs_http_client():
    """The HTTP client that JupyterHub 6 keeps for itself; JupyterHub 5 has none."""
    try:
        from jupyterhub.httpclient import JupyterHubHTTPClient
    except ImportError:
        return None
    return JupyterHubHTTPClient


@pytest.fixture
def command(service, capsys, monkeypatch):
    return Command(service, capsys, monkeypatch)


@pytest.fixture
def control(service):
    return service.control
