"""The product's programs, wired as their own ``app`` modules do, over the doubles.

``agent`` is ``node/app.py`` without sockets and settings; ``service`` is
``service/app.py`` without routes and pages: the journal on real SQLite, its lock, the
policy and the controller. What is above the wiring is the product's own code.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder, NextWake, PodHint
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    KernelSample,
    Sample,
    SessionKey,
    Tree,
    TreeState,
    Waiting,
    of_session,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane import journal
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.operations.operations import Operations, TimeLimits
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records
from jupyterhub_gpu_reclaim.node.session import Session
from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.sampling.window import Window
from jupyterhub_gpu_reclaim.service.clients.authority import Authority
from simulation.doubles.kernel import Cards, Driver
from simulation.doubles.store import RepositoryInMemory
from simulation.loop import MONDAY, Killed, LoopClock, Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Event, Failure
    from simulation.doubles.kernel import Kernel
    from simulation.doubles.machine import Machine, Place
    from simulation.doubles.network import Wire
    from simulation.doubles.store import StoreInMemory

#: Short enough that a limit which is reached is reached within a run.
LIMITS = TimeLimits(
    check=20.0,
    dump=60.0,
    archive=20.0,
    commit=30.0,
    restore=60.0,
    answer=15.0,
    end=10.0,
    criu=10.0,
    gpu_lock=5.0,
    room=10.0,
)
SETTINGS = Settings(
    sample_interval=25.0,
    tick_interval=20.0,
    warn_for=20.0,
    grace=120.0,
    set_aside=7 * 86400.0,
    orphan_grace=60.0,
    release_limit=90.0,
    settle_limit=60.0,
    operation_limit=300.0,
    gpu_wait=120.0,
    backoff=30.0,
    pace=2.0,
)
IDLE_SECONDS = 180.0
COOL_DOWN = 60.0
#: Calls of an agent that are no orders.
LOOKS = {"trees", "tree", "samples", "checkpoints", "identity"}


# --- the agent ------------------------------------------------------------------------


class RecordsOnDisk(Records):
    """The agent's records on a machine's disk, as durable as the real ones."""

    def __init__(self, machine: Machine, program: Program) -> None:
        self._machine = machine
        self._program = program
        self._unwritten: dict[str, Record] = {}
        self._lock = threading.Lock()

    def _write(self, record: Record) -> None:
        self._program.effect()
        if self._machine.state_full:
            raise OSError(28, "No space left on device")
        self._machine.records[record.incarnation] = codec.encode(record)
        self._program.effect()

    def _read(self, incarnation: str) -> Record | None:
        data = self._machine.records.get(incarnation)
        return None if data is None else _decoded(data)

    def _remove(self, incarnation: str) -> None:
        self._program.effect()
        self._machine.records.pop(incarnation, None)
        self._program.effect()

    def _all(self) -> Iterator[Record]:
        for _, data in sorted(self._machine.records.items()):
            record = _decoded(data)
            if record is not None:
                yield record


def _decoded(data: bytes) -> Record | None:
    try:
        return codec.decode(data, Record)
    except BadRequest:
        return None


class TermOnDisk(KnownTerm):
    """Which service the agent obeys, on a machine's disk."""

    def __init__(self, machine: Machine, program: Program) -> None:
        self._machine = machine
        self._program = program
        super().__init__(Path("/nonexistent"))

    def _read(self) -> Term | None:
        return codec.decode(self._machine.term, Term) if self._machine.term else None

    def _write(self, term: Term) -> None:
        self._program.effect()
        if self._machine.state_full:
            raise OSError(28, "No space left on device")
        self._machine.term = codec.encode(term)
        self._program.effect()


class PlacementsOnMachine:
    """Finds the inits of a machine, as ``node.sessions.placements`` does in /proc."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._hints: dict[str, PodHint] = {}

    def list(self) -> list[Session]:
        return sorted(
            (self._session(place) for place in self._machine.places.values()),
            key=lambda session: session.incarnation,
        )

    def find(self, incarnation: str, pod: str = "") -> Session:
        place = self._machine.places.get(incarnation)
        pod = pod or self._hints.get(incarnation, PodHint()).pod
        if place is None or (pod and pod != place.pod):
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return self._session(place)

    def set_hint(self, incarnation: str, hint: PodHint) -> None:
        self._hints[incarnation] = hint

    def _session(self, place: Place) -> Session:
        hint = self._hints.get(place.incarnation, PodHint())
        if hint.pod != place.pod:
            hint = PodHint(pod=place.pod)
        return Session(
            place.incarnation,
            place.key,
            place.pid,
            place.start,
            holding=place.holding,
            hint=msgspec.structs.replace(
                hint, session=place.session, account=place.account
            ),
        )


class PortsHeld:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def findings(self, user: str, count: int) -> list[Any]:
        del user, count
        return []

    def hold(
        self,
        checkpoint: str,
        user: str,
        ports: object,
        pids: object = (),
        names: object = (),
    ) -> None:
        del user, ports, pids, names
        self._machine.reserved.add(checkpoint)

    def let_go(self, checkpoint: str) -> None:
        self._machine.reserved.discard(checkpoint)

    def let_datagrams_go(self, checkpoint: str) -> None:
        pass

    def names(self, checkpoint: str) -> frozenset[Any]:
        del checkpoint
        return frozenset()

    def let_names_go(self, checkpoint: str) -> None:
        pass

    def take_again(self, checkpoint: str) -> list[Any]:
        del checkpoint
        return []

    def missing(self) -> list[Any]:
        return []

    def settle(self) -> list[str]:
        return []

    def checkpoints(self) -> list[str]:
        return sorted(self._machine.reserved)


class CheckedCriu:
    def criu(self) -> object:
        return self

    def version(self) -> str:
        return "4.2"

    def findings(self) -> list[Any]:
        return []


class MachineSampler:
    """What a node's measurements would say of its trees."""

    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock

    async def samples(self, known: list[tuple[Session, Tree]]) -> list[Sample]:
        await asyncio.sleep(0.01)
        places = self._machine.places
        found = [
            self._sample(places[tree.incarnation], naps=tree.state is TreeState.NAPPING)
            for _, tree in known
            if tree.incarnation in places and places[tree.incarnation].tree is not None
        ]
        return self._machine.measured(found)

    async def cards(self) -> list[Any]:
        """None that anybody is told of."""
        return []

    def _sample(self, place: Place, *, naps: bool) -> Sample:
        tree, now = place.tree, self._clock.now()
        assert tree is not None
        # One that naps answers: its server runs, and knows how its kernel was.
        silent = bool(tree.stopped) and not naps
        kernel = KernelSample(
            id="k",
            name="a.ipynb",
            execution_state="idle",
            last_activity=MONDAY + tree.noted,
        )
        card = GpuSample(
            uuid=self._machine.card, name="H200", memory=tree.gpu_bytes, sm_percent=0.0
        )
        return Sample(
            incarnation=place.incarnation,
            key=place.key,
            at=now,
            memory=1 << 30,
            cpu_work=0.0,
            kernels=None if silent else [kernel],
            terminals=None if silent else [],
            connections=0,
            # From the time since the boot, so that it goes with the clock.
            started=MONDAY + tree.since + self._machine.skew,
            gpus=[card] if tree.on_gpu and tree.gpu_bytes else [],
            pod=place.pod,
        )


def agent_node(
    machine: Machine,
    program: Program,
    kernel: Kernel,
    store: StoreInMemory,
    clock: Clock | None = None,
) -> LocalNode:
    """The agent of a machine, wired as ``node/app.py`` does it.

    Args:
        machine: where it runs.
        program: that runs it.
        kernel: what it works on.
        store: shared by all machines.
        clock: None: the running loop's, as the machine's is set.
    """
    clock = clock or LoopClock(lambda: machine.skew)
    repository: Any = RepositoryInMemory(store, program, clock)
    records = RecordsOnDisk(machine, program)
    placements: Any = PlacementsOnMachine(machine)
    ports: Any = PortsHeld(machine)
    cards = Cards(kernel, machine.name)
    accelerator = Accelerator(
        Driver(cards),  # type: ignore[arg-type]
        cards,  # type: ignore[arg-type]
        LIMITS,
        visible=lambda _: None,
    )
    criu: Any = CheckedCriu()
    client: Any = None
    sampler: Any = MachineSampler(machine, clock)
    return LocalNode(
        placements=placements,
        operations=Operations(),
        sampler=sampler,
        tools=WorkflowTools(
            records=records,
            store=repository,
            criu=criu,
            client=client,
            clock=clock,
            limits=LIMITS,
            work=Path("/nonexistent"),
            accelerator=accelerator,
            memory=HostMemory(),
            ports=ports,
        ),
        term=TermOnDisk(machine, program),
        describe=lambda: NodeStatus(host=machine.name, version=__version__),
    )


class AgentOverWire:
    """The service's client of one agent (``service/clients/agent.py``)."""

    def __init__(self, wire: Wire, journal: Callable[[], Journal]) -> None:
        self._wire = wire
        self._journal = journal

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        return of_session(key, await self._quick("trees"))

    async def tree(self, incarnation: str, **more: Any) -> Tree:
        del more
        return await self._quick("tree", incarnation)

    def labels(self, key: SessionKey) -> dict[str, str]:
        del key
        return {}

    def ending(self, incarnation: str) -> Failure | None:
        del incarnation
        return None

    def waiting(self) -> list[Waiting]:
        return []

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        del key
        return await self._quick("samples")

    async def checkpoints(self, key: SessionKey | None = None) -> list[Any]:
        saved = await self._quick("checkpoints")
        Authority(self._journal()).outrank(info.term for info in saved)
        return of_session(key, saved)

    async def identity(self, checkpoint: str) -> Any:
        return await self._quick("identity", checkpoint)

    async def follow(self, incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        stamp = self._journal().stamp
        silence = 90.0 if isinstance(order, NextWake) else 60.0
        stream = self._wire.stream(
            "carry_out", incarnation, order, term=stamp, silence=silence
        )
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    yield event
        except Refused as refusal:
            if refusal.reason is Reason.FORMER_SERVICE:
                raise Unreachable(Reason.AGENT_UNREACHABLE) from None
            raise

    async def order(self, subject: str, order: AgentOrder) -> None:
        limit = 15.0 if order.quick else 120.0
        await self._ask("carry_out", subject, order, limit=limit)

    async def _quick(self, name: str, *args: Any) -> Any:
        return await self._ask(name, *args, limit=15.0)

    async def _ask(self, name: str, *args: Any, **more: Any) -> Any:
        mine = self._journal()
        order = name not in LOOKS
        return await Authority(mine).ask(
            lambda: self._wire.ask(name, *args, term=mine.stamp, order=order, **more)
        )


class HubOverWire:
    """The service's client of the Hub (``service/clients/hub.py``)."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def servers(self) -> Any:
        return await self._wire.ask("servers", limit=15.0)

    async def server(self, key: SessionKey) -> Any:
        return await self._wire.ask("server", key, limit=15.0)

    async def stop(self, key: SessionKey) -> None:
        await self._wire.ask("stop", key, limit=60.0)

    async def start(self, key: SessionKey) -> None:
        await self._wire.ask("start", key, limit=60.0)


# --- the service ----------------------------------------------------------------------


_engine = journal._engine


@functools.cache
def _first_engine() -> Any:
    """An engine that knows its database, and has compiled what was asked of it."""
    made = _engine("sqlite://")
    made.connect().close()
    return made


def engine(url: str) -> Any:
    """The journal's own engine, with what was compiled before in any run.

    A statement is compiled for a dialect, so all of them have the same one.
    """
    made, first = _engine(url), _first_engine()
    made.dialect = made.pool._dialect = first.dialect
    made._compiled_cache = first._compiled_cache
    return made


@functools.cache
def new_journal() -> bytes:
    """A journal in which nothing stands; its tables take longest to make."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        Journal(f"sqlite:///{path}").close()
        return path.read_bytes()


class JournalOfProgram(Journal):
    """The real journal, whose program may end before or after any write of it."""

    def __init__(self, url: str, program: Program, disk: Disk) -> None:
        self._program = program
        self._disk = disk
        super().__init__(url)

    def _transaction(self) -> Any:
        if not self._program.alive:
            raise Killed(self._program.name)
        return super()._transaction()

    def write(self, *statements: Any) -> None:
        if not statements:
            return
        self._program.effect()
        if self._disk.full:
            raise StoreError(Reason.INTERNAL, detail="journal: disk is full")
        super().write(*statements)
        self._program.effect()


@dataclass
class Disk:
    full: bool = False


class Service:
    """One run of the service: waits for the journal, and works."""

    def __init__(
        self,
        *,
        program: Program,
        url: str,
        disk: Disk,
        clock: LoopClock,
        agent: Any,
        hub: Any,
        folder: Path,
        settings: Settings,
        number: int,
        nap_after: float,
        room_after: float,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.program = program
        self.controller: Controller | None = None
        self.journal: JournalOfProgram | None = None
        self._url = url
        self._disk = disk
        self._clock = clock
        self._agent = agent
        self._hub = hub
        self._folder = folder
        self._settings = settings
        self.number = number
        self._nap_after = nap_after
        self._room_after = room_after
        #: what a test gives the controller otherwise
        self._changes = changes or {}
        self._names = 0

    async def run(self) -> None:
        """As ``service/app.py`` does it."""
        self.journal = rows = JournalOfProgram(self._url, self.program, self._disk)
        try:
            while not rows.take():
                await self._clock.sleep(0.5)
            self.controller = self._controller(rows)
            await self.controller.start()
            while rows.is_held():
                await self._clock.sleep(5.0)
        finally:
            if self.controller is not None:
                await self.controller.stop()
            self.controller = None
            rows.close()

    def _controller(self, rows: Journal) -> Controller:
        idle = IdlePolicy(idle_after=IDLE_SECONDS)
        guards = Guards(min_age=60.0, cool_down=COOL_DOWN)
        after, room = self._nap_after, self._room_after
        naps = NapPolicy(idle, guards, nap_after=after, room_after=room)
        interval = self._settings.sample_interval
        parts: dict[str, Any] = {
            "journal": rows,
            "agent": self._agent,
            "hub": self._hub,
            "decide": Decider(guards.denials, [idle]),
            "naps": naps if self._nap_after else None,
            "window": lambda: Window(span=IDLE_SECONDS, interval=interval),
            "clock": self._clock,
            "settings": self._settings,
            "new_id": self._name,
            "folder": self._folder,
        }
        return Controller(**parts | dict(self._changes))

    def _name(self) -> str:
        self._names += 1
        return f"c{self.number}-{self._names}"

    def __getattr__(self, name: str) -> Any:
        """A call of the spawner, or of a person; without the journal none is taken."""
        if self.controller is None:
            raise Unreachable(Reason.SERVICE_STARTING)
        return getattr(self.controller, name)
