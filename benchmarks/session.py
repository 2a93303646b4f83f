"""A whole session saved and brought back: our engine and store beside stock CRIU.

    sudo .venv/bin/python benchmarks/session.py --gb 1 4 8 --runs 3 --on tmpfs disk

All save the same kind of tree (a Python process that holds NumPy arrays and bytes)
with the same CRIU, inside the same namespaces, into the same file system; every tree
that comes back is asked for a digest of its data. "stock" is ``criu dump`` into files
and ``criu restore`` from them; "ours" is the engine and the store: encrypted,
authenticated, deduplicated, committed and read back. "agent" is what a user gets: by
the agent's API, from the order until the session has ended, with its check, its
connections and archives, the commit and the release; and from the order to resume until
all runs. "answer" is how long it takes from that order until the program has answered.
"engine" (with --engine) is ours with plain files in place of the store: what is left
when the store costs nothing.

On disk the page cache is dropped before each restore. The methods take turns, so that
a machine that is busy with other things slows them alike. Prints medians of the runs;
"cores" is CPU seconds of everything that took part, by second of the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import math
import mmap
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments, written

sys.path.insert(0, str(Path(__file__).resolve().parent))

from agent import REALM, Agent, Order

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import path_of, run_inside
from jupyterhub_gpu_reclaim.checkpoint.criu.process import COMMON, LOG, SessionInit
from jupyterhub_gpu_reclaim.checkpoint.kinds import output
from jupyterhub_gpu_reclaim.checkpoint.tree.dump import dump
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import (
    fill,
    proceed,
    restore,
    wait_ready,
)
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    IMAGES,
    CheckpointImages,
)
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import IO

    from jupyterhub_gpu_reclaim.checkpoint.saved_images import Piece, Range
    from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory

T = TypeVar("T")
Make = Callable[[Path], "Method"]

ROOT = Path(__file__).resolve().parents[1]
INIT = ROOT / "jupyterhub_gpu_reclaim" / "session_init" / "session_init.py"
WHERE = {"tmpfs": Path("/dev/shm"), "disk": ROOT / ".cache"}
LIMIT = 600.0
#: What an agent begins when it sees its first session is there by then.
_SEEN_SECONDS = 1.0
#: CRIU's own processes start above, so that they sit on no pid of the session.
HELPERS = 20_000
#: Stock CRIU: as ours, but into files, and with the little it says otherwise.
STOCK = tuple(word for word in COMMON if word != "--stream")

MOUNTS = """
mount -t tmpfs -o mode=1777 shm /dev/shm &&
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts &&
mount --bind /dev/pts/ptmx /dev/ptmx &&
exec "$@"
"""

#: Before and after what a program is made of: it waits, as an idle server does, and
#: writes its ``digest()`` into its folder whenever it is asked.
BEGIN = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
answer = pathlib.Path(sys.argv[1]) / "answer"
"""
WAIT = """
while True:
    answer.with_suffix(".new").write_text(digest())
    answer.with_suffix(".new").rename(answer)
    signal.sigwait({signal.SIGUSR1})
"""
#: Half random floats, a quarter numbers in a row, a quarter bytes.
PROGRAM = """
import hashlib, numpy
size = int(sys.argv[2])
chance = numpy.random.default_rng(7)
data = [chance.random(8 << 20) for _ in range(size // 2 // (64 << 20))]
data += [numpy.arange(8 << 20) * 1.5 for _ in range(size // 4 // (64 << 20))]
data += [os.urandom(16 << 20) for _ in range(size // 4 // (16 << 20))]

def digest():
    found = hashlib.sha1()
    for one in data:
        found.update(memoryview(one).cast("B")[:: 4096 // 8 * 8 + 8].tobytes())
    return found.hexdigest()
"""


@dataclass
class Place:
    """An init in namespaces of its own, as the local spawner makes it."""

    popen: subprocess.Popen[bytes]
    pid: int
    start: int

    @classmethod
    def make(cls, mode: str, *command: str) -> Place:
        arguments = InitArguments(REALM, "ann", realm=REALM, holding=mode == "hold")
        popen = subprocess.Popen(
            [
                *("unshare", "--fork", "--pid", "--mount", "--ipc", "--uts"),
                *("--mount-proc", "--kill-child", "sh", "-c", MOUNTS, "sh"),
                *(sys.executable, "-I", "-S", str(INIT), written(arguments)),
                *(["--", *command] if command else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children")
        pid = wait_for(lambda: _init_of(children))
        start = processes.start_time(pid)
        assert start is not None
        wait_ready(pid, start, timeout=20)
        return cls(popen, pid, start)

    @property
    def session(self) -> SessionInit:
        return SessionInit(self.pid, self.start)

    @property
    def program(self) -> processes.Process:
        server = processes.snapshot(self.pid, self.start).server
        assert server is not None
        return server

    def ask(self) -> None:
        """Ask its program for an answer."""
        os.kill(self.program.pid, signal.SIGUSR1)

    def end(self) -> None:
        with contextlib.suppress(NotFound):  # an agent has ended it
            processes.kill_session(self.pid, self.start, timeout=60)
        self.popen.wait()


def _init_of(children: Path) -> int | None:
    for child in children.read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"session_init.py" in line and not line.startswith(b"sh"):
            return int(child)
    return None


def wait_for(condition: Callable[[], T], seconds: float = 120.0) -> T:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit("the session does not answer")
        time.sleep(0.001)
    return value


class Meter:
    """CPU seconds of this process and all that it starts, by a control group."""

    GROUPS = (("cpuacct/session-benchmark", "cpuacct.usage"),
              ("session-benchmark", "cpu.stat"))  # fmt: skip

    def __init__(self) -> None:
        self.file: Path | None = None
        for group, name in self.GROUPS:
            folder = Path("/sys/fs/cgroup", group)
            # Where no group can be made, cores are not counted.
            with contextlib.suppress(OSError):
                if folder.parent.joinpath(name).exists():
                    folder.mkdir(exist_ok=True)
                    (folder / "cgroup.procs").write_text(str(os.getpid()))
                    self.file = folder / name
                    return

    def seconds(self) -> float:
        if self.file is None:
            return math.nan
        text = self.file.read_text()
        if text.startswith("usage_usec"):
            return int(text.split()[1]) / 1e6
        return int(text) / 1e9

    def close(self) -> None:
        if self.file is None:
            return
        above = self.file.parent.parent / "cgroup.procs"
        for pid in (self.file.parent / "cgroup.procs").read_text().split():
            above.write_text(pid)
        self.file.parent.rmdir()


class FileOfMemory:
    """The memory of a process in a plain file, written by threads."""

    BLOCK = 4 << 20

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def take_memory(self, memory: ProcessMemory) -> None:
        def write(offset: int) -> None:
            view = memoryview(bytearray(min(self.BLOCK, memory.length - offset)))
            memory.read_into(offset, view)
            os.pwrite(self._file.fileno(), view, offset)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write, range(0, memory.length, self.BLOCK)))

    def cancel(self) -> None:
        """Nobody calls it off."""


class Files:
    """Images in plain files, copied by threads: the engine without a store."""

    BLOCK = 4 << 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self, name: str) -> IO[bytes]:
        return (self.folder / name).open("wb", buffering=0)

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[FileOfMemory]:
        with self.sink(name) as file:
            yield FileOfMemory(file)

    def size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.exists() else None

    def stream(self, name: str, skip: Sequence[Range] = ()) -> Iterator[bytes]:
        at, end = 0, self.size(name)
        with (self.folder / name).open("rb", buffering=0) as file:
            for start, length in [*skip, (end, 0)]:
                file.seek(at)
                while at < start:
                    data = file.read(min(self.BLOCK, start - at))
                    at += len(data)
                    yield data
                at = start + length

    def copy(
        self, pieces: Mapping[str, Sequence[Piece]], cancelled: Callable[[], bool]
    ) -> None:
        del cancelled
        for name, of_it in pieces.items():
            self._copy(name, of_it)

    def _copy(self, name: str, pieces: Sequence[Piece]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with (self.folder / name).open("r+b") as file:
            view = mmap.mmap(file.fileno(), 0)
            base = ctypes.addressof(ctypes.c_char.from_buffer(view))

        def write(block: tuple[int, int, int, int]) -> None:
            offset, length, pid, address = block
            here = (ctypes.c_size_t * 2)(base + offset, length)
            there = (ctypes.c_size_t * 2)(address, length)
            assert libc.process_vm_writev(pid, here, 1, there, 1, 0) == length

        blocks = [
            (o, min(self.BLOCK, one.offset + one.length - o), one.pid,
             one.address + o - one.offset)
            for one in pieces
            for o in range(one.offset, one.offset + one.length, self.BLOCK)
        ]  # fmt: skip
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write, blocks))


class Method:
    """A way to save a session and to bring it back."""

    def see(self) -> None:
        """See it while it runs, as a service does for half an hour before."""

    def save(self, place: Place) -> None:
        """Save it; it is not needed any more."""
        raise NotImplementedError

    def bring_back(self, place: Place) -> None:
        """Bring it back, and let it run."""
        raise NotImplementedError

    def steps(self) -> str:
        """What took how long, the last time, if it knows."""
        return ""

    def close(self) -> None:
        """Release what it has."""


class Stock(Method):
    """``criu dump`` and ``criu restore`` with files."""

    def __init__(self, criu: criu_module.Criu, folder: Path) -> None:
        self.criu = criu
        self.folder = folder

    def save(self, place: Place) -> None:
        tree = processes.snapshot(place.pid, place.start)
        assert tree.root is not None
        self.pipes = output.names(place.pid)
        root = str(tree.root.ns_pid)
        self._run(place, ["dump", "--leave-stopped", "--tree", root])

    def bring_back(self, place: Place) -> None:
        with ExitStack() as stack:
            ends = output.open_ends(place.pid, self.pipes)
            for descriptor in ends.values():
                stack.callback(os.close, descriptor)
            self._run(place, ["restore", "--restore-detached"], HELPERS, ends)

    def _run(
        self,
        place: Place,
        words: list[str],
        last_pid: int = 0,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        images = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)

        line = [words[0], "-D", path_of(images), *STOCK, *words[1:]]
        for name, descriptor in (ends or {}).items():
            line += ["--inherit-fd", f"fd[{descriptor}]:{name}"]
        inside = run_inside(
            self.criu,
            line,
            [images, *(ends or {}).values()],
            init_pid=place.pid,
            init_start=place.start,
            last_pid=last_pid,
        )
        status = inside.wait(time.monotonic() + LIMIT)
        inside.close()
        os.close(images)
        if status != 0:
            sys.exit((self.folder / LOG).read_text()[-4000:])


class Ours(Method):
    """The engine, and a store; without one, plain files."""

    def __init__(
        self, criu: criu_module.Criu, folder: Path, store: Repository | None
    ) -> None:
        self.criu = criu
        self.folder = folder
        self.store = store
        self.work = 0
        self.generation = 0

    def _folder(self) -> Path:
        self.work += 1
        folder = self.folder / f"work-{self.work}"
        folder.mkdir(mode=0o700)
        return folder

    def save(self, place: Place) -> None:
        """Each time one generation more, beside the earlier ones."""
        times = [time.monotonic()]
        writer = None
        files = Files(self.folder)
        sinks, begin, prefix = files.sink, files.file, ""
        self.generation += 1
        if self.store is not None:
            writer = self.store.begin(
                id=f"benchmark-{self.generation}",
                key=SessionKey(user="ann", server=""),
                incarnation="benchmark",
                generation=self.generation,
            )
            sinks = lambda name: writer.file(IMAGES + name)  # noqa: E731
            begin, prefix = writer.file, IMAGES
        times.append(time.monotonic())
        self.result = dump(
            self.criu,
            place.session,
            sinks=sinks,
            folder=self._folder(),
            limit=LIMIT,
            stopped=(),
            parts=None if writer is None else writer.parts,
        )
        self.result.memory.deliver(begin, prefix, Cancel())
        times.append(time.monotonic())
        if writer is not None:
            writer.commit(steps=[], frozen_seconds=0.0, timeout=LIMIT)
        times.append(time.monotonic())
        #: Seconds: the beginning (an agent does it while the session runs on), CRIU
        #: with the store, the commit.
        self.save_parts = [b - a for a, b in itertools.pairwise(times)]

    def bring_back(self, place: Place) -> None:
        source: Files | CheckpointImages = Files(self.folder)
        if self.store is not None:
            checkpoint = self.store.open(f"benchmark-{self.generation}")
            source = CheckpointImages(checkpoint)
        result = self.result
        begun = time.monotonic()
        restored = restore(
            self.criu,
            place.session,
            source=source,
            folder=self._folder(),
            limit=LIMIT,
        )
        self.parts = [time.monotonic() - begun]
        begun = time.monotonic()
        whole = fill(place.session, restored, source=source, limit=LIMIT)
        self.parts.append(time.monotonic() - begun)
        proceed(whole, result.stopped)


class ByAgent(Method):
    """What a user gets, by orders to a real agent.

    Args:
        criu: folder of the private CRIU.
        folder: where the session is saved.
    """

    def __init__(self, criu: Path, folder: Path) -> None:
        self._state = Path(tempfile.mkdtemp(prefix="agent-", dir="/tmp"))
        self._agent = Agent(self._state, criu, folder / "store")
        #: The last orders.
        self.saved = self.resumed = Order(iter(()))

    def see(self) -> None:
        """What it begins then has ended long before an order comes."""
        self._agent.look()
        time.sleep(_SEEN_SECONDS)

    def save(self, place: Place) -> None:
        """Until the session has ended."""
        del place  # the agent has found it by itself
        self.saved = self._agent.order(
            "capture", "checkpoint", checkpoint="benchmark", generation=1
        )
        self._agent.order("release", checkpoint="benchmark")

    def bring_back(self, place: Place) -> None:
        """Until it runs."""
        del place
        self.resumed = self._agent.order("restore", "tree", checkpoint="benchmark")
        done = self.resumed.done
        self.parts = [done["programs"], done["memory"] - done["programs"]]

    def steps(self) -> str:
        """What took how long, the last time."""
        return f"save: {self.saved.parts()}; resume: {self.resumed.parts()}"

    def close(self) -> None:
        """End the agent."""
        self._agent.close()
        shutil.rmtree(self._state, ignore_errors=True)


@dataclass
class Measured:
    """Of one method, a value for each run: seconds, and CPU seconds."""

    save: list[float] = field(default_factory=list)
    save_cpu: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    back_cpu: list[float] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    steps: str = ""

    def row(self, name: str, gb: float, stock: Measured) -> str:
        return (
            f"{name:<7}{_half(gb, self.save, self.save_cpu, stock.save)}"
            f"  |{_half(gb, self.back, self.back_cpu, stock.back)}   "
            + "+".join(
                f"{statistics.median(part):.2f}"
                for part in zip(*self.parts, strict=True)
            )
            + f"  {statistics.median(self.answered):.2f}"
        )


def _half(gb: float, took: list[float], cpu: list[float], stock: list[float]) -> str:
    seconds = statistics.median(took)
    cores = statistics.median(c / s for c, s in zip(cpu, took, strict=True))
    # Of runs that stood side by side, so that both had the same machine.
    ratio = statistics.median(a / b for a, b in zip(stock, took, strict=True))
    return f"{seconds:>8.2f}{gb / seconds:>7.2f}{cores:>7.1f}{ratio:>7.2f}x"


def cycle(
    measured: Measured,
    method: Method,
    meter: Meter,
    program: Sequence[str],
    *,
    drop: bool,
) -> None:
    """Start a session, save it, end it, bring it back, ask it.

    ``program``: what stands between ``BEGIN`` and ``WAIT``, and its arguments.
    """
    with ExitStack() as stack:
        talk = Path(tempfile.mkdtemp(dir="/tmp"))
        stack.callback(shutil.rmtree, talk)
        source, *arguments = program
        command = [sys.executable, "-c", BEGIN + source + WAIT, str(talk), *arguments]
        place = Place.make("start", *command)
        stack.callback(place.end)
        wait_for((talk / "answer").exists)
        before = (talk / "answer").read_text()
        method.see()
        cpu, begun = meter.seconds(), time.monotonic()
        method.save(place)
        measured.save.append(time.monotonic() - begun)
        measured.save_cpu.append(meter.seconds() - cpu)
        place.end()
        (talk / "answer").unlink()
        if drop:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")
        holding = Place.make("hold")
        stack.callback(holding.end)
        cpu, begun = meter.seconds(), time.monotonic()
        method.bring_back(holding)
        measured.back.append(time.monotonic() - begun)
        measured.back_cpu.append(meter.seconds() - cpu)
        measured.parts.append(getattr(method, "parts", measured.back[-1:]))
        holding.ask()
        wait_for((talk / "answer").exists)
        measured.answered.append(time.monotonic() - begun)
        if (talk / "answer").read_text() != before:
            sys.exit("its data came back changed")


def of_size(gb: float) -> tuple[str, str]:
    """The program that holds so many GB."""
    return PROGRAM, str(int(gb * 1e9))


def measure(
    methods: Mapping[str, Make],
    meter: Meter,
    program: Sequence[str],
    where: str,
    runs: int,
) -> dict[str, Measured]:
    found = {name: Measured() for name in methods}
    for _ in range(runs):
        for name, make in methods.items():
            folder = Path(tempfile.mkdtemp(prefix="session-", dir=WHERE[where]))
            method = make(folder)
            try:
                cycle(found[name], method, meter, program, drop=where == "disk")
                found[name].steps = method.steps()
            finally:
                method.close()
                shutil.rmtree(folder)
    return found


def methods_of(criu: Path, pool: Pool) -> dict[str, Make]:
    """The ways to save a session that are compared, by name."""
    found = criu_module.locate(criu)
    return {
        "stock": lambda folder: Stock(found, folder),
        "ours": lambda folder: Ours(found, folder, open_store(folder, pool)),
        "agent": lambda folder: ByAgent(criu, folder),
        "engine": lambda folder: Ours(found, folder, None),
    }


def open_store(folder: Path, pool: Pool) -> Repository:
    backend = FolderBackend(folder / "store")
    keys = KeyRing({"benchmark": bytes(32)})
    # As the agent opens it by default.
    return Repository(backend, clock=SystemClock(), keys=keys, pool=pool)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--gb", type=float, nargs="+", default=[1])
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--on", nargs="+", choices=WHERE, default=list(WHERE))
    words.add_argument("--tmpfs", type=Path, default=WHERE["tmpfs"])
    words.add_argument("--engine", action="store_true", help="also without a store")
    words.add_argument("--criu", type=Path, default=ROOT / ".cache" / "criu")
    args = words.parse_args()
    criu = criu_module.locate(args.criu)
    WHERE["disk"].mkdir(exist_ok=True)
    WHERE["tmpfs"] = args.tmpfs
    pool = Pool()
    methods = methods_of(args.criu, pool)
    if not args.engine:
        del methods["engine"]
    version = ".".join(map(str, criu.version()))
    print(f"CRIU {version}, {os.cpu_count()} cores, median of {args.runs}")
    meter = Meter()
    for gb in args.gb:
        for where in args.on:
            head = f"{'s':>8}{'GB/s':>7}{'cores':>7}{'stock':>8}"
            print(f"\n{gb:g} GB on {where}: save                |  resume")
            print(f"{'':<7}{head}  |{head}   of it: CRIU + memory  answer")
            found = measure(methods, meter, of_size(gb), where, args.runs)
            for name, measured in found.items():
                print(measured.row(name, gb, found["stock"]), flush=True)
            for measured in found.values():
                if measured.steps:
                    print(f"the agent's last run, {measured.steps}", flush=True)
    meter.close()
    pool.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"\npeak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
