"""One installation in the simulator, for tests that tell stories of their own.

Service, agent and spawner are the product's own code; kernel, driver, store, network
and Hub are the simulator's doubles. Time is virtual, and the simulator's laws hold
beside what a test asserts. What a test calls is the control plane's public face
(``Controller``), the Hub as people use it (``world.hub``), and faults.

A folder's tests run on the simulator's loop if its ``conftest.py`` has the fixture
:func:`world` and a ``pytest_asyncio_loop_factories``.
"""

import asyncio
import dataclasses
import inspect
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RestoreFailed,
    RolledBack,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Decision,
    Failure,
    KernelSample,
    Mark,
    Sample,
    SessionKey,
    SessionView,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.node.workflows import recovery
from simulation import runner
from simulation.doubles.hub import ServerRow
from simulation.doubles.kernel import MEMORY, installed
from simulation.doubles.machine import Place, ProgramTree
from simulation.doubles.network import Server
from simulation.doubles.store import Saved
from simulation.loop import MONDAY, VirtualLoop, pause
from simulation.plan import Plan
from simulation.world import HubApi, ServiceApi
from simulation.world import World as Installation

KEY = SessionKey("ada")
DELETED = Deletion(user="ada")  # without a file
#: Limits of the service, short: a second of theirs is many of its looks.
QUICK = Settings(
    sample_interval=0.5,
    tick_interval=0.5,
    warn_for=0.0,
    grace=60.0,
    orphan_grace=3.0,
    release_limit=30.0,
    settle_limit=5.0,
    backoff=30.0,
    pace=0.1,
)


class _Installation(Installation):
    """The simulator's, whose service is started by the test, and which takes notes."""

    def __init__(self, plan: Plan, folder: Path, loop: VirtualLoop) -> None:
        super().__init__(plan, folder, loop)
        self.restarts = False
        self.plans: list[str] = []  #: what the service has told the Hub to do
        self.orders: list[str] = []  #: what it has ordered at the Hub
        self.refuses_stop = False  #: the Hub, and it never answers
        self.never_answers = False
        self.agents: dict[str, Server] = _Agents()

    def start_service(self, changes: Any = None) -> Any:
        """Only a test starts it: the Hub's start does not."""
        return None if changes is None else super().start_service(changes)

    def _new_tree(self, *what: Any) -> ProgramTree:
        """Nothing is on a card, unless a test says so."""
        tree = super()._new_tree(*what)
        tree.gpu_bytes, tree.on_gpu = 0, False
        return tree

    def begins_to_capture(self, incarnation: str) -> None:
        """The policy is the test's: what it says of a session at work is no fault."""

    def service(self) -> Server | None:
        found = super().service()
        return found and Server(found.program, _Noted(found.api, self.plans))

    def _hub_server(self) -> Server | None:
        found = super()._hub_server()
        return found and Server(found.program, _Ordered(found.api, self))


class _Agents(dict[str, Server]):
    """Who listens on each machine, with a test's switches before it."""

    def __init__(self) -> None:
        super().__init__()
        self.away: dict[str, ReclaimError] = {}
        self.calls: list[str] = []
        self.slow: dict[str, float] = {}
        self.ending = False

    def get(self, name: str, default: Any = None) -> Any:
        found = super().get(name, default)
        return found and Server(found.program, _Switched(found.api, self))


class _Switched:
    """An agent's calls, which a test counts and has fail."""

    def __init__(self, api: Any, switches: _Agents) -> None:
        self._api, self._of = api, switches

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            called = args[1].kind if name == "carry_out" else name
            told = " ".join((called, *map(str, args[:1])))
            self._of.calls.append(told)
            await asyncio.sleep(self._of.slow.get(called, 0.0))
            if error := self._of.away.get(called) or self._of.away.get(told):
                raise error
            answer = getattr(self._api, name)(*args, **more)
            if inspect.iscoroutine(answer):
                answer = await answer
            if name == "trees" and self._of.ending:
                return [msgspec.structs.replace(each, ending=True) for each in answer]
            return answer

        return call


class _Noted:
    """The service's calls, of which the plans are noted."""

    def __init__(self, api: ServiceApi, plans: list[str]) -> None:
        self._api, self._plans = api, plans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def plan_start(self, placement: Any) -> Any:
        plan = await self._api.plan_start(placement)
        self._plans.append(f"start {plan.action}")
        return plan

    async def plan_stop(self, placement: Any) -> Any:
        try:
            plan = await self._api.plan_stop(placement)
        except ReclaimError as error:
            self._plans.append(f"stop failed {error.reason.value}")
            raise
        self._plans.append(f"stop {plan.action}")
        return plan


class _Ordered:
    """The Hub's calls for the service, of which the orders are noted."""

    def __init__(self, api: HubApi, of: _Installation) -> None:
        self._api, self._of = api, of

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._ask(name, *args)

    async def _ask(self, name: str, *args: Any) -> Any:
        if self._of.never_answers:
            await asyncio.Event().wait()
        if name in {"start", "stop"}:
            self._of.orders.append(f"{name} {args[0]}")
        if name == "stop" and self._of.refuses_stop:
            raise Refused(Reason.HUB_REFUSED, why="it is broken")
        return await getattr(self._api, name)(*args)


class Machine:
    """The machine of all sessions, its agent and the store; with switches for faults.

    Attributes:
        hold_at: an operation waits in the middle of that work (``dump``, ``criu``,
            ``gpu out``, ``gpu back``), until it is called off or let go on.
        begun: work of which that moment has come, so far.
        holds: names of servers, where only theirs wait; empty: all.
        failures: how a work fails.
        failures_of: how works of a session fail.
        says: fields of all samples that are told otherwise; None: there are none.
        says_of: likewise of one incarnation; None: of that one there are none.
        switches: what the agents answer to calls: ``away`` (names of calls, with the
            error; or a call with its first argument), ``ending`` (all pods are being
            deleted), and the ``calls`` so far.
    """

    def __init__(self, installation: _Installation) -> None:
        self._of = installation
        self.machine = installation.machine(0)
        self.switches: Any = installation.agents
        self.hold_at = ""
        self.begun: list[str] = []
        self.holds: set[str] = set()
        self.failures: dict[str, Failure] = {}
        self.failures_of: dict[SessionKey, dict[str, Failure]] = {}
        self.says: dict[str, Any] | None = {}
        self.says_of: dict[str, dict[str, Any] | None] = {}
        for each in installation.machines:
            each.measured = self._measured
        self._of.kernel.at = self._at
        self._of.kernel.takes = lambda *_: pause(0.002)

    def _at(self, work: str, place: Place, cancel: Any) -> None:
        self.begun.append(work)
        while self.hold_at == work and not (cancel and cancel.is_set):
            if self.holds and place.key.server not in self.holds:
                break
            pause(0.01)
        failures = self.failures | self.failures_of.get(place.key, {})
        if work in failures:
            kind = RestoreFailed if work == "criu" else RolledBack
            raise codec.error_of(failures[work], kind)

    def _measured(self, samples: list[Sample]) -> list[Sample]:
        if self.says is None:
            raise ReclaimError(Reason.INTERNAL)
        told = [(one, self.says_of.get(one.incarnation, {})) for one in samples]
        return [
            msgspec.structs.replace(one, **self.says | own)
            for one, own in told
            if own is not None
        ]

    @property
    def places(self) -> dict[str, Place]:
        return self.machine.places

    @property
    def saved(self) -> dict[str, Saved]:
        return self._of.store.saved

    def called(self, name: str) -> list[str]:
        return [each for each in self.switches.calls if each.split()[0] == name]

    def used(self, at: float) -> None:
        """From now on all servers say that they were used then."""
        idle = {"id": "k", "name": "a.ipynb", "execution_state": "idle"}
        self.says = {"kernels": [KernelSample(**idle, last_activity=at)]}

    def away(
        self, *names: str, error: ReclaimError | None = None
    ) -> Callable[[], None]:
        """These calls fail, until what is returned is called."""
        failure = error or StoreError(Reason.STORE_FAILED, why="it is away")
        self.switches.away |= dict.fromkeys(names, failure)

        def back() -> None:
            for name in names:
                self.switches.away.pop(name, None)

        return back

    def copy(self, checkpoint: str, contents: str = "", **changes: Any) -> None:
        """Another checkpoint beside it; or itself, changed, under the same id."""
        there = self.saved[checkpoint]
        info, files = msgspec.structs.replace(there.info, **changes), there.files
        if contents:
            memory = codec.decode(files[MEMORY], dict) | {"contents": contents}
            files = files | {MEMORY: msgspec.json.encode(memory)}
        self.saved[info.id] = there._replace(info=info, files=files)
        self._of.ledger.contents[info.id] = self.contents(info.id)

    def listed(self) -> list[CheckpointInfo]:
        """What a list of the store shows."""
        return [each.shown() for each in self.saved.values()]

    def said(self, checkpoint: str) -> Mark:
        return self.saved[checkpoint].mark[1]

    def contents(self, checkpoint: str) -> str:
        return codec.decode(self.saved[checkpoint].files[MEMORY], dict)["contents"]

    def living(self, key: SessionKey = KEY) -> list[Place]:
        """Places in which something runs or is frozen."""
        return [p for p in self.places.values() if p.key == key and p.tree is not None]

    def works(self, key: SessionKey = KEY) -> list[str]:
        return [place.tree.contents for place in self.living(key) if place.tree]

    def works_on(self, contents: str, key: SessionKey = KEY) -> None:
        """What the session that runs has in memory from now on."""
        (place,) = self.living(key)
        assert place.tree is not None
        place.tree.contents = contents

    def run(self, key: SessionKey, contents: str, incarnation: str = "") -> Place:
        tree = self._of._new_tree(self.machine, key, "a-login", 8888)
        tree.contents = contents
        name = incarnation or f"i-{self._of.name()}"
        return self.machine.add(key, name, tree=tree, session=f"s-{name}")

    def hold(self, key: SessionKey, incarnation: str, session: str = "") -> Place:
        return self.machine.add(key, incarnation, tree=None, session=session)

    def end(self, incarnation: str) -> None:
        self.machine.end(self.places[incarnation], "fault: a test")


class Hub:
    def __init__(self, installation: _Installation) -> None:
        self._of = installation
        self.states = _States(installation)

    @property
    def process(self) -> Any:
        assert self._of.hub is not None
        return self._of.hub

    @property
    def plans(self) -> list[str]:
        return self._of.plans

    @property
    def orders(self) -> list[str]:
        return self._of.orders

    def run(self, key: SessionKey = KEY) -> None:
        self.states[key] = "running"

    def remembers(self, key: SessionKey = KEY, **changes: Any) -> None:
        """Its database says something else of a server that is stopped."""
        row = self._of.database.servers.setdefault(key, ServerRow())
        spawner = self.process._spawner(key)
        spawner._lifecycle.load(
            msgspec.structs.replace(spawner.reclaim_pointer, **changes)
        )
        row.state = spawner.get_state()

    def forget(self, key: SessionKey = KEY) -> None:
        """It remembers nothing of a server that is stopped."""
        self._of.database.servers.pop(key, None)
        self.process.spawners.pop(key, None)

    def incarnation(self, key: SessionKey = KEY) -> str:
        """That the spawner has started or taken over."""
        return self.process._spawner(key).reclaim_pointer.incarnation

    def pointer(self, key: SessionKey = KEY) -> str:
        return self.process._spawner(key).reclaim_pointer.checkpoint

    def account(self, key: SessionKey = KEY) -> str:
        if key.user not in self._of.database.accounts:
            self._of.add_account(key.user)
        return self._of.database.accounts[key.user]

    async def start(self, key: SessionKey = KEY) -> str:
        """A visit: what the service planned, or why there is nothing to see."""
        self.account(key)
        self.plans.append("start unplanned")
        try:
            await self.process.start(key)
            await self.settled(key)
        except ReclaimError as error:
            return self.process.refusals.pop(key, error.reason.value)
        return self.plans[-1].partition(" ")[2]

    async def stop(self, key: SessionKey = KEY) -> None:
        self._of.ledger.give_up_all(key)
        await self.process.stop(key)
        await self.settled(key)

    async def settled(self, key: SessionKey = KEY) -> None:
        while key in self.process.pending:
            await asyncio.sleep(0.05)


class _States:
    """What the Hub says of each server, and what it is to believe."""

    def __init__(self, installation: _Installation) -> None:
        self._of = installation

    def __getitem__(self, key: SessionKey) -> str:
        return self._of.hub._state(key).value

    def __setitem__(self, key: SessionKey, state: str) -> None:
        hub = self._of.hub
        pending = {"spawning": "spawn", "stopping": "stop", "checking": "check"}
        hub.pending.pop(key, None)
        if state in pending:
            hub.pending[key] = pending[state]
            return
        row = hub.database.servers.setdefault(key, ServerRow())
        row.running = state == "running"
        if state == "stopped":
            hub.spawners.pop(key, None)


class World:
    """Machine, store and Hub, which last; services, which come and go."""

    def __init__(self, folder: Path, loop: VirtualLoop, nodes: int) -> None:
        plan = Plan(1, (KEY,), nodes=nodes, naps=True, rehearsed=True)
        self.installation = _Installation(plan, folder, loop)
        self.settings = QUICK
        self.verdict = Decision(
            reclaim=False, code="recently_active", message="Active."
        )
        self.node = Machine(self.installation)
        self.hub = Hub(self.installation)

    def open(self) -> None:
        of = self.installation
        (of.folder / "token").write_text("secret")
        of.put_journal(None)
        for machine in of.machines:
            of.start_agent(machine)
        of.start_hub()

    def now(self) -> float:
        """Seconds since the epoch, by the service's clock."""
        return MONDAY + self.installation.loop.time() + self.installation.skew

    async def controller(self, writes: int = 0, **more: Any) -> Controller:
        """A new service on the same journal."""
        of = self.installation
        of.settings = self.settings
        changes = {"decide": lambda view, now: [self.verdict], **more}
        service = of.start_service(changes)
        await self.until(lambda: service.controller is not None)
        service.program.writes_left = writes or None
        for order in ("start_fresh", "delete", "end_tree"):
            self._note_given_up(service.controller.users, order)
        self._note_given_up(service.controller, "forget")
        return service.controller

    def _note_given_up(self, part: Any, order: str) -> None:
        """What its user does not need may go: the laws are told so."""
        give = getattr(part, order)

        async def given(whose: Any, *more: Any, **others: Any) -> Any:
            self.give_up(getattr(whose, "key", whose))
            return await give(whose, *more, **others)

        setattr(part, order, given)

    def give_up(self, key: SessionKey = KEY) -> None:
        """Nobody needs what there is of a session now."""
        self.installation.ledger.give_up_all(key)

    def is_dead(self, controller: Controller) -> bool:
        services = self.installation.services
        return all(each.controller is not controller for each in services)

    async def kill(self, controller: Controller) -> None:
        """The service is gone, whatever it was doing. Idempotent."""
        for service in self.installation.services[:]:
            if service.controller is controller:
                service.program.kill()

    async def kill_agent(self) -> None:
        self.node.machine.agent.kill()
        self.installation.start_agent(self.node.machine)
        await self.until(lambda: self.installation.agents)

    def change(self, **settings: Any) -> None:
        """Other limits, for the services that are started from now on."""
        self.settings = dataclasses.replace(self.settings, **settings)

    async def journal_lost(self, controller: Controller) -> Controller:
        """A new service, with an empty journal; the rest goes on as it is."""
        await self.kill(controller)
        self.installation.put_journal(None)
        return await self.controller()

    def backup(self) -> Any:
        return self.installation.copy_journal()

    async def journal_put_back(self, controller: Controller, backup: Any) -> Controller:
        await self.kill(controller)
        self.installation.put_journal(backup)
        return await self.controller()

    async def suspended_afresh(self, controller: Controller) -> None:
        """Puts the suspended session aside; a new one is suspended beside it."""
        await controller.users.start_fresh(KEY, "ada")
        assert await self.hub.start() == "cold"
        await self.reaches(controller, "running")
        await self.suspend(controller)

    async def suspend(self, controller: Controller, key: SessionKey = KEY) -> str:
        """By its user; the checkpoint's id."""
        await controller.users.suspend(key, "ada")
        await self.reaches(controller, "suspended", key)
        return controller.users.session(key).checkpoint

    async def saved(self, controller: Controller, name: str = "") -> str:
        before = set(self.node.saved)
        await controller.users.save(KEY, "ada", name)
        await self.until(lambda: not self.view(controller).facts.intent)
        (new,) = set(self.node.saved) - before
        return new

    def lost(self) -> None:
        for place in self.node.living():
            self.node.end(place.incarnation)
        self.hub.states[KEY] = "stopped"

    async def resume(self, controller: Controller, contents: str = "") -> None:
        """A visit brings it back; then it works on."""
        assert await self.hub.start(KEY) == "restore"
        await self.reaches(controller, "running")
        if contents:
            self.node.works_on(contents)

    async def running(
        self, contents: str = "work", key: SessionKey = KEY, gpu: int = 0
    ) -> str:
        """A session that the Hub has started, on whatever machine; its incarnation."""
        await self.hub.start(key)
        (place,) = self.installation.machines.of_session(key)
        assert place.tree is not None
        place.tree.contents = contents
        place.tree.gpu_bytes, place.tree.on_gpu = gpu, gpu > 0
        return place.incarnation

    async def started(
        self, contents: str = "work", gpu: int = 0, **settings: Any
    ) -> tuple[Controller, str]:
        """A service, and a session that it knows to run; both."""
        self.change(**settings)
        incarnation = await self.running(contents, gpu=gpu)
        controller = await self.controller()
        await self.reaches(controller, "running")
        return controller, incarnation

    async def suspended(self, contents: str = "work", **settings: Any) -> Controller:
        controller, _ = await self.started(contents, **settings)
        await controller.users.suspend(KEY, "ada")
        await self.reaches(controller, "suspended")
        return controller

    async def reaches(
        self, controller: Controller, phase: str, key: SessionKey = KEY
    ) -> None:
        await self.until(lambda: self.phase(controller, key) == phase)

    def view(self, controller: Controller, key: SessionKey = KEY) -> SessionView:
        return controller.users.session(key)

    def phase(self, controller: Controller, key: SessionKey = KEY) -> str:
        with suppress(ReclaimError):
            return controller.users.session(key).phase.value
        return ""

    async def until(self, condition: Callable[[], Any], limit: float = 120.0) -> Any:
        """Wait until it holds, for so many seconds; its last value."""
        now = self.installation.loop.time
        end = now() + limit
        while not (value := condition()):
            assert now() < end, f"not within {limit:g} s"
            await asyncio.sleep(0.01)
        return value

    def check(self) -> None:
        violations = self.installation.history.violations
        assert not violations, violations

    def close(self) -> None:
        for program in self.installation.programs:
            program.kill()
        recovery._kept.clear()
        for task in self.installation.loop.graveyard:
            asyncio.tasks._unregister_task(task)  # nobody is to wait for the dead


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """One installation; its laws are looked at in the end.

    Its parameter is the number of nodes of a cluster; without one, all is on a machine.
    """
    loop: Any = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=runner.FOLDER) as folder:
        world = World(Path(folder), loop, getattr(request, "param", 0))
        of = world.installation
        with installed(of.kernel, random.Random("names"), of.substitutes()):
            world.open()
            yield world
            world.close()
        world.check()
