"""A login of the session's user acts while CRIU works: signals, at each step of it.

He may do with his own processes what he likes, also from outside of the session; he may
not reach CRIU. Whatever he does, a session is suspended whole or goes on, and what
cannot come back leaves nothing.
"""

import contextlib
import os
import shutil
import signal
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import fill, proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed, RolledBack
from jupyterhub_gpu_reclaim.linux import processes, procfs
from tests.checkpoint.conftest import Engine, Places, fingerprints
from tests.hostile.test_descriptors import strangers
from tests.support.attacker import (
    GID,
    UID,
    criu_for_any_user,
    make_folder,
    start_session,
)
from tests.support.ran import ran

CHILD = "child = subprocess.Popen(['sleep', '1000']); data = os.urandom(3 << 20); 1"


@pytest.fixture
def session(criu):
    folder = make_folder()
    places = Places(folder)
    engine = Engine(criu_for_any_user(criu, folder), folder)
    try:
        yield engine, places, start_session(folder, places, CHILD)
    finally:
        places.clear()
        shutil.rmtree(folder, ignore_errors=True)


def signal_as_user(number: int, *pids: int) -> set[int]:
    words = [f"/bin/kill -{number} {pid} 2>/dev/null && echo {pid}" for pid in pids]
    done = ran(
        ["/bin/sh", "-c", "; ".join([*words, "true"])],
        check=True,
        user=UID,
        group=GID,
        extra_groups=[],
    )
    return set(map(int, done.stdout.split()))


def try_to_dump(engine, place, sink, **options):
    """Who was stopped before, or why it was not saved."""
    try:
        return engine.dump(place, sink, **options).stopped, None
    except RolledBack as error:
        return (), error


class Once:
    """Does something at the first image with such a name, and keeps what came of it."""

    def __init__(self, moment: str, act) -> None:
        self._moment, self._act = moment, act
        self._lock = threading.Lock()
        self.seen: list[object] = []

    def at(self, name: str) -> None:
        with self._lock:
            if not self.seen and name.startswith(self._moment):
                self.seen.append(self._act())


def test_user_cannot_signal_criu_or_its_helper(session):
    engine, _, world = session
    image, tried = engine.image(), set()

    def reached():
        ours = strangers(world.place)
        parents = {
            parent
            for parent, children in processes.families().items()
            if set(children) & set(ours)
        } - {os.getpid()}
        tried.update(ours, parents)
        return [
            signal_as_user(number, *ours, *parents)
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
        ]

    once = Once("", reached)

    def sink(name):
        once.at(name)
        return image.sink(name)

    result = engine.dump(world.place, sink)
    assert len(tried) >= 2
    assert once.seen == [[set(), set(), set()]]
    thaw(world.place.tree, result.stopped)
    assert world("child.poll()") is None


MOMENTS = ("fdinfo-", "pagemap-", "files.img")


@pytest.mark.parametrize("moment", MOMENTS)
def test_process_that_its_user_kills_while_it_is_saved_harms_no_other(session, moment):
    """It is suspended without it, or not at all; the rest goes on in any case."""
    engine, _, world = session
    (child,) = [one for one in world.place.tree.processes if one.name == "sleep"]
    once = Once(moment, lambda: signal_as_user(signal.SIGKILL, child.pid))
    image = engine.image()

    def sink(name):
        once.at(name)
        return image.sink(name)

    stopped, _ = try_to_dump(engine, world.place, sink)
    assert once.seen == [{child.pid}]
    thaw(world.place.tree, stopped)
    assert world("child.wait(60)") == -signal.SIGKILL
    assert world("len(data)") == 3 << 20


def test_process_that_its_user_kills_while_it_comes_back_leaves_nothing(session):
    engine, places, world = session
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    world.place.kill()
    place = places.hold()
    restored = engine.run_criu(place, image, result, opened=opened)
    assert place.tree.server is not None
    pid = place.tree.server.pid
    assert signal_as_user(signal.SIGKILL, pid) == {pid}
    with contextlib.suppress(ReclaimError):
        whole = fill(place.session, restored, source=image, limit=60)
        proceed(whole, result.stopped)
        pytest.fail("a session without its server came back")
    assert place.living == ()
    # And what is saved comes back once he lets it.
    place = places.hold()
    restored = engine.restore(place, image, result, opened=opened)
    proceed(restored, result.stopped)
    assert world.at(place)("child.poll()") is None


def test_tree_that_its_user_wakes_before_its_memory_is_there_does_not_come_back(
    session,
):
    engine, places, world = session
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    world.place.kill()
    place = places.hold()

    class Woken(type(image)):
        def copy(self, pieces, stop):
            pids = [one.pid for one in place.tree.processes]
            assert signal_as_user(signal.SIGCONT, *pids) == set(pids)
            super().copy(pieces, stop)

    # It is noticed, or has ended by itself, of what was not there.
    with pytest.raises(RestoreFailed):
        engine.restore(place, Woken(image), result, opened=opened)
    assert place.living == ()


#: prctl(2) lets every program say where its arguments and its environment are.
REWRITES = """
import ctypes, mmap
space = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
space[:5] = b"HOME="
start = ctypes.addressof(ctypes.c_char.from_buffer(space))
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
code, end_code, stack = map(int, stat[23:26])
data, end_data, brk0 = map(int, stat[42:45])
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
words = [code, end_code, data, end_data, brk0, libc.sbrk(0), stack]
words += [start, start + (1 << 30)] * 2 + [0, 0xffffffff << 32]
area = (ctypes.c_uint64 * 13)(*words)
done = libc.prctl(35, 14, ctypes.byref(area), ctypes.c_ulong(104), 0)
libc.prctl(15, b"\\x1b[2J) Z 1 1 1")
"""


def test_session_that_says_its_environment_is_a_gigabyte_is_saved_as_any_other(session):
    engine, places, world = session
    world(REWRITES)
    assert world("done, ctypes.get_errno()") == (0, 0)
    assert world.place.tree.server is not None
    pid = world.place.tree.server.pid
    for file in ("environ", "cmdline"):
        with pytest.raises(OSError, match="more than"):
            procfs.words(pid, file)
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    world.place.kill()
    place = places.hold()
    restored = engine.restore(place, image, result, opened=opened)
    proceed(restored, result.stopped)
    assert world.at(place)("child.poll()") is None
