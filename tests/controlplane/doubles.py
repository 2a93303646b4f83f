"""A node and a Hub in memory that speak the real wire format and can be made to fail.

They outlive any number of controllers, as the real ones do. The node keeps each
session's contents as one word, so that a test sees whether it came back, was lost or
was doubled; the Hub calls the controller as the real spawner does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.models import (
    CardShortage,
    Event,
    Failure,
    GpuSample,
    Placement,
    Sample,
    SessionKey,
    Shortage,
    Step,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from tests.support.memory_agent import MemoryAgent, MemorySession

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "agent-token"
#: The id of the card that all sessions share.
CARD = "0" * 32
#: How long the Hub waits for a server before it answers (``slow_spawn_timeout``).
SLOW = 10.0
#: What the Hub calls it while a server is in that state.
PENDING = {"spawning": "spawn", "stopping": "stop", "checking": "check"}
STEPS = ("preflight", "dump", "commit")


class PowerCut(BaseException):
    """The program's end; not an Exception, as nobody catches SIGKILL."""


class JournalThatDies(Journal):
    """Its program dies right after that many more writes; none is made after that."""

    def __init__(self, url: str, left: int | None = None) -> None:
        super().__init__(url)
        self.left = left  #: None: it lives on

    @property
    def dead(self) -> bool:
        return self.left == 0

    def save(self, *args, **kwargs) -> None:
        if self.dead:
            raise PowerCut
        super().save(*args, **kwargs)
        if self.left is not None:
            self.left -= 1
            if self.dead:
                raise PowerCut


class Remote:
    """The service as the Hub's process reaches it: if it dies in a call, no answer."""

    def __init__(self, controller) -> None:
        self._controller = controller

    def __getattr__(self, name):
        call = getattr(self._controller, name)
        if name == "progress":
            return call

        async def answer(*args):
            try:
                return await call(*args)
            except PowerCut:
                raise Unreachable(Reason.SERVICE_UNREACHABLE) from None

        return answer


@dataclass(eq=False)
class Place(MemorySession):
    """One incarnation on the node."""

    @property
    def events(self) -> list[Event]:
        """Of its last capture or restore."""
        return self.operation.events if self.operation is not None else []

    @property
    def task(self) -> asyncio.Task | None:
        return self.operation.task if self.operation is not None else None


class NodeInMemory(MemoryAgent[Place]):
    """What the agent's routes ask for, with switches for faults."""

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds = 0.002
        self.hold_at = ""  # an operation waits at that step until cancelled or let go
        self.holds: set[str] = set()  # only those of these users' servers; empty: all
        self.capture_failure: Failure | None = None
        self.fails: set[str] = set()  # only those of these servers; empty: all
        self.restore_failure: Failure | None = None
        self.nap_failure: Failure | None = None
        self.wake_failure: Failure | None = None
        self.breaks_streams = False
        self.wakes = 0  # so many saved trees are woken by their user before their end
        self.calls: list[str] = []
        self.kernels: list | None = None
        self.kernels_of: dict[str, list] = {}
        self.job_due: float | None = 0.0  # of all sessions
        self.sampled = 0  #: how often it was asked for samples
        self.seen: list[float | None] = []  #: what orders went by
        self.files_back: list[bool] = []  #: of restores: whether files come back
        self.orders_are_late = False
        self.gpus: list = []  # that every session holds
        self.room: int | None = None  # so many sessions have memory on a GPU
        self.card: int | None = None  # bytes of the one that all of them share
        self.at_wake = asyncio.Event()  # set when one waits for memory of it
        self.samples_fail = False
        self.sample_seconds = 0.0
        self.silent: set[str] = set()  # incarnations whose node does not answer
        self.told: dict[str, list] = {}  # of each incarnation, by the service
        self.terms: KnownTerm | None = None  # where it is served

    # --- for tests
    def run(self, key: SessionKey, contents: str, incarnation: str = "") -> Place:
        incarnation = incarnation or uuid.uuid4().hex
        place = Place(key, incarnation, TreeState.RUNNING, contents=contents)
        place.session = f"s-{incarnation}"
        self.places[incarnation] = place
        return place

    def hold(self, key: SessionKey, incarnation: str, session: str = "") -> None:
        place = Place(key, incarnation, TreeState.HOLDING, session=session)
        self.places[incarnation] = place

    def living(self, key: SessionKey) -> list[Place]:
        return [
            place
            for place in self.places.values()
            if place.key == key
            and place.state
            in {
                TreeState.RUNNING,
                TreeState.NAPPING,
                TreeState.CAPTURING,
                TreeState.CAPTURED,
            }
        ]

    # --- MemoryAgent
    async def capturing(self, place):
        for step in STEPS:
            yield Event(step=Step(step=step, title=step))
            await self._wait(place, step)
            if self.capture_failure is not None and place.key.server in (
                self.fails or {place.key.server}
            ):
                yield Event(failure=self.capture_failure)
            yield Event(step=Step(step=step, title=step, state="done", seconds=0.002))

    async def restoring(self, place):
        yield Event(step=Step(step="criu", title="criu"))
        await self._wait(place, "criu")
        running = sum(p.state is TreeState.RUNNING for p in self.places.values())
        failure = self.restore_failure
        if self.room is not None and running >= self.room:
            failure = Failure(code="gpu_memory", message="Too little.", retryable=True)
        if failure is not None:
            yield Event(failure=failure)
        yield Event(step=Step(step="criu", title="criu", state="done"))

    async def napping(self, place):
        self.calls.append("nap")
        yield Event(step=Step(step="gpu", title="out"))
        await self._wait(place, "gpu out")
        if self.nap_failure is not None:
            yield Event(failure=self.nap_failure)
        yield Event(step=Step(step="gpu", title="out", state="done", seconds=0.002))

    async def waking(self, place):
        self.calls.append("wake")
        async for event in self._until_there_is_room(place):
            yield event
        yield Event(step=Step(step="gpu", title="back"))
        await self._wait(place, "gpu back")
        if self.wake_failure is not None:
            yield Event(failure=self.wake_failure)
        yield Event(step=Step(step="gpu", title="back", state="done", seconds=0.002))

    @property
    def free(self) -> int:
        """Bytes of the card."""
        held = (p.gpu_memory for p in self.places.values() if not p.nap)
        return (self.card or 0) - sum(held)

    async def _until_there_is_room(self, place: Place):
        room = Step(step="room", title="Waiting for a GPU", state="going")
        begun = time.monotonic()
        while self.card is not None and self.free < place.gpu_memory:
            if place.operation.cancelled:
                place.shortage = None
                yield Event(failure=codec.failure_of(Refused(Reason.CANCELLED)))
                return
            rivals = [p for p in self.places.values() if p.shortage and p is not place]
            card = CardShortage(uuid=CARD, needed=place.gpu_memory, free=self.free)
            waited = time.monotonic() - begun
            ahead = sum(p.shortage.waited > waited for p in rivals)
            place.shortage = Shortage(waited=waited, place=ahead + 1, cards=[card])
            self.at_wake.set()
            yield Event(step=room)
            await asyncio.sleep(0.01)
        place.shortage = None

    async def _wait(self, place: Place, step: str) -> None:
        await asyncio.sleep(self.step_seconds)
        if place.key.server not in (self.holds or {place.key.server}):
            return
        while self.hold_at == step and not place.operation.cancelled:
            await asyncio.sleep(0.002)

    def info(self, place):
        return msgspec.structs.replace(
            super().info(place),
            created=time.time(),
            logical_bytes=1000,
            stored_bytes=100,
        )

    # --- Node
    async def carry_out(self, subject, order):
        if order.about == "sessions":
            await self.set_hint(subject, order.hint)
        return await self.given(subject, order)

    async def set_hint(self, incarnation, told):
        self.told.setdefault(incarnation, []).append(told)
        if told.pod != getattr(self.places.get(incarnation), "pod", told.pod):
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    async def samples(self):
        if self.samples_fail:
            raise ReclaimError(Reason.INTERNAL)
        now = time.time()
        self.sampled += 1
        await asyncio.sleep(self.sample_seconds)
        return [
            Sample(
                incarnation=place.incarnation,
                key=place.key,
                at=now,
                kernels=self.kernels_of.get(place.incarnation, self.kernels),
                gpus=self._gpus_of(place),
                job_due=self.job_due,
                pod=place.pod,
            )
            for place in self.places.values()
            if place.tree().runs and place.incarnation not in self.silent
        ]

    def _gpus_of(self, place: Place) -> list:
        if self.card is None:
            return self.gpus
        held = [GpuSample(uuid=CARD, memory=place.gpu_memory)]
        return held if place.gpu_memory and not place.nap else []

    async def discard(self, checkpoint, *, runs=""):
        self.calls.append(f"discard {checkpoint}")
        await super().discard(checkpoint, runs=runs)

    async def capture(self, incarnation, checkpoint, generation, *, seen=None):
        self._take_up(seen)
        return self._told(self.begin_capture(incarnation, checkpoint, generation))

    async def save(self, incarnation, checkpoint, generation, *, name=""):
        return self._told(self.begin_save(incarnation, checkpoint, generation, name))

    async def restore(self, incarnation, checkpoint, *, put_files_back=False):
        self.files_back.append(put_files_back)
        return self._told(self.begin_restore(incarnation, checkpoint))

    async def nap(self, incarnation, *, seen=None):
        self._take_up(seen)
        return self._told(self.begin_nap(incarnation))

    def _take_up(self, seen):
        self.seen.append(seen)
        if self.orders_are_late and seen is not None:
            raise Refused(Reason.ORDER_LATE, late="6 s")

    async def wake(self, incarnation):
        return self._told(self.begin_wake(incarnation))

    async def next_wake(self, incarnation):
        return self._told(await self.follow_wake(incarnation))

    def now(self):
        return time.time()

    def term(self):
        return self.terms.of_order if self.terms is not None else 0

    async def _told(self, events):
        async for event in events:
            yield event
            if self.breaks_streams:
                return

    async def thaw(self, incarnation):
        self.calls.append("thaw")
        return await super().thaw(incarnation)

    async def release(self, incarnation, checkpoint):
        place = self.places.get(incarnation)
        if not self.wakes or place is None or place.state is not TreeState.CAPTURED:
            return await super().release(incarnation, checkpoint)
        self.wakes -= 1
        await self.thaw(incarnation)
        refused = Refused(Reason.WENT_ON, who="7 (sleep)")
        place.failure = codec.failure_of(refused)
        raise refused

    async def kill(self, incarnation):
        self.calls.append(f"kill {getattr(self.places.get(incarnation), 'state', '')}")
        return await super().kill(incarnation)

    async def cancel(self, incarnation):
        self.calls.append("cancel")
        await super().cancel(incarnation)


class HubInMemory:
    """The Hub's REST API about servers, and the spawner behind it."""

    def __init__(self, node: NodeInMemory) -> None:
        self.node = node
        self.controller = None  # None: the service is down
        self.states: dict[SessionKey, str] = {}
        self.incarnations: dict[SessionKey, str] = {}
        self.sessions: dict[SessionKey, str] = {}  # ids of the last ones
        self.pointers: dict[SessionKey, str] = {}
        self.refuses_start = ""  #: with that sentence
        self.refuses_stop = False
        self.never_answers = False
        self.ignores_restored = False
        self.groups: dict[str, list[str]] | None = None  # None: we may not see them
        self.options: dict[SessionKey, object] = {}
        self.orders: list[str] = []
        self.plans: list[str] = []
        self.errors: list[str] = []
        self.tasks: set[asyncio.Task] = set()
        self.starts: dict[SessionKey, asyncio.Task] = {}

    def placement(self, key: SessionKey) -> Placement:
        """Where a start in hand is to be."""
        (place,) = [p for p in self.node.places.values() if p.key == key]
        pointer = self.pointers.get(key, "")
        return Placement(key=key, incarnation=place.incarnation, checkpoint=pointer)

    def run(self, key: SessionKey, incarnation: str) -> None:
        self.states[key] = "running"
        self.incarnations[key] = incarnation
        place = self.node.places.get(incarnation)
        self.sessions[key] = place.session if place is not None else ""

    def spawn(self, coroutine) -> asyncio.Task:
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def service(self):
        if self.controller is None:
            raise Unreachable(Reason.SERVICE_UNREACHABLE)
        return Remote(self.controller)

    async def stop(self, key: SessionKey) -> None:
        placement = Placement(
            key=key,
            incarnation=self.incarnations[key],
            checked=self.states[key] == "checking",
        )
        self.states[key] = "stopping"
        place = self.node.places.get(placement.incarnation)
        try:
            plan = await self.service().plan_stop(placement)
            self.plans.append(f"stop {plan.action}")
            if plan.action == "release":
                self.pointers[key] = plan.checkpoint
                await self.service().release(placement)
            else:
                if place is not None and place.state is TreeState.CAPTURED:
                    self.errors.append("stopped a saved tree")
                self.node.end(placement.incarnation)
                await self.service().stopped(placement)
        except ReclaimError as error:
            self.plans.append(f"stop failed {error.reason.value}")
        self.states[key] = "stopped"

    def interrupt(self, key: SessionKey) -> None:
        """Stop a server that starts: JupyterHub gives the start up."""
        self.starts[key].cancel()
        self.states[key] = "stopped"
        for place in list(self.node.places.values()):
            if (place.key, place.state) == (key, TreeState.HOLDING):
                self.node.end(place.incarnation)

    async def start(self, key: SessionKey) -> str:
        self.states[key] = "spawning"
        incarnation = uuid.uuid4().hex
        pointer = self.pointers.get(key, "")
        placement = Placement(
            key=key,
            incarnation=incarnation,
            checkpoint=pointer,
            session=f"s-{incarnation}",
            former=self.sessions.get(key, "") if pointer else "",
        )
        try:
            plan = await self.service().plan_start(placement)
            self.plans.append(f"start {plan.action}")
            if plan.action == "refuse":
                self.states[key] = "stopped"
                return plan.failure.code
            if plan.action == "adopt":
                incarnation = plan.incarnation
            elif plan.action == "cold":
                self.pointers.pop(key, None)
                self.node.run(key, "cold", incarnation)
                cold = msgspec.structs.replace(placement, checkpoint="", former="")
                await self.service().placed(cold)
            else:
                placement = Placement(
                    key=key,
                    incarnation=incarnation,
                    checkpoint=plan.checkpoint,
                    session=plan.session,
                )
                await self._restore(placement)
        except ReclaimError as error:
            self.states[key] = "stopped"
            return error.reason.value
        if not self.ignores_restored:
            self.run(key, incarnation)
        return plan.action

    async def _restore(self, placement: Placement) -> None:
        self.node.hold(placement.key, placement.incarnation, placement.session)
        try:
            await self.service().placed(placement)
            await self._follow(placement)
        except ReclaimError:
            with contextlib.suppress(ReclaimError):
                await self.service().cancelled(placement)
            self.node.end(placement.incarnation)
            raise

    async def _follow(self, placement: Placement) -> None:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unreachable):
                    async for event in self.service().progress(placement.key, 0):
                        if event.failure is not None:
                            if event.failure.code == "service_unreachable":
                                break
                            raise Refused(Reason.of(event.failure.code))
                        tree, mine = event.tree, placement.incarnation
                        if tree is not None and tree.incarnation == mine:
                            return
                await asyncio.sleep(0.01)


class _HubHandler(RequestHandler):
    def initialize(self, hub: HubInMemory) -> None:
        self.hub = hub

    async def prepare(self) -> None:
        if self.request.headers.get("Authorization") != "token hub-token":
            self.fail(403, "not allowed")
        if self.hub.never_answers:
            await asyncio.Event().wait()

    def fail(self, status: int, message: str) -> None:
        self.set_status(status)
        self.finish(json.dumps({"status": status, "message": message}))

    def servers(self, user: str) -> dict:
        found = {}
        for key, state in self.hub.states.items():
            if key.user == user and state != "stopped":
                found[key.server] = {
                    "name": key.server,
                    "ready": state == "running",
                    "pending": PENDING.get(state),
                    "user_options": self.hub.options.get(key, {}),
                }
        return found

    def user(self, name: str) -> dict:
        model = {"name": name, "servers": self.servers(name)}
        if self.hub.groups is not None:
            model["groups"] = self.hub.groups.get(name, [])
        return model


class _Me(RequestHandler):
    """Who a person's token belongs to, as the service's own logins ask."""

    def get(self) -> None:
        if self.request.headers.get("Authorization") != "token root-token":
            self.set_status(403)
            return
        scopes = [
            "access:services!service=gpu-reclaim",
            "custom:gpu-reclaim:manage",
        ]
        self.write({"kind": "user", "name": "root", "scopes": scopes})


class _Users(_HubHandler):
    def get(self) -> None:
        names = sorted({key.user for key in self.hub.states})
        offset, limit = int(self.get_argument("offset")), 1
        items = [self.user(name) for name in names[offset : offset + limit]]
        more = offset + limit < len(names)
        following = {"offset": offset + limit, "limit": limit} if more else None
        self.write({"items": items, "_pagination": {"next": following}})


class _User(_HubHandler):
    def get(self, user: str) -> None:
        if user not in {key.user for key in self.hub.states}:
            self.fail(404, "no such user")
            return
        self.write(self.user(user))


class _Server(_HubHandler):
    async def post(self, user: str, server: str | None = None) -> None:
        key = SessionKey(user, server or "")
        self.hub.orders.append(f"start {key}")
        assert not self.request.body
        state = self.hub.states.get(key, "stopped")
        if self.hub.refuses_start:
            self.fail(400, self.hub.refuses_start)
        elif state == "running":
            self.fail(400, f"{key} is already running")
        elif state == "stopped":
            started = self.hub.starts[key] = self.hub.spawn(self.hub.start(key))
            _, pending = await asyncio.wait({started}, timeout=SLOW)
            self.set_status(202 if pending else 201)
        elif state == "spawning":
            self.set_status(202)
        else:
            self.fail(400, f"{key} is pending {PENDING[state]}")

    async def delete(self, user: str, server: str | None = None) -> None:
        key = SessionKey(user, server or "")
        self.hub.orders.append(f"stop {key}")
        state = self.hub.states.get(key, "stopped")
        if self.hub.refuses_stop:
            self.fail(500, "broken")
        elif state == "running":
            stopped = self.hub.spawn(self.hub.stop(key))
            _, pending = await asyncio.wait({stopped}, timeout=SLOW)
            self.set_status(202 if pending else 204)
        else:
            if state == "spawning":
                self.hub.interrupt(key)
            self.set_status(202 if state == "stopping" else 204)


def _serve(application: Application) -> tuple[HTTPServer, str]:
    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(application)
    server.add_sockets(sockets)
    return server, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"


def serve_node(node: NodeInMemory, folder: Path) -> tuple[HTTPServer, str]:
    """The agent's real routes on that node, at a socket there; server and address."""
    node.terms = KnownTerm()
    server = HTTPServer(make_application(node, TOKEN, node.terms))
    path = folder / "agent.sock"
    server.add_socket(unix_sockets.listening(path))
    return server, f"unix:{path}"


def serve_hub(hub: HubInMemory) -> tuple[HTTPServer, str]:
    """The Hub's REST API; server and address."""
    bound = {"hub": hub}
    return _serve(
        Application(
            [
                ("/hub/api/user", _Me),
                ("/hub/api/users", _Users, bound),
                ("/hub/api/users/([^/]+)", _User, bound),
                ("/hub/api/users/([^/]+)/server", _Server, bound),
                ("/hub/api/users/([^/]+)/servers/([^/]+)", _Server, bound),
            ]
        )
    )
