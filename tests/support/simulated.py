"""One installation in the simulator, for tests that tell stories of their own.

Service, agent and spawner are the product's own code; kernel, driver, store, network
and Hub are the simulator's doubles. Time is virtual, and the simulator's laws hold
beside what a test asserts. What a test calls is the control plane's public face
(``Controller``), the Hub as people use it (``world.hub``), and faults.

A folder's tests run on the simulator's loop if its ``conftest.py`` has
:func:`pytest_asyncio_loop_factories` and the fixture :func:`world`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed, RolledBack
from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from jupyterhub_gpu_reclaim.node.workflows import recovery
from simulation import runner
from simulation.doubles.kernel import MEMORY, installed
from simulation.doubles.network import Server
from simulation.loop import MONDAY, VirtualLoop, pause
from simulation.plan import Plan
from simulation.world import HubApi, ServiceApi
from simulation.world import World as Installation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import Failure, Sample, SessionView
    from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller
    from simulation.doubles.machine import Place, ProgramTree
    from simulation.doubles.store import Saved

KEY = SessionKey("ada")
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
        return found and Server(found.program, _Ordered(found.api, self.orders))


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

    def __init__(self, api: HubApi, orders: list[str]) -> None:
        self._api, self._orders = api, orders

    def __getattr__(self, name: str) -> Any:
        if name in {"start", "stop"}:
            return lambda key: self._order(name, key)
        return getattr(self._api, name)

    async def _order(self, name: str, key: SessionKey) -> None:
        self._orders.append(f"{name} {key}")
        await getattr(self._api, name)(key)


class Machine:
    """The machine of all sessions, its agent and the store; with switches for faults.

    Attributes:
        hold_at: an operation waits in the middle of that work (``dump``, ``criu``,
            ``gpu out``, ``gpu back``), until it is called off or let go on.
        holds: names of servers, where only theirs wait; empty: all.
        failures: how a work fails.
        failures_of: how works of a session fail.
        says: fields of all samples that are told otherwise; None: there are none.
        says_of: likewise of one incarnation; None: of that one there are none.
    """

    def __init__(self, installation: _Installation) -> None:
        self._of = installation
        self.machine = installation.machine(0)
        self.hold_at = ""
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
        """The inits there, by incarnation."""
        return self.machine.places

    @property
    def saved(self) -> dict[str, Saved]:
        """What is committed, by its id."""
        return self._of.store.saved

    def contents(self, checkpoint: str) -> str:
        """What a checkpoint holds."""
        return codec.decode(self.saved[checkpoint].files[MEMORY], dict)["contents"]

    def living(self, key: SessionKey = KEY) -> list[Place]:
        """Places in which something runs or is frozen."""
        return [p for p in self.places.values() if p.key == key and p.tree is not None]

    def works(self, key: SessionKey = KEY) -> list[str]:
        """What these hold in memory."""
        return [place.tree.contents for place in self.living(key) if place.tree]

    def run(self, key: SessionKey, contents: str, incarnation: str = "") -> Place:
        """Something that runs there, and that no Hub has started."""
        tree = self._of._new_tree(self.machine, key, "a-login", 8888)
        tree.contents = contents
        name = incarnation or f"i-{self._of.name()}"
        return self.machine.add(key, name, tree=tree, session=f"s-{name}")

    def hold(self, key: SessionKey, incarnation: str, session: str = "") -> Place:
        """An init that waits for a tree."""
        return self.machine.add(key, incarnation, tree=None, session=session)

    def end(self, incarnation: str) -> None:
        """Its programs have ended, by whomever."""
        self.machine.end(self.places[incarnation], "fault: a test")


class Hub:
    """The Hub, as people see it."""

    def __init__(self, installation: _Installation) -> None:
        self._of = installation
        self.states = _States(installation)

    @property
    def process(self) -> Any:
        """The running one."""
        assert self._of.hub is not None
        return self._of.hub

    @property
    def plans(self) -> list[str]:
        """What the service has told its spawners to do."""
        return self._of.plans

    @property
    def orders(self) -> list[str]:
        """What the service has ordered."""
        return self._of.orders

    def incarnation(self, key: SessionKey = KEY) -> str:
        """That the spawner has started or taken over."""
        return self.process._spawner(key).reclaim_pointer.incarnation

    def pointer(self, key: SessionKey = KEY) -> str:
        """The checkpoint that the Hub remembers."""
        return self.process._spawner(key).reclaim_pointer.checkpoint

    async def start(self, key: SessionKey = KEY) -> str:
        """A visit: what the service planned, or why there is nothing to see."""
        if key.user not in self._of.database.accounts:
            self._of.add_account(key.user)
        self.plans.append("start unplanned")
        try:
            await self.process.start(key)
            await self.settled(key)
        except ReclaimError as error:
            return self.process.refusals.pop(key, error.reason.value)
        return self.plans[-1].partition(" ")[2]

    async def stop(self, key: SessionKey = KEY) -> None:
        """*Stop My Server*."""
        self._of.ledger.give_up_all(key)
        await self.process.stop(key)
        await self.settled(key)

    async def settled(self, key: SessionKey = KEY) -> None:
        """Wait until the Hub has done what it is at."""
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
        hub.database.servers[key].running = state == "running"
        if state == "stopped":
            hub.spawners.pop(key, None)


class World:
    """Machine, store and Hub, which last; services, which come and go.

    Attributes:
        settings: limits of the services that are started from now on.
        verdict: what the policy says of every session.
    """

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
        """Start everything but the service."""
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
        """A new service on the same journal.

        Args:
            writes: it is killed before or after a write, so many from now on; 0: not.
            more: what its controller is given otherwise.
        """
        of = self.installation
        of.settings = self.settings
        changes = {"decide": lambda view, now: [self.verdict], **more}
        service = of.start_service(changes)
        await self.until(lambda: service.controller is not None)
        service.program.writes_left = writes or None
        for order in ("start_fresh", "discard", "delete"):
            self._note_given_up(service.controller.users, order)
        return service.controller

    def _note_given_up(self, users: Any, order: str) -> None:
        """What its user does not need may go: the laws are told so."""
        give = getattr(users, order)

        async def given(key: SessionKey, *more: Any, **others: Any) -> Any:
            self.give_up(key)
            return await give(key, *more, **others)

        setattr(users, order, given)

    def give_up(self, key: SessionKey = KEY) -> None:
        """Nobody needs what there is of a session now."""
        self.installation.ledger.give_up_all(key)

    def is_dead(self, controller: Controller) -> bool:
        """Whether that service was killed."""
        services = self.installation.services
        return all(each.controller is not controller for each in services)

    async def kill(self, controller: Controller) -> None:
        """The service is gone, whatever it was doing. Idempotent."""
        for service in self.installation.services[:]:
            if service.controller is controller:
                service.program.kill()

    async def kill_agent(self) -> None:
        """The agent is gone, whatever it was doing; another one is started."""
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

    async def running(
        self, contents: str = "work", key: SessionKey = KEY, gpu: int = 0
    ) -> str:
        """A session that the Hub has started, on whatever machine; its incarnation.

        Args:
            contents: what it has in memory.
            key: whose.
            gpu: bytes that it has on the card.
        """
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
        """One that was suspended by its user."""
        controller, _ = await self.started(contents, **settings)
        await controller.users.suspend(KEY, "ada")
        await self.reaches(controller, "suspended")
        return controller

    async def reaches(
        self, controller: Controller, phase: str, key: SessionKey = KEY
    ) -> None:
        """Wait until the service says so of a session."""
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
        """The simulator's laws."""
        violations = self.installation.history.violations
        assert not violations, violations

    def close(self) -> None:
        """End all programs."""
        for program in self.installation.programs:
            program.kill()
        recovery._kept.clear()
        for task in self.installation.loop.graveyard:
            asyncio.tasks._unregister_task(task)  # nobody is to wait for the dead


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """The simulator's loop, for a folder's tests."""
    del config, item
    return {"virtual": VirtualLoop}


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
