"""A lock that a saved program holds in a mapped file outlives the program's end."""

import signal
import tempfile
import threading
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.files.open_files import look
from jupyterhub_gpu_reclaim.checkpoint.memory import robust_lists
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import clear, proceed
from jupyterhub_gpu_reclaim.linux import architecture, processes
from tests.checkpoint.conftest import fingerprints, wait_for
from tests.support.fuse import FuseServer

#: As LMDB's during a write transaction; a second thread has another one.
LOCKS = """
import ctypes, mmap, os, threading
libc = ctypes.CDLL(None)
file = open({path!r}, "w+b"); file.truncate(4096)
area = mmap.mmap(file.fileno(), 4096)
first = ctypes.addressof(ctypes.c_char.from_buffer(area))
attribute = ctypes.create_string_buffer(64)
assert libc.pthread_mutexattr_init(attribute) == 0
assert libc.pthread_mutexattr_setpshared(attribute, 1) == 0
assert libc.pthread_mutexattr_setrobust(attribute, 1) == 0
locks = [ctypes.c_void_p(first), ctypes.c_void_p(first + 1024)]
for lock in locks:
    assert libc.pthread_mutex_init(lock, attribute) == 0
held, let_go = threading.Event(), threading.Event()
freed = []
def second():
    libc.pthread_mutex_lock(locks[1])
    held.set(); let_go.wait()
    freed.append(libc.pthread_mutex_unlock(locks[1]))
thread = threading.Thread(target=second); thread.start(); held.wait()
"""
#: The lock of the thread that answers: it is taken and freed in one.
TAKE = "libc.pthread_mutex_lock(locks[0])"
FREE = "libc.pthread_mutex_unlock(locks[0]), let_go.set(), thread.join(), freed"

MAPPED = """
import ctypes, os
map = ctypes.CDLL(None).mmap
map.restype, map.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
address = map(None, 4096, 1, 2, os.open({path!r}, os.O_RDONLY), 0)
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "lock.mdb"


@pytest.fixture
def saved(places, engine, file):
    """A session that holds both, and its images; it stands still."""
    world = places.world()
    world(LOCKS.format(path=str(file)))
    assert world(TAKE) == 0
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    return world, image, result, fingerprints(world.place), file.read_bytes()


def test_lock_in_a_mapped_file_is_held_on_after_the_end_and_the_return(
    places, engine, file, saved
):
    world, image, result, opened, before = saved
    robust_lists.forget(world.place.tree)
    world.place.kill()
    assert file.read_bytes() == before
    assert look(opened, "/") == ([], [])
    place = places.hold()
    engine.restore(place, image, result, opened=opened)
    clear(place.session, timeout=20)  # a return that is given up before it goes on
    assert file.read_bytes() == before
    place = places.hold()
    restored = engine.restore(place, image, result, opened=opened)
    proceed(restored, result.stopped)
    assert world.at(place)(FREE) == (0, None, None, [0])


def test_program_that_ends_by_itself_frees_its_locks(file, saved):
    """As ever: whoever waits for one learns that its owner has died."""
    world, _, _, _, before = saved
    world.place.kill()
    assert file.read_bytes() != before


def test_program_without_a_lock_is_left_alone(places, monkeypatch):
    world = places.world()
    tree = world.place.tree
    for one in tree.processes:
        processes.send(one, signal.SIGSTOP)
    wait_for(lambda: all(one.stopped for one in world.place.tree.processes))
    monkeypatch.setattr(robust_lists, "_forget", None)
    robust_lists.forget(world.place.tree)


def test_list_where_no_memory_can_be_is_no_lock(places):
    """The kernel takes any address. A release that failed by it would never end."""
    world = places.world()
    at(world, 1 << 63)
    robust_lists.forget(world.place.tree)


def at(world, address):
    """It tells the kernel that its list of locks is there."""
    number = architecture.CALLS["set_robust_list"]
    call = f"c.CDLL(None).syscall({number}, c.c_void_p({address}), c.c_size_t(24))"
    assert world(f"(lambda c: {call})(__import__('ctypes'))") == 0


@pytest.fixture
def far():
    with tempfile.TemporaryDirectory(prefix="far-") as folder:
        server = FuseServer(Path(folder))
        if not server.here:
            pytest.skip("no FUSE here")
        yield server
        server.end()


def test_list_in_a_file_that_nobody_serves_is_not_waited_for(far, places, monkeypatch):
    """Else a release, and the end of the session by anybody, would wait with it."""
    monkeypatch.setattr(robust_lists, "_SECONDS", 1.0)
    world = places.world()
    world(MAPPED.format(path=str(far.file)))
    at(world, world("address"))
    far.stop()
    forgotten = threading.Thread(
        target=robust_lists.forget, args=(world.place.tree,), daemon=True
    )
    forgotten.start()
    forgotten.join(20)
    far.go_on()
    assert not forgotten.is_alive()
