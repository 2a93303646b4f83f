"""Real sessions for the engine's tests: namespaces, an init, programs, CRIU."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import select
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.files.open_files import (
    FileFingerprint,
    fingerprint,
)
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped, rehearse
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, ports
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.dump import DumpResult, dump
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import (
    RestoreResult,
    fill,
    proceed,
    restore,
)
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, Refused
from jupyterhub_gpu_reclaim.linux import processes
from tests.support.agent import CRIU_FOLDERS, INIT, MOUNTS
from tests.support.init_words import init_words


@pytest.fixture(scope="session")
def criu() -> criu_module.Criu:
    if os.geteuid() != 0:
        pytest.skip("needs root: CRIU enters namespaces")
    for folder in CRIU_FOLDERS:
        if folder and Path(folder, "criu").is_file():
            return criu_module.locate(Path(folder))
    try:
        return criu_module.locate()
    except Refused:
        pytest.skip("needs CRIU: jupyterhub-gpu-reclaim criu install")


@dataclass
class Place:
    """One init with its namespaces, and the pipe that it writes its output to."""

    popen: subprocess.Popen[bytes]
    output: int
    init_pid: int
    init_start: int
    seen: bytes = b""

    @property
    def session(self) -> SessionInit:
        return SessionInit(self.init_pid, self.init_start)

    @property
    def tree(self) -> processes.Snapshot:
        return processes.snapshot(self.init_pid, self.init_start)

    @property
    def living(self) -> tuple[processes.Process, ...]:
        """Of the tree; what has ended may wait a moment for its init."""
        there = self.tree.processes
        return tuple(one for one in there if one.state not in processes.DEAD)

    def read_until(self, what: str, timeout: float = 20) -> str:
        """Output up to and with ``what``; it must come in time."""
        deadline = time.monotonic() + timeout
        while what.encode() not in self.seen:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.output], [], [], left)[0]
            data = os.read(self.output, 65536) if ready else b""
            assert data, f"no {what!r} in {self.seen[-2000:]!r}"
            self.seen += data
        head, mark, self.seen = self.seen.partition(what.encode())
        return (head + mark).decode()

    def read_rest(self) -> str:
        while data := os.read(self.output, 65536):
            self.seen += data
        rest, self.seen = self.seen.decode(), b""
        return rest

    def wait(self, timeout: float = 20) -> int:
        return self.popen.wait(timeout)

    def kill(self) -> None:
        """As an agent does it: what is left in TIME_WAIT would keep its ports."""
        with contextlib.suppress(ReclaimError):
            # What hangs in vfork(2) never stops.
            tree = freeze.stop(self.init_pid, self.init_start, timeout=4)
            inet.reset_all(self.init_pid, [one.pid for one in tree.processes])
        processes.kill_session(self.init_pid, self.init_start, timeout=20)
        self.popen.wait(60)


def wait_for(condition, timeout: float = 20):
    """The first true value of a condition that must become true in time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true"
        time.sleep(0.01)
    return value


def _init_below(pid: int) -> tuple[int, int]:
    """The init that unshare(1) has forked, once it is session_init itself."""

    def found():
        path = Path(f"/proc/{pid}/task/{pid}/children")
        for child in path.read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"session_init.py") for word in words[1:5]):
                return int(child), processes.start_time(int(child))
        return None

    return wait_for(found)


@dataclass
class Places:
    """Makes places, and clears them away."""

    folder: Path
    made: list[Place] = field(default_factory=list)

    def make(
        self, mode: str, *command: str, relay: bool = True, network: int = 0, **facts
    ) -> Place:
        """A place; in the network namespace of that process, if one is given."""
        read_end, write_end = os.pipe()
        inside = ["nsenter", f"--net=/proc/{network}/ns/net"] if network else []
        popen = subprocess.Popen(
            [
                *inside,
                *("unshare", "--fork", "--pid", "--mount", "--ipc", "--uts"),
                *("--mount-proc", "--kill-child", "sh", "-c", MOUNTS, "sh"),
                *(sys.executable, "-I", "-S", str(INIT)),
                # Agents of other tests, on the same machine, must not thaw these.
                *init_words(mode, *command, relay=relay, realm="engine-tests", **facts),
            ],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            # Without a relay the tree writes there itself: a pipe as in a container.
            stderr=None if relay else write_end,
            cwd="/",
        )
        os.close(write_end)
        init_pid, init_start = _init_below(popen.pid)
        place = Place(popen, read_end, init_pid, init_start)
        self.made.append(place)
        return place

    def start(self, *command: str, **options) -> Place:
        return self.make("start", *command, **options)

    def world(self, **options) -> World:
        place = self.start(sys.executable, "-c", REPL, **options)
        place.read_until("port ")
        return World(place, int(place.read_until("\n")))

    def hold(self, **options) -> Place:
        return self.make("hold", **options)

    def clear(self) -> None:
        for place in self.made:
            try:
                place.kill()
            except NotFound:
                pass
            finally:
                place.popen.kill()
                place.popen.wait()
                os.close(place.output)


@pytest.fixture(name="wait_for")
def wait_for_fixture():
    return wait_for


@pytest.fixture
def places(tmp_path):
    made = Places(tmp_path)
    yield made
    made.clear()


@pytest.fixture(scope="module")
def shared_places(tmp_path_factory):
    """For what all tests of a module look at, or leave as it was."""
    made = Places(tmp_path_factory.mktemp("places"))
    yield made
    made.clear()


#: Runs what it is told, so that each test can build its own world in a session.
REPL = """
import ast, os, pty, select, signal, socket, subprocess, sys, threading, time
scope = globals()
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    with client, client.makefile("rw") as lines:
        try:
            *body, last = ast.parse(ast.literal_eval(lines.readline())).body
            exec(compile(ast.Module(body, []), "told", "exec"), scope)
            if isinstance(last, ast.Expr):
                last = ast.Expression(last.value)
                answer = eval(compile(last, "told", "eval"), scope)
            else:
                exec(compile(ast.Module([last], []), "told", "exec"), scope)
                answer = None
            lines.write(repr(("ok", answer)) + "\\n")
        except Exception as error:
            lines.write(repr(("error", repr(error))) + "\\n")
        lines.flush()
        try:
            lines.readline()
        except ConnectionError:
            pass  # a suspend came between this answer and its reader's close
"""


@dataclass
class World:
    """A session whose program runs what it is told."""

    place: Place
    port: int

    def __call__(self, code: str):
        """The value of the last line; everything before is run."""
        address = ("127.0.0.1", self.port)
        with (
            socket.create_connection(address, timeout=30) as client,
            client.makefile("rw") as lines,
        ):
            lines.write(repr(code) + "\n")
            lines.flush()
            kind, answer = ast.literal_eval(lines.readline())
            # We close first, so that no TIME_WAIT stays on the session's port.
            assert kind == "ok", answer
            return answer

    def at(self, place: Place) -> World:
        return World(place, self.port)


COPY = 4 << 20


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def write_memory(pid: int, address: int, data: memoryview) -> None:
    """All of it into that process' memory (process_vm_writev(2))."""
    keep = (ctypes.c_char * len(data)).from_buffer_copy(data)
    local = _Vector(ctypes.addressof(keep), len(data))
    there = _Vector(address, len(data))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.process_vm_writev(
        pid, ctypes.byref(local), 1, ctypes.byref(there), 1, 0
    )
    if done != len(data):
        raise OSError(ctypes.get_errno(), f"{done} of {len(data)} bytes written")


class Image(dict):
    """CRIU's files in memory: sinks for a dump, a source for a restore."""

    copied = 0

    def sink(self, name: str):
        image = self

        class MemorySink:
            def __init__(self):
                self.data = bytearray()

            def write(self, data):
                self.data += data

            def close(self):
                image[name] = bytes(self.data)

        return MemorySink()

    def size(self, name: str):
        return len(self[name]) if name in self else None

    def stream(self, name: str, skip=()):
        view, at = memoryview(self[name]), 0
        for offset, length in skip:
            yield view[at:offset]
            at = offset + length
        yield view[at:]

    def copy(self, pieces, cancelled):
        views = {name: memoryview(self[name]) for name in pieces}
        blocks = [
            (
                views[name][at : min(at + COPY, one.offset + one.length)],
                one,
                at - one.offset,
            )
            for name, of_it in pieces.items()
            for one in of_it
            for at in range(one.offset, one.offset + one.length, COPY)
        ]
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda block: self.write(*block, cancelled), blocks):
                pass

    def write(self, data, piece, at: int, cancelled) -> None:
        if cancelled():
            raise InterruptedError
        write_memory(piece.pid, piece.address + at, data)
        self.copied += len(data)


class Taking:
    """A sink that takes the memory of a process."""

    def __init__(self, sink) -> None:
        self.sink = sink

    def take_memory(self, memory) -> None:
        data = memoryview(bytearray(memory.length))
        memory.read_into(0, data)
        self.sink.write(data)

    def cancel(self) -> None: ...

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.sink.close()


def fingerprints(place: Place) -> list[FileFingerprint]:
    """Of the files that a stopped tree has open, as an agent takes them."""
    pids = [process.pid for process in place.tree.processes]
    return fingerprint(place.init_pid, pids)


@dataclass
class Engine:
    """Dump and restore with the test's folders and limits."""

    criu: criu_module.Criu
    folder: Path
    count: int = 0

    @staticmethod
    def image() -> Image:
        return Image()

    def work(self) -> Path:
        self.count += 1
        folder = self.folder / f"work{self.count}"
        folder.mkdir(mode=0o700)
        return folder

    def dump(self, place: Place, sinks, **options) -> DumpResult:
        """All of it, as an agent does it: after a failure the tree goes on."""
        result = self.dump_without_memory(place, sinks, **options)
        result.memory.deliver(lambda name: Taking(sinks(name)), "", Cancel())
        return result

    def dump_without_memory(self, place: Place, sinks, **options) -> DumpResult:
        stopped = options.pop("stopped", None)
        if stopped is None:
            stopped = freeze.stopped_before(place.tree)
        options = {"limit": 60, "stopped": stopped, **options}
        try:
            return dump(
                self.criu, place.session, sinks=sinks, folder=self.work(), **options
            )
        except BaseException:
            with contextlib.suppress(NotFound):
                freeze.thaw(place.tree, stopped)
            raise

    def restore(
        self, place: Place, source, result: DumpResult, **options
    ) -> RestoreResult:
        """All of it: CRIU, then the memory that did not go through it."""
        restored = self.run_criu(place, source, result, **options)
        for only in ("prepare", "opened", "cut"):
            options.pop(only, None)
        options = {"limit": 60, **options}
        return fill(place.session, restored, source=source, **options)

    def run_criu(
        self, place: Place, source, result: DumpResult, **options
    ) -> RestoreResult:
        options = {"limit": 60, **options}
        return restore(
            self.criu,
            place.session,
            source=source,
            folder=self.work(),
            **options,
        )

    def await_free(self, place: Place, image: Image) -> None:
        """As the agent does before a return: what has ended may have sockets yet."""
        pairs = inet.connections_of(images.file_entries(image["files.img"]))
        assert ports.await_free(place.init_pid, (), pairs, seconds=5) == []

    def rehearse(self, place: Place, dumped: Dumped) -> None:
        rehearse(self.criu, place.session, dumped, folder=self.work(), limit=60)

    def save(self, place: Place, *, rehearsed: bool = False, **options) -> Saved:
        """Dump, and end it."""
        image = Image()
        result = self.dump(place, image.sink, **options)
        opened = fingerprints(place)
        if rehearsed:
            self.rehearse(place, Dumped(result, opened, ()))
        place.kill()
        return Saved(self, image, result, opened)

    def cycle(self, world: World, places: Places) -> World:
        """Dump, rehearse, end, restore in a new place, go on."""
        saved = self.save(world.place, rehearsed=True)
        return world.at(saved.back(places.hold()))


@dataclass
class Saved:
    """A session that has ended, and can come back."""

    engine: Engine
    image: Image
    result: DumpResult
    opened: list[FileFingerprint]

    def restore(self, place: Place, **options) -> RestoreResult:
        options = {"opened": self.opened, **options}
        return self.engine.restore(place, self.image, self.result, **options)

    def back(self, place: Place, **options) -> Place:
        """Restored there, it goes on."""
        self.engine.await_free(place, self.image)
        proceed(self.restore(place, **options), self.result.stopped)
        return place


@pytest.fixture
def engine(criu, tmp_path) -> Engine:
    return Engine(criu, tmp_path)


@pytest.fixture(scope="module")
def shared_engine(criu, tmp_path_factory) -> Engine:
    return Engine(criu, tmp_path_factory.mktemp("engine"))
