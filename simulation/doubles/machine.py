"""A machine: process trees as values, its GPU, its memory, and what ends or wakes them.

A tree's memory is one word (``contents``), which grows with its user's work; who has
which word when is all that the checkers need to know of memory. Its processes are the
four that the workflows tell apart: init, root, server, kernel. They run or are stopped,
one by one. What it has on the GPU is there or is memory of its processes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.common.models import Sample, SessionKey
    from simulation.loop import Program

GIB = 1 << 30
INIT, ROOT, SERVER, KERNEL = 1, 300, 301, 310
PIDS = (ROOT, SERVER, KERNEL)


@dataclass
class ProgramTree:
    contents: str
    token: str
    port: int
    gpu_bytes: int
    on_gpu: bool
    stopped: set[int] = field(default_factory=set)
    whole: bool = True  #: False while a restore fills its memory
    came_from: str = ""  #: checkpoint that it was restored from
    since: float = 0.0  #: when it was started or restored
    active: float = 0.0  #: when its user last did something
    noted: float = 0.0  #: what its machine's clock said then
    filled_by: Program | None = None  #: the agent that moves its GPU memory back
    unread: int = 0  #: messages that its kernel, stopped by a nap, has not read
    stuck: bool = False  #: it has something with which no return succeeds

    def used(self, now: float, skew: float) -> None:
        """Its user does something.

        Args:
            now: the time.
            skew: of its machine's clock.
        """
        self.active, self.noted = now, now + skew

    @property
    def frozen(self) -> bool:
        return self.stopped >= set(PIDS)

    @property
    def runs(self) -> bool:
        """Whether its user's work can go on in it."""
        return not self.stopped & {SERVER, KERNEL}


@dataclass
class Place:
    """One incarnation: an init, and what runs under it."""

    key: SessionKey
    incarnation: str
    pid: int
    start: int
    holding: bool
    pod: str = ""
    tree: ProgramTree | None = None
    #: a CRIU that runs in it: ends by itself when its agent has died
    criu: str = ""
    session: str = ""
    account: str = ""

    def snapshot(self) -> Snapshot:
        init = Process(self.pid, INIT, 1, "session-init", "S", self.start, 0)
        if self.tree is None:
            return Snapshot(init, ())
        parents = {ROOT: self.pid, SERVER: self.pid + ROOT, KERNEL: self.pid + SERVER}
        return Snapshot(
            init,
            tuple(
                Process(
                    self.pid + pid,
                    pid,
                    parents[pid],
                    "python",
                    "T" if pid in self.tree.stopped else "S",
                    self.start + pid,
                    1000,
                )
                for pid in PIDS
            ),
        )


class Machine:
    """One node.

    Args:
        name: of the node.
        capacity: bytes of its one GPU.
        ended: told when a tree ends: the place, and who ended it.
    """

    def __init__(
        self, name: str, number: int, capacity: int, ended: Callable[[Place, str], None]
    ) -> None:
        self.name = name
        self.card = f"{number:032x}"
        self.capacity = capacity
        self.taken_by_others = 0
        self.memory = 64 * GIB
        self.skew = 0.0  #: of its wall clock
        self.state_full = False  #: the agent's state folder
        self.up = True
        self.agentless = 0  #: times that its agent is gone for good, until it is back
        self.agent: Program | None = None  #: the last one
        self.rescue: Task[None] | None = None  #: lets go on what an agent has left
        self.boots = 0
        self.places: dict[str, Place] = {}
        self.records: dict[str, bytes] = {}  #: the agent's, as they are on the disk
        self.term = b""  #: likewise, which service it obeys
        self.reserved: set[str] = set()
        #: what its agent tells of its samples: a test has them say something else
        self.measured: Callable[[list[Sample]], list[Sample]] = list
        self._ended = ended
        self._pids = itertools.count(number * 10_000_000 + 10_000, 1000)

    def add(
        self,
        key: SessionKey,
        incarnation: str,
        *,
        tree: ProgramTree | None,
        pod: str = "",
        session: str = "",
        account: str = "",
    ) -> Place:
        """A new init, with a tree or to hold a place for one."""
        pid = next(self._pids)
        place = Place(key, incarnation, pid, pid + 7, tree is None, pod, tree)
        place.session, place.account = session, account
        self.places[incarnation] = place
        return place

    def end(self, place: Place, who: str) -> None:
        if self.places.pop(place.incarnation, None) is not None:
            self._ended(place, who)

    def end_tree(self, place: Place, who: str) -> None:
        """End what runs under an init; the init stays."""
        if place.tree is not None:
            self._ended(place, who)
            place.tree = None

    def reboot(self) -> None:
        """Nothing that ran runs on; what is on the disk stays."""
        self.boots += 1
        for place in list(self.places.values()):
            self.end(place, "the machine")

    @property
    def room(self) -> int:
        return self.capacity - self.used()

    def used(self) -> int:
        return self.taken_by_others + sum(t.gpu_bytes for t in self.trees if t.on_gpu)

    @property
    def promised(self) -> int:
        """Bytes of its GPU that memory is being moved into."""
        return sum(
            tree.gpu_bytes
            for tree in self.trees
            if tree.filled_by is not None and tree.filled_by.alive and not tree.on_gpu
        )

    @property
    def trees(self) -> list[ProgramTree]:
        return [place.tree for place in self.places.values() if place.tree]


class Machines:
    """All of them; finds a process by its pid, which is unique here."""

    def __init__(self) -> None:
        self.by_name: dict[str, Machine] = {}

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.by_name.values())

    def of(self, pid: int) -> tuple[Machine, Place]:
        """The place of an init, or of a process below it.

        Raises:
            NotFound: there is no such process.
        """
        for machine in self.by_name.values():
            for place in machine.places.values():
                if place.pid <= pid < place.pid + 1000:
                    return machine, place
        raise NotFound(Reason.UNKNOWN_SESSION, session=f"under process {pid}")

    def of_session(self, key: SessionKey) -> list[Place]:
        """Every place of a session, on any node."""
        return [
            place
            for machine in self.by_name.values()
            for place in machine.places.values()
            if place.key == key
        ]
