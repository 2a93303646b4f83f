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
from dataclasses import dataclass, field, replace

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
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    Failure,
    Finding,
    Identity,
    Placement,
    Sample,
    SessionKey,
    Step,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.http.routes import make_application

TOKEN = "agent-token"
#: How long the Hub waits for a server before it answers (``slow_spawn_timeout``).
SLOW = 10.0
STEPS = ("preflight", "dump", "commit")


class PowerCut(BaseException):
    """The program's end; not an Exception, as nobody catches SIGKILL."""


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


@dataclass
class Place:
    """One incarnation on the node."""

    key: SessionKey
    incarnation: str
    state: TreeState
    contents: str = ""
    checkpoint: str = ""
    generation: int = 0
    failure: Failure | None = None
    cancel: bool = False
    events: list[Event] = field(default_factory=list)
    task: asyncio.Task | None = None
    pod: str = ""
    came_from: str = ""  # checkpoint that it was restored from

    def tree(self) -> Tree:
        return Tree(
            incarnation=self.incarnation,
            key=self.key,
            state=self.state,
            init_pid=1,
            checkpoint=self.checkpoint,
            generation=self.generation,
            failure=self.failure,
            pod=self.pod,
        )


class NodeInMemory:
    """What the agent's routes ask for, with switches for faults."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.saved: dict[str, tuple[CheckpointInfo, str]] = {}
        self.hold_at = (
            ""  # a capture waits at that step until it is cancelled or let go
        )
        self.capture_failure: Failure | None = None
        self.restore_failure: Failure | None = None
        self.lost: list[str] = []  # contents that were ended without a checkpoint
        self.breaks_streams = False
        self.wakes = 0  # so many saved trees are woken by their user before their end
        self.calls: list[str] = []
        self.kernels: list | None = None
        self.gpus: list = []  # that every session holds
        self.room: int | None = None  # so many sessions have memory on a GPU
        self.samples_fail = False
        self.silent: set[str] = set()  # incarnations whose node does not answer
        self.told: dict[str, list] = {}  # of each incarnation, by the service
        self.findings: list[Finding] = []  # of the node itself

    # --- for tests
    def run(self, key: SessionKey, contents: str, incarnation: str = "") -> Place:
        incarnation = incarnation or uuid.uuid4().hex
        place = Place(key, incarnation, TreeState.RUNNING, contents)
        self.places[incarnation] = place
        return place

    def hold(self, key: SessionKey, incarnation: str) -> None:
        self.places[incarnation] = Place(key, incarnation, TreeState.HOLDING)

    def living(self, key: SessionKey) -> list[Place]:
        return [
            place
            for place in self.places.values()
            if place.key == key
            and place.state
            in {TreeState.RUNNING, TreeState.CAPTURING, TreeState.CAPTURED}
        ]

    def end(self, incarnation: str) -> None:
        """A real stop, by the spawner."""
        self.places.pop(incarnation, None)

    # --- Node
    async def ready(self):
        return self.findings

    async def trees(self):
        return [place.tree() for place in self.places.values()]

    async def tell(self, incarnation, told):
        self.told.setdefault(incarnation, []).append(told)
        if told.pod != getattr(self.places.get(incarnation), "pod", told.pod):
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    async def tree(self, incarnation):
        return self._place(incarnation).tree()

    async def samples(self):
        if self.samples_fail:
            raise ReclaimError(Reason.INTERNAL)
        return [
            Sample(
                incarnation=place.incarnation,
                key=place.key,
                at=time.time(),
                kernels=self.kernels,
                gpus=self.gpus,
                pod=place.pod,
            )
            for place in self.places.values()
            if place.state is TreeState.RUNNING and place.incarnation not in self.silent
        ]

    async def preflight(self, incarnation):
        return []

    async def checkpoints(self):
        return [info for info, _ in self.saved.values()]

    async def identity(self, checkpoint):
        if checkpoint not in self.saved:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return Identity(api_token="secret", port=8888)

    async def discard(self, checkpoint):
        self.calls.append(f"discard {checkpoint}")
        self.saved.pop(checkpoint, None)

    async def capture(self, incarnation, checkpoint, generation):
        place = self._place(incarnation)
        if place.checkpoint != checkpoint:
            if place.state is not TreeState.RUNNING:
                raise Refused(Reason.WRONG_PHASE, phase=place.state, action="save")
            place.state, place.checkpoint = TreeState.CAPTURING, checkpoint
            place.cancel, place.failure, place.events = False, None, []
            place.task = asyncio.create_task(self._capture(place, generation))
        return self._follow(place)

    async def _capture(self, place: Place, generation: int) -> None:
        for step in STEPS:
            place.events.append(Event(step=Step(step=step, title=step)))
            await asyncio.sleep(0.002)
            while self.hold_at == step and not place.cancel:
                await asyncio.sleep(0.002)
            failure = self.capture_failure
            if place.cancel:
                failure = Failure(code="cancelled", message="Called off.")
            if failure is not None:
                place.state, place.failure = TreeState.RUNNING, failure
                place.events.append(Event(failure=failure))
                return
            done = Step(step=step, title=step, state="done", seconds=0.002)
            place.events.append(Event(step=done))
        info = CheckpointInfo(
            id=place.checkpoint,
            key=place.key,
            incarnation=place.incarnation,
            generation=generation,
            created=float(generation),
            logical_bytes=1000,
            stored_bytes=100,
            parent=place.came_from,
        )
        self.saved[info.id] = (info, place.contents)
        place.state = TreeState.CAPTURED
        place.events.append(Event(checkpoint=info))

    async def restore(self, incarnation, checkpoint):
        place = self._place(incarnation)
        anew = place.failure is not None and place.failure.code == "gpu_memory"
        if place.state is TreeState.HOLDING and (
            anew or place.checkpoint != checkpoint
        ):
            others = [p for p in self.places.values() if p is not place]
            if any(
                p.checkpoint == checkpoint
                and p.state in {TreeState.RESTORING, TreeState.RUNNING}
                for p in others
            ):
                raise Refused(Reason.CHECKPOINT_BUSY)
            place.state, place.checkpoint = TreeState.RESTORING, checkpoint
            place.events, place.failure = [], None
            place.task = asyncio.create_task(self._restore(place))
        return self._follow(place)

    async def _restore(self, place: Place) -> None:
        place.events.append(Event(step=Step(step="criu", title="criu")))
        await asyncio.sleep(0.005)
        while self.hold_at == "criu" and not place.cancel:
            await asyncio.sleep(0.002)
        running = sum(p.state is TreeState.RUNNING for p in self.places.values())
        if self.room is not None and running >= self.room:
            full = Failure(code="gpu_memory", message="Too little.", retryable=True)
            place.state, place.failure = TreeState.HOLDING, full
            place.events.append(Event(failure=full))
            return
        if self.restore_failure is not None or place.cancel:
            failure = self.restore_failure or Failure(code="cancelled", message="Off.")
            place.state, place.failure = TreeState.HOLDING, failure
            place.events.append(Event(failure=failure))
            return
        place.contents = self.saved[place.checkpoint][1]
        place.came_from = place.checkpoint
        place.state = TreeState.RUNNING
        place.events.append(Event(tree=place.tree()))

    async def _follow(self, place: Place):
        at = 0
        while True:
            while at < len(place.events):
                if self.breaks_streams and at:
                    return
                yield place.events[at]
                if place.events[at].step is None:
                    return
                at += 1
            await asyncio.sleep(0.002)

    async def thaw(self, incarnation):
        place = self._place(incarnation)
        self.calls.append("thaw")
        if place.state is TreeState.CAPTURED:
            self.saved.pop(place.checkpoint, None)
            place.state, place.checkpoint = TreeState.RUNNING, ""
        return place.tree()

    async def release(self, incarnation, checkpoint):
        place = self.places.get(incarnation)
        if checkpoint not in self.saved:
            raise Refused(Reason.NOT_CAPTURED)
        if place is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        if place.state is not TreeState.CAPTURED:
            raise Refused(Reason.NOT_CAPTURED)
        if self.wakes:
            self.wakes -= 1
            await self.thaw(incarnation)
            refused = Refused(Reason.WENT_ON, who="7 (sleep)")
            place.checkpoint, place.failure = checkpoint, codec.failure_of(refused)
            raise refused
        self.places.pop(incarnation)
        return replace(place, state=TreeState.GONE).tree()

    async def kill(self, incarnation):
        place = self.places.get(incarnation)
        if place is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        self.calls.append(f"kill {place.state}")
        if place.state is TreeState.CAPTURING:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="capture")
        if place.state is TreeState.RESTORING:
            place.cancel = True
            await asyncio.wait({place.task})
        if place.contents and place.checkpoint not in self.saved:
            self.lost.append(place.contents)
        self.places.pop(incarnation, None)
        return replace(place, state=TreeState.GONE).tree()

    async def cancel(self, incarnation):
        self.calls.append("cancel")
        self._place(incarnation).cancel = True

    def _place(self, incarnation: str) -> Place:
        if incarnation not in self.places:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return self.places[incarnation]


class HubInMemory:
    """The Hub's REST API about servers, and the spawner behind it."""

    def __init__(self, node: NodeInMemory) -> None:
        self.node = node
        self.controller = None  # None: the service is down
        self.states: dict[SessionKey, str] = {}
        self.incarnations: dict[SessionKey, str] = {}
        self.pointers: dict[SessionKey, str] = {}
        self.refuses_stop = False
        self.never_answers = False
        self.ignores_restored = False
        self.groups: dict[str, list[str]] | None = None  # None: we may not see them
        self.options: dict[SessionKey, object] = {}
        self.orders: list[str] = []
        self.plans: list[str] = []
        self.errors: list[str] = []
        self.tasks: set[asyncio.Task] = set()

    def placement(self, key: SessionKey) -> Placement:
        """Where a start in hand is to be."""
        (place,) = [p for p in self.node.places.values() if p.key == key]
        pointer = self.pointers.get(key, "")
        return Placement(key=key, incarnation=place.incarnation, checkpoint=pointer)

    def run(self, key: SessionKey, incarnation: str) -> None:
        self.states[key] = "running"
        self.incarnations[key] = incarnation

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
        self.states[key] = "stopping"
        placement = Placement(key=key, incarnation=self.incarnations[key])
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

    async def start(self, key: SessionKey) -> str:
        self.states[key] = "spawning"
        incarnation = uuid.uuid4().hex
        pointer = self.pointers.get(key, "")
        placement = Placement(key=key, incarnation=incarnation, checkpoint=pointer)
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
                cold = Placement(key=key, incarnation=incarnation)
                await self.service().placed(cold)
            else:
                placement = Placement(
                    key=key, incarnation=incarnation, checkpoint=plan.checkpoint
                )
                await self._restore(placement)
        except ReclaimError as error:
            self.states[key] = "stopped"
            return error.reason.value
        if not self.ignores_restored:
            self.run(key, incarnation)
        return plan.action

    async def _restore(self, placement: Placement) -> None:
        self.node.hold(placement.key, placement.incarnation)
        try:
            await self.service().placed(placement)
            await self._follow(placement)
        except ReclaimError:
            with contextlib.suppress(ReclaimError):
                await self.service().cancelled(placement)
            self.node.end(placement.incarnation)
            raise

    async def _follow(self, placement: Placement) -> None:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(Unreachable):
                    async for event in self.service().progress(placement.key, 0):
                        if event.failure is not None:
                            if event.failure.code == "service_unreachable":
                                break
                            raise Refused(Reason.of(event.failure.code))
                        if event.tree is not None:
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
                pending = {
                    "spawning": "spawn",
                    "stopping": "stop",
                    "checking": "check",
                }.get(state)
                found[key.server] = {
                    "name": key.server,
                    "ready": state == "running",
                    "pending": pending,
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
        if state == "running":
            self.fail(400, f"{key} is already running")
        elif state == "stopped":
            started = self.hub.spawn(self.hub.start(key))
            _, pending = await asyncio.wait({started}, timeout=SLOW)
            self.set_status(202 if pending else 201)
        else:
            self.fail(400, f"{key} is pending {state}")

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
            self.set_status(204)


def _serve(application: Application) -> tuple[HTTPServer, str]:
    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(application)
    server.add_sockets(sockets)
    return server, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"


def serve_node(node: NodeInMemory) -> tuple[HTTPServer, str]:
    """The agent's real routes on that node; server and address."""
    return _serve(make_application(node, TOKEN))


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
