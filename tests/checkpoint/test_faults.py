"""Dump and restore that fail: the tree goes on, or nothing but the init is left."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    Refused,
    RestoreFailed,
    RolledBack,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, processes, procfs
from jupyterhub_gpu_reclaim.node.workflows.recovery import end_criu
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.checkpoint.conftest import Image

#: Something that CRIU itself hands over as pages-*.img: more than a pipe holds.
BALLAST = (
    "import mmap; ballast = mmap.mmap(-1, 32 << 20); "
    "ballast.write(os.urandom(32 << 20))"
)


class SinkThatIsFull:
    """Takes some megabytes, then says that the store is full."""

    def __init__(self, name, room=4 << 20):
        self.name, self.room = name, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise StoreError(Reason.STORE_FULL, needed="32 MB", free="0 MB")

    def close(self):
        pass


def cannot_open(name):
    raise StoreError(Reason.STORE_FULL, needed="1", free="0")


class SinkThatHangs:
    """Takes some megabytes, then nothing until it is let go."""

    def __init__(self, name, reached, let_go):
        self.count, self.reached, self.let_go = 0, reached, let_go

    def write(self, data):
        self.count += len(data)
        if self.count > 4 << 20:
            self.reached.set()
            self.let_go.wait(30)

    def close(self):
        pass


class ImageThatIsDamaged(Image):
    """Hands out the beginning of the memory, then finds that it is not what it was."""

    def stream(self, name, skip=()):
        if not name.startswith("pages-"):
            yield from super().stream(name, skip)
            return
        yield self[name][:4096]
        raise StoreError(Reason.CHECKPOINT_DAMAGED, why="a flipped bit")


class ImageThatCallsOff(Image):
    """Calls the restore off once CRIU asks for memory."""

    cancel: Cancel

    def stream(self, name, skip=()):
        if name.startswith("pages-"):
            self.cancel.set()
        return super().stream(name, skip)


def assert_runs(world):
    assert world("one.sendall(b'again'); two.recv(100)").endswith(b"again")
    assert {p.state for p in world.place.tree.processes} <= {"S", "R"}


def made(places):
    world = places.world()
    world(BALLAST)
    world("other = socket.create_server(('127.0.0.1', 0))")
    world("one = socket.create_connection(other.getsockname())")
    world("two, _ = other.accept()")
    return world


@pytest.fixture(scope="module")
def world(shared_places):
    """One for all: whatever fails, it goes on as before."""
    return made(shared_places)


@pytest.fixture(scope="module")
def left(shared_places):
    """One for all that is saved."""
    return made(shared_places)


@pytest.fixture(scope="module")
def saved(left, shared_engine):
    """One for all: whatever fails, the same can come back."""
    return shared_engine.save(left.place)


@pytest.fixture
def assert_comes_back(left, saved):
    return lambda place: assert_runs(left.at(saved.back(place)))


def test_dump_sink_fails_tree_goes_on(world, engine):
    for sink in (SinkThatIsFull, SinkThatIsFull, cannot_open):
        with pytest.raises(StoreError) as caught:
            engine.dump(world.place, sink)
        assert caught.value.reason is Reason.STORE_FULL
        assert_runs(world)
    result = engine.dump(world.place, engine.image().sink)
    thaw(world.place.tree, result.stopped)
    assert_runs(world)


def test_dump_takes_too_long_tree_goes_on(world, engine):
    let_go = threading.Event()
    reached = threading.Event()
    timer = threading.Timer(3, let_go.set)
    timer.start()
    with pytest.raises(RolledBack) as caught:
        engine.dump(
            world.place, lambda name: SinkThatHangs(name, reached, let_go), limit=1
        )
    timer.cancel()
    assert caught.value.reason is Reason.TIMED_OUT
    assert_runs(world)


def test_dump_called_off_tree_goes_on(world, engine):
    cancel, let_go, reached = Cancel(), threading.Event(), threading.Event()

    def call_off():
        assert reached.wait(60)
        cancel.set()
        time.sleep(0.2)
        let_go.set()

    thread = threading.Thread(target=call_off)
    thread.start()
    with pytest.raises(RolledBack) as caught:
        engine.dump(
            world.place,
            lambda name: SinkThatHangs(name, reached, let_go),
            cancel=cancel,
        )
    thread.join()
    assert caught.value.reason is Reason.CANCELLED
    assert_runs(world)


AGENT = """
import pathlib, sys, time
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.tree.dump import dump
class SinkThatHangs:
    count = 0
    def write(self, data):
        self.count += len(data)
        if self.count > 4 << 20:
            print("reached", flush=True)
            time.sleep(60)
    def close(self):
        pass
session = SessionInit(int(sys.argv[2]), int(sys.argv[3]))
dump(criu.locate(pathlib.Path(sys.argv[1])), session,
     sinks=lambda name: SinkThatHangs(), folder=pathlib.Path(sys.argv[4]), limit=60,
     stopped=())
"""


def test_dump_agent_killed_tree_is_cured_and_goes_on_when_told(
    world, engine, criu, wait_for
):
    """It stood before CRIU entered: the next agent lets it go on."""
    place = world.place
    arguments = [str(criu.binary.parent), str(place.init_pid), str(place.init_start)]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, *arguments, str(engine.work())],
        stdout=subprocess.PIPE,
    )
    with agent:
        assert agent.stdout.readline() == b"reached\n"
        agent.send_signal(signal.SIGKILL)
    # CRIU notices by itself that nobody reads, and cures the tree.
    wait_for(lambda: not any(map(tracer, place.tree.processes)))
    thaw(place.tree)
    assert_runs(world)


def tracer(process) -> int:
    """Who holds it by ptrace; 0: nobody."""
    return int(procfs.status(process.pid)["TracerPid"])


def test_dump_criu_fails_says_why(world, engine):
    # No option makes CRIU save this one (pre-flight would have refused before).
    world(
        "import ctypes; uffd = ctypes.CDLL(None).syscall(323, os.O_CLOEXEC); assert"
        " uffd > 0; 1"
    )
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, engine.image().sink)
    assert caught.value.reason is Reason.CAPTURE_FAILED
    assert "anon_inode:[userfaultfd]" in caught.value.message or (
        "fd 6" in caught.value.message
    )
    assert not caught.value.retryable, "it says the same of the same tree"
    world("os.close(uffd)")
    assert_runs(world)


#: A terminal that an epoll instance watches.
WATCHED = """
import fcntl, termios
if os.getsid(0) != os.getpid():
    os.setsid()
m, s = pty.openpty()
fcntl.ioctl(s, termios.TIOCSCTTY, 0)
own = os.open("/dev/tty", os.O_RDWR)
watch = select.epoll()
watch.register(own, select.EPOLLIN)
"""


def test_dump_of_dev_tty_that_cannot_be_opened_anew_leaves_it_watched(places, engine):
    world = places.world()
    world(WATCHED)
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, engine.image().sink)
    assert caught.value.reason is Reason.DEVICE_OPEN
    assert world("os.write(m, b'key\\n'); watch.poll(5) == [(own, select.EPOLLIN)]")


def kill_criu(step, number):
    """End our CRIU that does this, as a fault of its own or a full machine would."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            above = ancestors(int(folder.name))
            if step in words and b"--leave-stopped" in words and os.getpid() in above:
                found[int(folder.name)] = above[0]
    for pid, parent in found.items():
        if parent not in found:
            os.kill(pid, number)


def ancestors(pid):
    found = []
    while pid > 1:
        pid = int(procfs.status(pid).get("PPid", "0"))
        found.append(pid)
    return found


class SinkThatEndsCriu:
    """Ends CRIU in the middle of its ballast, of which a pipe holds a small part.

    So it waits there, and is in the middle of nothing else: as it takes its own code
    out of a program again, its end is the program's.
    """

    def __init__(self, name, number):
        self.ends = name.startswith("pages-")
        self.number = number
        self.written = 0

    def write(self, data):
        self.written += len(data)
        if self.ends and self.written > 8 << 20:
            self.ends = False
            kill_criu(b"dump", self.number)

    def close(self):
        pass


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_dump_criu_crashes_while_it_streams_says_how_it_ended(world, engine, number):
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, lambda name: SinkThatEndsCriu(name, number))
    assert caught.value.reason is Reason.CAPTURE_FAILED
    assert f"CRIU was ended by {number.name}" in caught.value.message
    assert caught.value.retryable
    assert_runs(world)


@pytest.mark.parametrize("part", ["pages-", "core-"])
def test_restore_criu_is_killed_while_it_streams_says_how_it_ended(
    saved, places, monkeypatch, part, assert_comes_back
):
    """As by a machine that is out of memory; what it has forked waits for it."""

    def stream(self, name, skip=()):
        if name.startswith(part):
            kill_criu(b"restore", signal.SIGKILL)
        return given(self, name, skip)

    place, given = places.hold(), SavedImages.stream
    monkeypatch.setattr(SavedImages, "stream", stream)
    with pytest.raises(RestoreFailed) as caught:
        saved.restore(place)
    monkeypatch.undo()
    assert caught.value.reason is Reason.RESTORE_FAILED
    assert "CRIU was ended by SIGKILL" in caught.value.message
    assert caught.value.retryable
    assert place.living == ()
    assert_comes_back(place)


def test_dump_without_tree_is_refused(places, engine):
    place = places.hold()
    with pytest.raises(Refused) as caught:
        engine.dump(place, engine.image().sink)
    assert caught.value.reason is Reason.NO_TREE


def test_dump_of_another_start_time_is_not_found(places, engine, criu):
    place = places.hold()
    place.init_start -= 1
    with pytest.raises(NotFound):
        engine.dump(place, engine.image().sink)
    place.init_start += 1


def test_restore_source_fails_leaves_only_the_init(
    saved, engine, places, assert_comes_back
):
    place = places.hold()

    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            engine.restore(place, ImageThatIsDamaged(saved.image), saved.result)
        assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
        assert place.living == ()
    # The same init can take the tree once the source is well again.
    assert_comes_back(place)


def test_restore_file_missing_says_which(engine, places, tmp_path):
    path = tmp_path / "open-file"
    path.write_text("x")
    world = places.world()
    world(f"held = open({str(path)!r}); 1")
    saved = engine.save(world.place)
    path.unlink()
    place = places.hold()
    with pytest.raises(RestoreFailed) as caught:
        saved.restore(place, opened=())
    assert "open-file" in caught.value.message
    assert place.living == ()


def test_restore_called_off_leaves_only_the_init(saved, engine, places):
    place = places.hold()
    cancel = Cancel()
    source = ImageThatCallsOff(saved.image)
    source.cancel = cancel
    with pytest.raises(RestoreFailed) as caught:
        engine.restore(place, source, saved.result, cancel=cancel)
    assert caught.value.reason is Reason.CANCELLED
    assert place.living == ()


def test_restore_under_init_that_ended_is_not_found(saved, places):
    place = places.hold()
    place.kill()
    with pytest.raises(NotFound):
        saved.restore(place)


def test_kill_session_is_idempotent(places):
    place = places.world().place
    for _ in range(2):
        processes.kill_session(place.init_pid, place.init_start, timeout=20)
    assert processes.start_time(place.init_pid) is None


def test_kill_session_never_touches_another_start_time(world):
    place = world.place
    processes.kill_session(place.init_pid, place.init_start - 1, timeout=5)
    assert_runs(world)


def test_send_never_touches_a_pid_used_again(world):
    tree = world.place.tree
    stale = replace(tree.server, start_time=tree.server.start_time - 1)
    assert processes.send(stale, signal.SIGKILL) is False
    assert_runs(world)


RESTORER = """
import pathlib, pickle, sys, time
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import restore
image, result = pickle.loads(pathlib.Path(sys.argv[5]).read_bytes())
class Source:
    def size(self, name):
        return len(image[name]) if name in image else None
    def stream(self, name, skip=()):
        if not name.startswith("pages-"):
            yield image[name]
            return
        yield image[name][:4096]
        print("reached", flush=True)
        time.sleep(60)
session = SessionInit(int(sys.argv[2]), int(sys.argv[3]))
restore(criu.locate(pathlib.Path(sys.argv[1])), session, source=Source(), limit=60,
        folder=pathlib.Path(sys.argv[4]))
"""


def test_restore_agent_killed_leaves_only_the_init(
    saved, engine, criu, places, wait_for, tmp_path, assert_comes_back
):
    (tmp_path / "image").write_bytes(pickle.dumps((dict(saved.image), saved.result)))
    place = places.hold()
    arguments = [str(criu.binary.parent), str(place.init_pid), str(place.init_start)]
    arguments += [str(engine.work()), str(tmp_path / "image")]
    agent = subprocess.Popen(
        [sys.executable, "-c", RESTORER, *arguments], stdout=subprocess.PIPE
    )
    with agent:
        assert agent.stdout.readline() == b"reached\n"
        agent.send_signal(signal.SIGKILL)
    end_criu(place, 10)  # its CRIU outlives it, and may only now make the first one
    wait_for(lambda: place.tree.processes == ())
    assert_comes_back(place)


def test_dump_of_another_user_without_the_capability_says_so(places, engine):
    if capabilities.has("SYS_RESOURCE"):
        pytest.skip("this machine has the capability")
    place = places.start(
        "sh",
        "-c",
        "echo up; while :; do sleep 0.1; echo on; done",
        system_user=SystemUser(65534, 65534),
    )
    place.read_until("up\n")
    with pytest.raises(RolledBack) as caught:
        engine.dump(place, engine.image().sink)
    assert "rlimit" in caught.value.message
    place.seen = b""
    place.read_until("on\n")
