"""What the agent's workflows ask of the kernel, of CRIU and of the driver, as doubles.

The seam is the set of public functions of ``linux`` and ``checkpoint`` that
``node/workflows``, ``node/operations`` and ``node/sessions`` call, and of the session's
server: each is replaced by one that does the same to a :class:`Machine`'s values.
Everything above them is the agent's own code. They are replaced by name for as long as
a simulation runs (:func:`installed`), because an interface of thirty functions handed
through every workflow would be there for this alone.

What is said of failures is the originals': what may be cancelled, what is undone, what
is left stopped. The driver moves memory out of a GPU only for processes that run, and
back only where there is room; CRIU stops a tree, and undoes its work when its agent
dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
import types
import uuid
from typing import TYPE_CHECKING, Any, Self

import msgspec

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.gpu import driver
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
from jupyterhub_gpu_reclaim.checkpoint.memory import robust_lists
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.staging import Staging
from jupyterhub_gpu_reclaim.checkpoint.tree import dump, freeze, quiesce
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as tree_restore
from jupyterhub_gpu_reclaim.checkpoint.tree.dump import DumpResult
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import RestoreResult
from jupyterhub_gpu_reclaim.checkpoint.tree.standing import StandingMemory
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    RestoreFailed,
    RolledBack,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import (
    cgroups,
    continuing,
    processes,
    procfs,
)
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node import cgroup_escape
from jupyterhub_gpu_reclaim.node.jupyter import wake_up
from jupyterhub_gpu_reclaim.node.jupyter.server import ServerState
from jupyterhub_gpu_reclaim.node.nap import inputs, wakers
from jupyterhub_gpu_reclaim.node.operations import gpu, host_memory
from jupyterhub_gpu_reclaim.node.requirements import (
    HostRequirements,
    Machine,
    rights_of,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import (
    capture,
    filesystem,
    nap,
    recovery,
    rehearsal,
    release,
    restore,
    save,
)
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
from simulation.doubles.machine import (
    GIB,
    KERNEL,
    PIDS,
    ROOT,
    SERVER,
    ProgramTree,
)
from simulation.loop import PROGRAM, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from simulation.doubles.machine import Machines, Place

MEMORY = "criu/pages-1.img"
_NO_ROOM = "CUDA_ERROR_OUT_OF_MEMORY"


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    contents: str
    token: str
    port: int
    gpu_bytes: int
    stuck: bool = False


class Unrehearsed(contextlib.nullcontext[Any]):
    def __enter__(self) -> Self:
        return self

    def begin(self, dumped: object) -> None:
        """Nothing is tried."""

    def wait(self) -> None:
        """Nothing is waited for."""


class Kernel:
    """The doubles' one state: the machines, and how long things take.

    Args:
        machines: all of them.
        rng: for durations, and for faults of CRIU and driver.
        wrong: told what must never happen: the law, and the words.
    """

    def __init__(
        self, machines: Machines, rng: random.Random, wrong: Callable[[str, str], None]
    ) -> None:
        self.machines = machines
        self.rng = rng
        self.wrong = wrong
        self.failing = 0.0  #: share of dumps, restores and fills that fail
        #: told in the middle of each work: a test holds it up there, or lets it fail
        self.at: Callable[[str, Place, Any], None] = lambda work, place, cancel: None
        self.fails_late = False  #: also a driver that has moved the memory out
        self.rehearses = False  #: whether a return is tried, as older seeds do not
        #: told of each tree that goes on, and whether it was just restored
        self.goes_on: Callable[[Place, bool], None] = lambda place, restored: None
        #: told of each tree that can read what it was sent
        self.reads: Callable[[Place], None] = lambda place: None

    def place(self, pid: int, start: int | None = None) -> Place:
        """The place of that process.

        Raises:
            NotFound: it has ended.
        """
        place = self.machines.of(pid)[1]
        if start is not None and start not in (place.start, place.start + pid):
            raise NotFound(Reason.UNKNOWN_SESSION, session=f"under process {pid}")
        return place

    def tree(self, pid: int) -> ProgramTree | None:
        try:
            return self.place(pid).tree
        except NotFound:
            return None

    def fails(self) -> bool:
        return bool(self.failing) and self.rng.random() < self.failing

    def takes(self, low: float, high: float) -> None:
        pause(self.rng.uniform(low, high))

    # --- processes
    def snapshot(self, init_pid: int, start: int, children: Any = None) -> Snapshot:
        del children
        return self.place(init_pid, start).snapshot()

    def snapshot_init(self, init_pid: int, start: int | None = None) -> Process:
        return self.place(init_pid, start).snapshot().init

    def has_children(self, init_pid: int) -> bool:
        return self.tree(init_pid) is not None

    def kill_tree(self, init_pid: int, start: int, *, timeout: float) -> None:
        del timeout
        _effect()
        machine, place = self.machines.of(init_pid)
        if place.tree is not None:
            machine.end_tree(place, _who())
        _effect()

    def kill_session(self, init_pid: int, start: int, *, timeout: float) -> None:
        del timeout
        _effect()
        with contextlib.suppress(NotFound):
            machine, place = self.machines.of(init_pid)
            machine.end(place, _who())
        _effect()

    # --- stop and go
    def stop(self, init_pid: int, start: int, *, timeout: float) -> Snapshot:
        del timeout
        place = self.place(init_pid, start)
        if place.tree is not None:
            place.tree.stopped |= set(PIDS)
        return place.snapshot()

    def continued(self, tree: Snapshot, captured: Collection[int]) -> str:
        del captured
        return ", ".join(
            f"{p.ns_pid} ({p.name})" for p in tree.processes if not p.stopped
        )

    def thaw(self, snapshot: Snapshot, keep_stopped: Collection[int] = ()) -> None:
        _effect()
        place = self.place(snapshot.init.pid)
        if place.tree is not None:
            self._go_on(place, place.tree, keep_stopped)
        _effect()

    def _go_on(
        self,
        place: Place,
        tree: ProgramTree,
        keep_stopped: Collection[int],
        *,
        restored: bool = False,
    ) -> None:
        if not tree.stopped - set(keep_stopped):
            return
        tree.stopped = set(keep_stopped)
        if not tree.whole:
            self.wrong("whole", "a half-restored tree goes on")
        if tree.gpu_bytes and not tree.on_gpu and KERNEL not in tree.stopped:
            self.wrong("whole", "a tree goes on without its GPU memory")
        self._continues(place, tree, restored=restored)

    def _continues(
        self, place: Place, tree: ProgramTree, *, restored: bool = False
    ) -> None:
        """It runs, and reads what came while it stood."""
        self.goes_on(place, restored)
        if tree.runs:
            self.reads(place)

    def resume(self, some: Collection[Process]) -> None:
        _effect()
        for process in some:
            place = self.place(process.pid)
            tree = place.tree
            if tree is None or process.ns_pid not in tree.stopped:
                continue
            tree.stopped.discard(process.ns_pid)
            if tree.gpu_bytes and not tree.on_gpu and process.ns_pid == KERNEL:
                self.wrong("whole", "a tree goes on without its GPU memory")
            self._continues(place, tree)
        _effect()

    # --- dump
    def dump(
        self,
        criu: object,
        init: Any,
        *,
        sinks: Any,
        stopped: Any,
        cancel: Any,
        **more: Any,
    ) -> DumpResult:
        del criu, more
        place = self.place(init.init_pid, init.init_start)
        if place.tree is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=place.incarnation)
        _effect()
        place.tree.stopped |= set(PIDS)
        place.criu = "dump"
        try:
            cancel.check()
            with sinks("files.img") as file:
                file.write(b"files")
                self.takes(0.1, 1.5)
                self.at("dump", place, cancel)
                cancel.check()
            if self.fails() or place.tree.on_gpu:  # it cannot save an open card
                raise RolledBack(Reason.CAPTURE_FAILED, why="CRIU failed")
            if self.tree(place.pid) is None:
                raise NotFound(Reason.UNKNOWN_SESSION, session=place.incarnation)
        finally:
            place.criu = "" if _alive() else place.criu
        _effect()
        return DumpResult(
            root_pid=ROOT,
            pids=PIDS,
            stopped=tuple(sorted(stopped)),
            memory=LeftOut(self, place),
        )

    def rehearsal(self, *what: Any) -> rehearsal.Rehearsal | Unrehearsed:
        return rehearsal.Rehearsal(*what) if self.rehearses else Unrehearsed()

    def rehearse(
        self, criu: object, init: Any, dumped: object, *, cancel: Any, **more: Any
    ) -> None:
        """Try the return of what stands there: with some things open, none succeeds."""
        del criu, dumped, more
        self.takes(0.1, 2.0)
        cancel.check()
        place = self.place(init.init_pid, init.init_start)
        if self.fails():
            raise RolledBack(Reason.INTERNAL)
        if place.tree is not None and place.tree.stuck:
            raise RolledBack(Reason.WOULD_NOT_RETURN, why="It has an odd file open.")

    @staticmethod
    def wait(futures: Collection[Any], seconds: float, **_: Any) -> None:
        """Wait as a thread does, in simulated time."""
        until = _now() + seconds
        while not any(one.done() for one in futures) and _now() < until:
            pause(0.05)

    def end_criu(self, session: Any, seconds: float) -> None:
        """Wait for one whose agent has died: it fails by itself and undoes its work."""
        del seconds
        with contextlib.suppress(NotFound):
            place = self.place(session.init_pid, session.init_start)
            if place.criu:
                self.takes(0.1, 1.0)
                self.criu_ends(place)

    @staticmethod
    def criu_ends(place: Place) -> None:
        """Its stream broke with the agent."""
        place.criu = ""

    # --- restore
    def restore(
        self, criu: object, init: Any, *, source: Any, **more: Any
    ) -> RestoreResult:
        del criu
        place = self.place(init.init_pid, init.init_start)
        if place.tree is not None:
            self.wrong("one tree", "a tree is restored on top of another")
        data = b"".join(bytes(part) for part in source.stream("pages-1.img"))
        saved = msgspec.json.decode(data, type=Memory)
        self.takes(0.1, 1.5)
        self.at("criu", place, more["cancel"])
        more["cancel"].check()
        place = self.place(init.init_pid, init.init_start)
        if saved.stuck or self.fails():
            raise RestoreFailed(Reason.RESTORE_FAILED, why="CRIU failed")
        _effect()
        place.tree = ProgramTree(
            contents=saved.contents,
            token=saved.token,
            port=saved.port,
            gpu_bytes=saved.gpu_bytes,
            on_gpu=False,
            stopped=set(PIDS),
            whole=False,
            since=_now(),
            active=_now(),
        )
        return RestoreResult(place.snapshot())

    def fill(
        self, init: Any, result: RestoreResult, *, cancel: Any, **more: Any
    ) -> RestoreResult:
        del more
        self.takes(0.1, 1.5)
        cancel.check()
        place = self.place(init.init_pid, init.init_start)
        if place.tree is None:
            raise RestoreFailed(Reason.RESTORE_FAILED, why="it has ended")
        _effect()
        place.tree.whole = True
        return result

    def proceed(self, result: RestoreResult, stopped: Collection[int]) -> None:
        _effect()
        place = self.place(result.tree.init.pid)
        if place.tree is None:
            raise RestoreFailed(Reason.RESTORE_FAILED, why="it has ended")
        self._go_on(place, place.tree, stopped, restored=True)
        _effect()

    def proceed_with_server(
        self,
        wake: object,
        result: RestoreResult,
        world: Any,
    ) -> None:
        del wake
        self.proceed(result, world.stopped)

    # --- the GPU
    def survey(self, driver: object, snapshot: Snapshot) -> Survey:
        del driver
        tree = self.tree(snapshot.init.pid)
        kernel = [p for p in snapshot.processes if p.ns_pid == KERNEL]
        if tree is None or not tree.gpu_bytes or not kernel:
            return Survey()
        if kernel[0].stopped:  # an emptied one has the driver's library still
            return Survey(stopped=tuple(kernel))
        return Survey(users=(kernel[0],))

    def held_by(self, pid: int) -> bool:
        tree = self.tree(pid)
        return tree is not None and tree.on_gpu and self.place(pid).pid + KERNEL == pid

    def empty_gpu(
        self, driver: object, tasks: Any, *, settle: Any, cancel: Any, **more: Any
    ) -> None:
        del driver, more
        self.takes(0.05, 0.5)
        settle()
        self.takes(0.1, 2.0)
        for task in tasks:
            self.at("gpu out", self.place(task.pid), cancel)
        if self.fails():
            raise RolledBack(Reason.GPU_FAILED, pid=KERNEL, name="python")
        if cancel is not None and cancel.is_set:
            raise RolledBack(Reason.CANCELLED)
        for task in tasks:
            tree = self.tree(task.pid)
            if tree is None:
                raise RolledBack(Reason.GPU_FAILED, pid=KERNEL, name="python")
            _effect()
            tree.on_gpu = False
            tree.stopped.add(KERNEL)
        if self.fails_late and self.fails():
            raise RolledBack(Reason.GPU_FAILED, pid=KERNEL, name="python")

    def fill_gpu(
        self, driver: object, tasks: Any, cancel: Any = None, **more: Any
    ) -> None:
        """The driver looks for room when it moves memory, not when it is asked to."""
        del driver, more
        self._promise([tree for task in tasks if (tree := self.tree(task.pid))], tasks)
        self.takes(0.1, 2.0)
        for task in tasks:
            tree = self.tree(task.pid)
            if tree is None or tree.on_gpu:
                continue
            tree.filled_by = None
            self.at("gpu back", self.place(task.pid), cancel)
            if self.fails():
                raise ReclaimError(Reason.GPU_DRIVER_SILENT)
            if self.machines.of(task.pid)[0].room < tree.gpu_bytes:
                raise ReclaimError(
                    Reason.GPU_STUCK, pid=KERNEL, name="python", detail=_NO_ROOM
                )
            _effect()
            tree.on_gpu = True

    def _promise(self, trees: list[ProgramTree], tasks: Any) -> None:
        """Look whether the agent has that room to give, beside what it gives others."""
        emptied = [tree for tree in trees if not tree.on_gpu]
        for tree in emptied:
            tree.filled_by = PROGRAM.get()
        if emptied:
            machine = self.machines.of(tasks[0].pid)[0]
            if machine.promised > machine.room:
                self.wrong("room", f"the GPU of {machine.name} is promised to too many")

    # --- the session's server
    async def ask(
        self,
        client: object,
        address: Any,
        path: str,
        kind: Any,
        *,
        seconds: float,
        **m: Any,
    ) -> Any:
        del client, kind, m
        await asyncio.sleep(0.01)
        tree = self.tree(address.pid)
        if tree is None:
            raise Unreachable(Reason.SAMPLES_MISSING, detail="nobody listens")
        if SERVER in tree.stopped:
            await asyncio.sleep(seconds)
            raise Unreachable(Reason.SAMPLES_MISSING, detail="no answer")
        return [] if path != "api" else None

    def read_login(self, pid: int) -> Identity:
        tree = self.tree(pid)
        if tree is None:
            raise OSError("ended")
        return Identity(api_token=tree.token, port=tree.port, uid=1000)

    def describe(self, session: Any, *, gpus: Any, **more: Any) -> HostRequirements:
        tree = self.place(session.init_pid).tree
        if tree is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=session.incarnation)
        return HostRequirements(
            machine=Machine(architecture="x86_64", kernel="6", cpu_flags=[]),
            root=ROOT,
            server=SERVER,
            uid=1000,
            pids=list(PIDS),
            memory=GIB,
            gpus=gpus,
            image=session.hint.image,
            node_labels=session.hint.node_labels,
            rights=rights_of([]),
        )

    def compare(
        self, tools: Any, session: Any, there: Any, **more: Any
    ) -> tuple[list[Any], tuple[()], list[Any]]:
        del more
        self.place(session.init_pid, session.init_start)
        gpus = there.world.gpus
        compared = tools.accelerator.compare(gpus, session.init_pid)
        found = list(compared)
        return found, (), []


class Cards:
    """NVML of the machine that the asking agent runs on."""

    def __init__(self, kernel: Kernel, machine: str) -> None:
        self._machine = kernel.machines.by_name[machine]

    def measure(self, since: float) -> list[CardUse]:
        del since
        machine = self._machine
        return [
            CardUse(
                uuid=machine.card,
                name="H200",
                total=machine.capacity,
                free=machine.capacity - machine.used(),
                busy_percent=0.0,
                divided=False,
                processes=[
                    ProcessUse(pid=place.pid + KERNEL, memory=place.tree.gpu_bytes)
                    for place in machine.places.values()
                    if place.tree is not None and place.tree.on_gpu
                ],
            )
        ]

    def close(self) -> None:
        """Nothing is open."""


class Driver:
    def __init__(self, cards: Cards) -> None:
        self._cards = cards

    def present(self) -> bool:
        return True

    def cards(self) -> list[CardUse]:
        return self._cards.measure(0.0)

    def thread(self, pid: int) -> int:
        return pid

    def memory(self, pids: Collection[int]) -> dict[int, driver.Memory]:
        """Whoever is a user has some."""
        return {pid: driver.Memory(own=(1,), borrowed=0) for pid in pids}

    def close(self) -> None:
        """Nothing is open."""


class Watch:
    """Notices what is sent to a kernel that naps (``node/nap/watch.py``)."""

    kernel: Kernel  #: set for each run

    def __init__(self, programs: Collection[Process], standing: object) -> None:
        del standing
        self._programs = list(programs)

    def open(self, init_pid: int) -> None:
        """Nothing is there to be opened."""

    def close(self) -> None:
        """Nothing is open."""

    async def wait(self) -> tuple[str, int]:
        while True:
            for process in self._programs:
                tree = self.kernel.tree(process.pid)
                if tree is None or KERNEL not in tree.stopped:
                    return "the end of a program", process.ns_pid
                if tree.unread:
                    return "execute_request", process.ns_pid
            await asyncio.sleep(0.5)


class NoWakeUp:
    """No kernel has to be told."""

    kernels = 0

    def __init__(self, address: object) -> None:
        del address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def queue(self, *_: object) -> None:
        """Nothing to queue."""

    def wait(self, seconds: float) -> bool:
        del seconds
        return True


def _substitutes(kernel: Kernel, rng: random.Random) -> list[tuple[Any, str, Any]]:
    """Which names stand for which doubles."""
    nothing: Callable[..., Any] = lambda *_, **__: []  # noqa: E731 - thirty times
    none: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - likewise
    seconds = types.SimpleNamespace(time=_now, monotonic=_now, sleep=pause)
    gpu_survey = types.SimpleNamespace(
        survey=kernel.survey,
        held_by=kernel.held_by,
        examine_clients=nothing,
        examine_sharing=nothing,
    )
    cuda = types.SimpleNamespace(
        empty=kernel.empty_gpu,
        fill=kernel.fill_gpu,
        driver_version=lambda: "580",
        huge_pages=str,
    )
    folder = types.SimpleNamespace(
        TemporaryDirectory=lambda dir: contextlib.nullcontext("")  # noqa: A006
    )

    async def no_state(*_: object) -> ServerState:
        return ServerState(kernels=[], terminals=[])

    async def none_busy(*_: object) -> frozenset[str]:
        return frozenset()

    watch = type("WatchOfThisRun", (Watch,), {"kernel": kernel})

    ids = random.Random("ids")
    return [
        (processes, "snapshot", kernel.snapshot),
        (processes, "snapshot_init", kernel.snapshot_init),
        (processes, "has_children", kernel.has_children),
        (processes, "kill_tree", kernel.kill_tree),
        (processes, "kill_session", kernel.kill_session),
        (processes, "send", none),
        (continuing, "resume", kernel.resume),
        (processes, "pending_signals", lambda _: 0),
        (procfs, "terminal", lambda _: 0),
        (nap, "held_by", kernel.held_by),
        (nap, "busy_kernels", none_busy),
        (inputs, "find_inputs", nothing),
        (inputs, "all_unread", lambda _: {}),
        (wakers, "Watch", watch),
        (trees, "resident_bytes", lambda _: GIB),
        (cgroups, "find_memory_limit", lambda *_: LimitRecord()),
        (cgroups, "lift_memory_limit", none),
        (cgroups, "restore_memory_limit", lambda _: True),
        (cgroups, "headroom", lambda *_: {}),
        (cgroup_escape, "move", none),
        (host_memory, "_available", lambda: 64 * GIB),
        (freeze, "stopped_before", lambda tree: tree.stopped),
        (freeze, "continued", kernel.continued),
        (freeze, "stop", kernel.stop),
        (quiesce, "cut_in_silence", lambda _: []),
        (inet, "reset_all", none),
        (robust_lists, "forget", none),
        (dump, "dump", kernel.dump),
        (tree_restore, "restore", kernel.restore),
        (tree_restore, "fill", kernel.fill),
        (tree_restore, "proceed", kernel.proceed),
        (preflight, "examine", nothing),
        (capture, "thaw", kernel.thaw),
        (capture, "read_login", kernel.read_login),
        (capture, "ask_state", no_state),
        (capture, "rights_of", none),
        (capture, "refuse_reaching", nothing),
        (capture, "Rehearsal", kernel.rehearsal),
        (capture, "tempfile", folder),
        (save, "ask_state", no_state),
        (save, "Rehearsal", kernel.rehearsal),
        (save, "Staging", lambda _, grant: Staging(0, grant)),
        (save.Save, "_keep_files", nothing),
        (save.Save, "_as_it_stands", lambda _, dumped: dumped._replace(memory={})),
        (filesystem, "kept_bytes", lambda *_: 0),
        (release, "thaw", kernel.thaw),
        (restore, "_compare", kernel.compare),
        (restore, "without_lost", lambda *_: ([], {})),
        (restore, "WakeUp", NoWakeUp),
        (restore, "_queue", none),
        (restore, "tempfile", folder),
        (recovery, "end_criu", kernel.end_criu),
        (wake_up, "thaw_server_last", kernel.proceed_with_server),
        (rehearsal, "rehearse", kernel.rehearse),
        (rehearsal, "wait", kernel.wait),
        (rehearsal, "tempfile", folder),
        (filesystem, "describe", kernel.describe),
        (filesystem, "refuse_container", nothing),
        (filesystem, "refuse_ports", nothing),
        (filesystem, "save_archives", none),
        (filesystem, "restore_archives", none),
        (filesystem, "entries_in", nothing),
        (filesystem, "memory_needed", lambda *_: GIB),
        (gpu, "gpu_survey", gpu_survey),
        (gpu, "cuda", cuda),
        (gpu, "time", seconds),
        (jupyter_api, "ask", kernel.ask),
        (uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda size=32: ids.randbytes(size).hex()),
    ]


@contextlib.contextmanager
def installed(
    kernel: Kernel, rng: random.Random, more: list[tuple[Any, str, Any]]
) -> Iterator[None]:
    """Put the doubles in place of the originals, for as long as the block lasts.

    Args:
        kernel: what they work on.
        rng: for names that are made up.
        more: further substitutes.
    """
    with replaced([*_substitutes(kernel, rng), *more]):
        yield


@contextlib.contextmanager
def replaced(table: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Let each name stand for its double, for as long as the block lasts."""
    originals = [(where, name, getattr(where, name)) for where, name, _ in table]
    try:
        for where, name, double in table:
            setattr(where, name, double)
        yield
    finally:
        for where, name, original in reversed(originals):
            setattr(where, name, original)


class LeftOut(StandingMemory):
    """The memory of a tree that was dumped; all of it goes on with the tree."""

    def __init__(self, kernel: Kernel, place: Place) -> None:
        super().__init__()
        self._kernel, self._place, self._tree = kernel, place, place.tree

    def split(self, pids: Collection[int]) -> tuple[StandingMemory, StandingMemory]:
        del pids
        return StandingMemory(), self

    def deliver(self, begin: Any, prefix: str, cancel: Any) -> None:
        with begin(f"{prefix}pages-1.img") as file:
            for part in (slice(8), slice(8, None)):
                cancel.check()
                if self._tree is None or self._place.tree is not self._tree:
                    raise RolledBack(Reason.CAPTURE_FAILED, why="it has ended")
                if not self._tree.stopped >= set(PIDS):
                    raise RolledBack(Reason.CAPTURE_FAILED, why="it has gone on")
                file.write(_memory(self._tree)[part])
                self._kernel.takes(0.1, 1.5)
                self._kernel.at("memory", self._place, cancel)


def _memory(tree: ProgramTree) -> bytes:
    return msgspec.json.encode(
        Memory(tree.contents, tree.token, tree.port, tree.gpu_bytes, tree.stuck)
    )


def _effect() -> None:
    program = PROGRAM.get()
    if program is not None:
        program.effect()


def _alive() -> bool:
    program = PROGRAM.get()
    return program is None or program.alive


def _who() -> str:
    program = PROGRAM.get()
    return program.name if program is not None else "nobody"


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # a thread, where these doubles serve in real time
        return time.monotonic()
