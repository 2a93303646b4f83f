"""One simulated installation: machines, Hub, service, agents, store, people.

It starts programs, starts them again when they were killed, and knows who listens
where. What happens to it stands in a plan; ``people.py`` and ``faults.py`` carry it
out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder, Capture, Nap, Restore
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import journal
from jupyterhub_gpu_reclaim.hub.patches import ASKER, OURS
from jupyterhub_gpu_reclaim.node.local_node import ORDER_SECONDS
from jupyterhub_gpu_reclaim.node.nap.wakers import Wakers
from jupyterhub_gpu_reclaim.node.operations.records import NapStage, Record, Stage
from jupyterhub_gpu_reclaim.node.workflows import rescue
from simulation.checkers import Ledger
from simulation.doubles import spawner as spawners
from simulation.doubles.cluster import ClusterInMemory, router
from simulation.doubles.hub import Database, HubProcess
from simulation.doubles.kernel import Cards, Driver, Kernel, replaced
from simulation.doubles.machine import (
    GIB,
    KERNEL,
    SERVER,
    Machine,
    Machines,
    Place,
    ProgramTree,
)
from simulation.doubles.network import Server, Weather, Wire
from simulation.doubles.store import StoreInMemory
from simulation.history import History
from simulation.loop import MONDAY, LoopClock, Program, VirtualLoop, spawn
from simulation.plan import CROWDED_NAP_AFTER, CROWDED_ROOM_AFTER
from simulation.programs import (
    COOL_DOWN,
    IDLE_SECONDS,
    LOOKS,
    SETTINGS,
    AgentOverWire,
    Disk,
    HubOverWire,
    RecordsOnDisk,
    Service,
    agent_node,
    engine,
    new_journal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import Tree
    from jupyterhub_gpu_reclaim.common.term import Term
    from jupyterhub_gpu_reclaim.node.local_node import LocalNode
    from simulation.plan import Plan

CARD = 16 * GIB
WANTED = 6 * GIB  #: that a session with a GPU holds of it
#: Seconds for which a rescue may keep an agent from starting: it moves memory.
LOCKED = 30.0


def _one_by_one(works: Iterable[Callable[[], bool]], seconds: float) -> bool:
    """Threads would not be the seed's."""
    del seconds
    return all([work() for work in works])  # noqa: C419 - each of them is to be tried


class World:
    """All of it.

    Args:
        plan: of the run; its seed is the source of all chance.
        folder: an empty one, for the journal and the orders to delete.
        loop: that all of it runs on.
    """

    def __init__(self, plan: Plan, folder: Path, loop: VirtualLoop) -> None:
        self.plan = plan
        self.folder = folder
        self.loop = loop
        self.history = History(loop)
        self.rng = random.Random(f"world {plan.seed}")
        self.machines = Machines()
        self.store = StoreInMemory(random.Random(f"store {plan.seed}"))
        self.ledger = Ledger(self.history, self.machines, self.store)
        self.ledger.naps = self.naps
        self.store.committed = self.ledger.committed
        self.store.standing = lambda info: self.ledger.standing(info.key)
        self.store.deleted = self.ledger.deleted
        for number in range(1, max(1, plan.nodes) + 1):
            name = f"node{number}"
            self.machines.by_name[name] = Machine(name, number, CARD, self.ledger.ended)
        self.cluster = (
            ClusterInMemory(self.machines, lambda node: node in self.agents)
            if plan.nodes
            else None
        )
        self.weather = Weather(random.Random(f"weather {plan.seed}"))
        self.weather.unforeseen = lambda text: self.history.wrong("no traceback", text)
        self.kernel = Kernel(
            self.machines, random.Random(f"kernel {plan.seed}"), self.history.wrong
        )
        self.kernel.fails_late = plan.naps
        self.kernel.rehearses = plan.rehearsed
        self.kernel.goes_on = self._goes_on
        self.kernel.reads = self._reads
        self.database = Database()
        self.disk = Disk()
        self.settings = SETTINGS
        self.hub: HubProcess | None = None
        self.agents: dict[str, Server] = {}
        self.services: list[Service] = []
        self.programs: list[Program] = []
        self.skew = 0.0
        self._shown = 0.0  #: the latest time from which its clock has jumped
        self.forgetful = False  #: whether a journal was put back or lost
        self.restarts = True  #: whether killed programs come again
        self.backup: tuple[bytes, bytes] | None = None
        self.hub_backup: Database | None = None
        self.backup_of_both: tuple[tuple[bytes, bytes], Database] | None = None
        self.steps = 0
        #: when somebody last asked for a suspend, or a stop, of each session
        self.asked: dict[SessionKey, float] = {}
        #: until when each machine is, or was, drained
        self.drained: dict[str, float] = {}
        #: when somebody last asked for a nap of each session
        self.asked_to_nap: dict[SessionKey, float] = {}
        self.rooms = NapsForOthers(self)
        self._names = 0
        self._accounts = 0
        self._numbers = 0
        for key in plan.keys:
            self.add_account(key.user)

    def clock_jumps(self, seconds: float) -> None:
        """The Hub's machine's is so much later from now on."""
        self._shown = max(self._shown, self.loop.time() + self.skew)
        self.skew += seconds

    # --- names
    def name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def add_account(self, user: str) -> None:
        """A user of the Hub; one of a reused name is another account."""
        self._accounts += 1
        made = datetime.fromtimestamp(MONDAY + self.loop.time() + self.skew, UTC)
        account = f"{self._accounts}.{made:%Y%m%dT%H%M%S%f}"
        self.database.accounts[user] = account

    def renamed(self, key: SessionKey) -> SessionKey:
        """That server under another name of its user's."""
        return SessionKey(f"{key.user}-renamed", key.server)

    def rename_back(self) -> bool:
        """Whether every account has the name that it had at first, or has it now.

        One that was deleted meanwhile has a successor of that name.
        """
        names = self.database.accounts
        for key in self.plan.keys:
            new = self.renamed(key)
            lost = new.user in names and key.user not in names
            if lost and not self.rename(new, key):
                return False
        return True

    def rename(self, old: SessionKey, new: SessionKey) -> bool:
        """An account has another name from now on, as have its server and logins."""
        names = self.database.accounts
        if old.user not in names or new.user in names:
            return False
        if self.hub is not None:
            if old in self.hub.pending:
                return False
            if (spawner := self.hub.spawners.pop(old, None)) is not None:
                spawner.key = new
                self.hub.spawners[new] = spawner
        self.database.rename(old, new)
        self.history.say(f"{old.user} is called {new.user} now")
        return True

    def machine(self, number: int) -> Machine:
        machines = list(self.machines)
        return machines[number % len(machines)]

    @property
    def has_room(self) -> bool:
        return any(machine.room >= WANTED for machine in self.machines)

    def has_room_for(self, key: SessionKey) -> bool:
        """The same for that session, which stays where it is if it naps."""
        place = self.reached(key)
        if place is None or place.tree is None or place.tree.runs:
            return self.has_room
        return self.machines.of(place.pid)[0].room >= WANTED

    # --- programs
    def start(self) -> None:
        (self.folder / "token").write_text("secret")
        self.put_journal(None)
        for machine in self.machines:
            self.start_agent(machine)
        self.start_hub()

    def start_agent(self, machine: Machine) -> None:
        """Start a machine's agent; it is started again when it ends."""
        there = machine.agent is not None and machine.agent.alive
        if not machine.up or machine.agentless or there:
            return
        if machine.rescue is not None:  # which holds the lock
            self._again(lambda: self.start_agent(machine), 1.0, 15.0)
            return
        program = self._program(f"the agent of {machine.name}", machine.name)
        machine.agent = program
        node = agent_node(machine, program, self.kernel, self.store)

        def ended() -> None:
            self.agents.pop(machine.name, None)
            for place in machine.places.values():
                if place.criu:
                    self.loop.call_later(
                        self.rng.uniform(0.05, 3.0), self.kernel.criu_ends, place
                    )
            if not machine.agentless:
                self._again(lambda: self.start_agent(machine), 1.0, 15.0)

        program.at_end.append(ended)

        async def run() -> None:
            await asyncio.to_thread(self._rescue, machine, program, whole=False)
            await node.recovery.recover()
            Wakers(
                node.placements, node.tools.records, node.operations, node.wake_up
            ).begin()
            self.agents[machine.name] = Server(
                program, NodeRoutes(node, NodeApi(node, self))
            )

        spawn(program, run())

    def start_hub(self) -> None:
        program = self._program("the Hub", "node1")
        self.hub = HubProcess(
            program=program,
            database=self.database,
            machines=self.machines,
            weather=self.weather,
            folder=self.folder,
            rng=random.Random(self.rng.random()),
            service=self.service,
            machine_for=self._machine_for,
            place=self._place,
            end=self._end,
            told=self.history.say,
            new_name=self.name,
        )

        def ended() -> None:
            self.hub = None
            for service in list(self.services):
                service.program.kill()
            self._again(self.start_hub, 2.0, 20.0)

        program.at_end.append(ended)
        spawn(program, self.hub.run())
        self.start_service()

    def start_service(self, changes: Mapping[str, Any] | None = None) -> Service:
        """Start one run of the service.

        Args:
            changes: what its controller is given otherwise.
        """
        self._numbers += 1
        program = self._program("the service", "node1")
        agent = self._agent(program, lambda: service.journal)
        hub = HubOverWire(
            Wire(self.weather, program, self._hub_server, Reason.HUB_UNREACHABLE)
        )
        service = Service(
            program=program,
            url=f"sqlite:///{self.journal}",
            disk=self.disk,
            clock=LoopClock(lambda: self.skew),
            agent=agent,
            hub=hub,
            folder=self.folder,
            settings=self.settings,
            number=self._numbers,
            nap_after=self.plan.nap_after,
            room_after=CROWDED_ROOM_AFTER if self.plan.crowded else 0.0,
            changes=changes,
        )
        self.services.append(service)

        def ended() -> None:
            self.services.remove(service)
            if service.journal is not None:
                service.journal.close()
            if not self.services:
                self._again(self._service_again, 0.5, 10.0)

        program.at_end.append(ended)
        spawn(program, service.run())
        return service

    def _agent(self, program: Program, mine: Callable[[], Any]) -> Any:
        def connect(node: str) -> AgentOverWire:
            return AgentOverWire(
                Wire(
                    self.weather,
                    program,
                    lambda: self.agents.get(node),
                    Reason.AGENT_UNREACHABLE,
                ),
                mine,
            )

        return router(self.cluster, connect) if self.cluster else connect("node1")

    def _service_again(self) -> None:
        if self.hub is not None and not self.services:
            self.start_service()

    def _program(self, name: str, machine: str) -> Program:
        program = Program(name, machine)
        self.programs.append(program)
        program.at_end.append(lambda: self.history.say(f"{name} ends"))
        return program

    def _again(self, start: Any, low: float, high: float) -> None:
        if self.restarts:
            self.loop.call_later(self.rng.uniform(low, high), start)

    # --- who listens
    @property
    def journal(self) -> Path:
        return self.folder / "journal.sqlite"

    def service(self) -> Server | None:
        if not self.services:
            return None
        service = self.services[-1]
        return Server(service.program, ServiceApi(service, self))

    def _hub_server(self) -> Server | None:
        return Server(self.hub.program, HubApi(self.hub)) if self.hub else None

    def working(self) -> Service | None:
        return next((s for s in self.services if s.controller is not None), None)

    # --- sessions
    async def _machine_for(self, key: SessionKey) -> Machine:
        """Where a session is placed; a pod waits for a node with a free GPU."""
        while self.cluster is not None:
            free = [m for m in self.machines if m.up and m.room >= WANTED]
            if free:
                return max(free, key=lambda machine: (machine.room, machine.name))
            await asyncio.sleep(2.0)
        return self.machine(0)

    def _place(
        self,
        machine: Machine,
        key: SessionKey,
        incarnation: str,
        *,
        session: str,
        account: str,
        login: tuple[str, int],
        cold: bool,
    ) -> Place:
        tree = self._new_tree(machine, key, *login) if cold else None
        pod = f"pod-{self.name()}" if self.cluster else ""
        place = machine.add(
            key, incarnation, tree=tree, pod=pod, session=session, account=account
        )
        if self.cluster is not None:
            self.cluster.add(place, machine.name)
        if cold:
            self.ledger.started_cold(place)
        return place

    def _end(self, place: Place, who: str) -> None:
        if self.cluster is not None:
            self.cluster.remove(place.pod)
        else:
            self.machines.of(place.pid)[0].end(place, who)

    def _new_tree(
        self, machine: Machine, key: SessionKey, token: str, port: int
    ) -> ProgramTree:
        wanted = WANTED if self.rng.random() < 0.7 else 0
        gpu_bytes = wanted if wanted <= machine.room else 0
        now = self.loop.time()
        return ProgramTree(
            contents=self.ledger.new_life(key),
            token=token,
            port=port,
            gpu_bytes=gpu_bytes,
            on_gpu=bool(gpu_bytes),
            since=now,
            active=now,
        )

    def _goes_on(self, place: Place, restored: bool) -> None:
        assert place.tree is not None
        self.history.say(f"the tree of {place.key} goes on ({place.tree.contents})")
        if restored:
            data = self.machines.of(place.pid)[0].records[place.incarnation]
            record = codec.decode(data, Record)
            self.ledger.restored(place, record.checkpoint)
        self.ledger.begins_to_run(place)

    def _reads(self, place: Place) -> None:
        """It does what it was asked for while it napped."""
        tree = place.tree
        assert tree is not None
        for _ in range(tree.unread):
            self.ledger.work(place.key, tree)
            tree.used(self.loop.time(), self.machines.of(place.pid)[0].skew)
            self.history.say(f"{place.key} has read, and holds {tree.contents} now")
        tree.unread = 0

    def naps(self, place: Place) -> bool:
        """Whether its agent holds that tree, alone or half of it, in a nap."""
        record = self._record(place)
        return record is not None and record.naps

    def is_to_wake(self, place: Place) -> bool:
        """Whether the nap of that tree is over but for its wake, which has room."""
        record, machine = self._record(place), self.machines.of(place.pid)[0]
        nap = record.nap if record is not None and record.naps else None
        over = nap is not None and nap.stage is not NapStage.ASLEEP
        return over and machine.room >= WANTED

    def ends_as_saved(self, place: Place) -> bool:
        """Whether that tree ends, whatever its user does, as what is saved of it.

        Its agent has noted that it ends it, or has not noted yet that all of its memory
        is back: looking does not tell, and nothing incomplete may go on. What its card
        held comes last, and finds no room if others have taken that.
        """
        record, tree = self._record(place), place.tree
        if record is None or tree is None:
            return False
        if record.stage is Stage.CONTINUING:
            return tree.gpu_bytes > 0 and not tree.on_gpu
        return record.stage in {Stage.RELEASING, Stage.RESTORING}

    def _record(self, place: Place) -> Record | None:
        data = self.machines.of(place.pid)[0].records.get(place.incarnation)
        return None if data is None else codec.decode(data, Record)

    def begins_to_capture(self, incarnation: str) -> None:
        """An order to suspend ends with its session: who is at work was asked for."""
        for machine in self.machines:
            place = machine.places.get(incarnation)
            if place is None or place.tree is None or machine.skew or self.skew:
                continue
            tree, asked = place.tree, self.asked.get(place.key, -1.0)
            if self._is_drained(machine):
                continue
            asked = max(asked, self.drained.get(machine.name, -1.0))
            # What began since the sample that the order goes by, nobody knows.
            works = tree.active > tree.since
            unseen = ORDER_SECONDS if works else 0.0
            since = self.loop.time() - tree.active
            if unseen <= since < IDLE_SECONDS / 2 and asked < tree.since:
                self.history.wrong(
                    "an order ends with its session",
                    f"{place.key} is suspended at work, and nobody has asked for that",
                )

    def _is_drained(self, machine: Machine) -> bool:
        """By an order in some service's journal, however that has come back."""
        node = machine.name if self.plan.nodes else ""
        controllers = [service.controller for service in self.services]
        return any(
            report.drain.node == node
            for controller in controllers
            if controller is not None
            for report in controller.nodes.drains()
        )

    @property
    def never_idle(self) -> bool:
        """Whether nobody on a crowded card naps for others, for up to an hour.

        After a clock was put back, everybody was last active in the future, until it
        has caught up, and is idle only some time after that.
        """
        caught_up = self.loop.time() + self.skew - self._shown
        return self.plan.crowded and caught_up < IDLE_SECONDS

    def grow(self, place: Place) -> None:
        """On a crowded card, work takes memory where there is some."""
        machine, tree = self.machines.of(place.pid)[0], place.tree
        if not self.plan.crowded or tree is None or tree.gpu_bytes:
            return
        if machine.room - machine.promised >= WANTED:
            tree.gpu_bytes, tree.on_gpu = WANTED, True
            self.history.say(f"{place.key} has memory on the GPU now")

    def running(self, key: SessionKey) -> Place | None:
        """The session's tree that its user reaches, if it runs."""
        place = self.reached(key)
        runs = place is not None and place.tree is not None and place.tree.runs
        return place if runs else None

    def reached(self, key: SessionKey) -> Place | None:
        """The session's tree whose server its user reaches; its kernel may nap."""
        if self.hub is None or key in self.hub.pending:
            return None  # the Hub takes the route away before it stops a server
        spawner = self.hub.spawners.get(key)
        place = spawner.place if spawner else None
        if place is None or place.tree is None or SERVER in place.tree.stopped:
            return None
        row = self.database.servers.get(key)
        return place if row and row.running else None

    def _rescue(
        self,
        machine: Machine,
        program: Program,
        *,
        whole: bool,
    ) -> None:
        cards = Cards(self.kernel, machine.name)
        table = [
            (rescue, "Records", lambda _: RecordsOnDisk(machine, program)),
            (rescue, "Driver", lambda: Driver(cards)),
            (rescue, "Nvml", lambda: cards),
            (rescue, "_all_at_once", _one_by_one),
        ]
        with replaced(table):
            rescue.rescue(Path("/nonexistent"), whole=whole, seconds=60.0)

    async def rescue_all(self, machine: Machine) -> None:
        """What a machine's unit does when its agent has ended."""
        program = self._program(f"the end of {machine.name}'s agent", machine.name)
        begun = self.loop.time()

        def ended(_: object) -> None:
            machine.rescue = None
            if self.loop.time() - begun > LOCKED:
                law = "an agent can come back"
                self.history.wrong(law, f"{program.name} keeps the lock")

        if machine.up:
            work = asyncio.to_thread(self._rescue, machine, program, whole=True)
            machine.rescue = spawn(program, work)
            machine.rescue.add_done_callback(ended)
            await asyncio.shield(machine.rescue)

    # --- faults of files
    def copy_journal(self) -> tuple[bytes, bytes]:
        """The journal as it is now; nobody is in the middle of a transaction."""
        wal = self.journal.with_name("journal.sqlite-wal")
        return (
            self.journal.read_bytes(),
            wal.read_bytes() if wal.exists() else b"",
        )

    def put_journal(self, backup: tuple[bytes, bytes] | None) -> None:
        """Put it back; None: it is lost. The service must not run."""
        self.forgetful = self.loop.time() > 0
        for path in self.folder.glob("journal.sqlite*"):
            path.unlink()
        main, wal = backup or (new_journal(), b"")
        self.journal.write_bytes(main)
        if wal:
            self.journal.with_name("journal.sqlite-wal").write_bytes(wal)

    def substitutes(self) -> list[tuple[Any, str, Any]]:
        """Further names that stand for doubles."""
        return [
            *spawners.substitutes(LoopClock(lambda: self.skew)),
            (journal, "_engine", engine),
        ]


class NapsForOthers:
    """Naps that nobody ordered, sooner than idleness: for others that wake."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[SessionKey, tuple[float, float]] = {}  #: ended; its begin
        self._early: set[str] = set()

    def ordered(self, incarnation: str) -> None:
        """The service orders a nap: never of one that is at work."""
        world = self._world
        self._early.discard(incarnation)
        for machine in world.machines:
            place = machine.places.get(incarnation)
            if place is None or place.tree is None or machine.skew or world.skew:
                continue
            now, tree = world.loop.time(), place.tree
            asked = world.asked_to_nap.get(place.key, -1.0)
            if not world.plan.crowded or asked >= tree.since or not tree.on_gpu:
                continue
            idle = now - max(tree.active, tree.since)
            # What began since the sample that the order goes by, nobody knows.
            if ORDER_SECONDS <= idle < CROWDED_ROOM_AFTER - 1.0:
                world.history.wrong(
                    "nobody active naps for others", f"{place.key} is at work"
                )
            if idle < CROWDED_NAP_AFTER - SETTINGS.sample_interval - ORDER_SECONDS:
                self._early.add(incarnation)

    def naps(self, tree: Tree) -> None:
        """That nap has been done: not twice within the time in which it is spared."""
        world, nap = self._world, tree.nap
        if tree.incarnation not in self._early or nap is None:
            return
        now = world.loop.time()
        ended, begun = self._last.get(tree.key, (-COOL_DOWN, 0.0))
        if begun == nap.begun or world.forgetful:
            return  # the same order, which has come twice
        if now - ended < COOL_DOWN - 10.0:
            world.history.wrong(
                "nobody naps twice for others", f"{tree.key} naps for others again"
            )
        self._last[tree.key] = now, nap.begun


class NodeRoutes:
    """What each request goes through first (``node/http/routes.py``)."""

    def __init__(self, node: LocalNode, api: NodeApi) -> None:
        self._node = node
        self._api = api

    def __getattr__(self, name: str) -> Any:
        async def heard(*args: Any, term: Term | None = None, **more: Any) -> Any:
            await self._node.term.hear(term, order=name not in LOOKS)
            return await getattr(self._api, name)(*args, **more)

        return heard


class NodeApi:
    """The agent's calls, with what the checkers want to know of them."""

    def __init__(self, node: LocalNode, world: World) -> None:
        self._node = node
        self._world = world

    def __getattr__(self, name: str) -> Any:
        self._world.steps += 1
        return getattr(self._node, name)

    async def carry_out(self, subject: str, order: AgentOrder) -> Any:
        """An order, without the facts about pods, which nobody here needs."""
        world, node = self._world, self._node
        world.steps += 1
        if isinstance(order, Capture | Restore):
            world.history.say(f"the agent is to {order.kind} {order.checkpoint}")
        attaches = node.operations.running(subject) is not None
        answer = await getattr(node, order.kind.replace("-", "_"))(subject, order)
        if isinstance(order, Nap):
            world.rooms.ordered(subject)
            return self._checked(subject, answer)
        if isinstance(order, Capture) and not attaches:
            world.begins_to_capture(subject)
        return answer

    async def _checked(self, incarnation: str, events: Any) -> AsyncIterator[Any]:
        async for event in events:
            if event.failure is not None:
                self._world.history.say(f"a nap fails: {event.failure.code}")
                self._look(incarnation)
            elif event.tree is not None:
                self._world.history.say(f"{event.tree.key} naps")
                self._world.rooms.naps(event.tree)
            yield event

    def _look(self, incarnation: str) -> None:
        world = self._world
        for machine in world.machines:
            place = machine.places.get(incarnation)
            if place is None or place.tree is None or not place.tree.whole:
                continue
            # What could not be moved back at once is held, until it can be.
            if place.tree.stopped == {KERNEL} and not world.naps(place):
                world.history.wrong(
                    "a failed nap leaves it running", f"{place.key} is left stopped"
                )


class HubApi:
    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    async def stop(self, key: SessionKey) -> None:
        """A stop, as the patched handler notes who asks for it."""
        ASKER.set(OURS)  # in this call's own task
        await self._hub.stop(key)


class ServiceApi:
    def __init__(self, service: Service, world: World) -> None:
        self._service = service
        self._world = world

    def __getattr__(self, name: str) -> Any:
        self._world.steps += 1
        return getattr(self._service, name)

    async def plan_start(self, placement: Any) -> Any:
        self._world.steps += 1
        plan = await self._service.plan_start(placement)
        why = f" ({plan.failure.code})" if plan.failure else ""
        self._world.history.say(f"{placement.key}: start {plan.action}{why}")
        self._world.ledger.planned(placement.key, plan)
        return plan

    async def plan_stop(self, placement: Any) -> Any:
        self._world.steps += 1
        plan = await self._service.plan_stop(placement)
        self._world.history.say(f"{placement.key}: stop means {plan.action}")
        return plan


class Tracebacks(logging.Handler):
    """The product's log: a traceback in it is an error that nobody foresaw."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            if isinstance(error, Exception):
                self._world.history.wrong(
                    "no traceback", f"{record.getMessage()}: {error!r}"
                )
