"""Memory of programs is left out of a dump, and saved behind it while they stand."""

import signal
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import leave_repair, thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, Taking, wait_for

MUCH = "import os; much = bytearray(os.urandom(8 << 20))"


class Stored(Image):
    def file(self, name: str) -> Taking:
        return Taking(self.sink(name))


@pytest.fixture
def world(places):
    world = places.world()
    world(MUCH)
    stop(world)
    return world


def stop(world) -> None:
    for one in world.place.tree.processes:
        processes.send(one, signal.SIGSTOP)
    wait_for(lambda: all(one.stopped for one in world.place.tree.processes))


def go_on(process) -> None:
    """As its user may; reads would fail in repair mode (``freeze.py``)."""
    leave_repair(process)
    processes.send(process, signal.SIGCONT)


def pages(image) -> dict[str, bytes]:
    return {name: data for name, data in image.items() if name.startswith("pages-")}


def test_dump_that_fails_does_not_wait_for_what_is_left_out(world, engine):
    def full(name: str):
        if name == "files.img":
            raise RolledBack(Reason.STORE_FULL)
        return Image().sink(name)

    threads = threading.active_count()
    with pytest.raises(RolledBack):
        engine.dump(world.place, full)
    wait_for(lambda: threading.active_count() <= threads)


def dump_without_memory(world, engine):
    """What is saved of it, and what was left out."""
    image = Stored()
    result = engine.dump_without_memory(world.place, image.sink)
    assert not pages(image)
    return image, result


@pytest.fixture
def dumped(world, engine):
    return world, *dump_without_memory(world, engine)


def test_what_is_saved_behind_the_dump_comes_back(engine, places, dumped):
    world, image, result = dumped
    assert result.memory.logical_bytes > 8 << 20
    result.memory.deliver(image.file, "", Cancel())
    assert sum(map(len, pages(image).values())) == result.memory.logical_bytes
    thaw(world.place.tree, ())
    expected = world("hash(bytes(much))")
    world.place.kill()
    there = places.hold()
    proceed(engine.restore(there, image, result))
    assert world.at(there)("hash(bytes(much))") == expected


def test_program_that_goes_on_meanwhile_is_not_saved(dumped):
    world, image, result = dumped
    one = world.place.tree.processes[-1]
    before = processes.times_run(one)
    go_on(one)
    processes.send(one, signal.SIGSTOP)
    wait_for(lambda: processes.times_run(one) != before)
    with pytest.raises(RolledBack, match="gone on"):
        result.memory.deliver(image.file, "", Cancel())


def test_program_that_gives_memory_back_meanwhile_is_not_saved(places, engine):
    world = places.world()
    world(
        "import mmap, os, signal; "
        "much = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE); "
        "much[:] = os.urandom(8 << 20); "
        "signal.signal(signal.SIGCONT, lambda *_: much.close()); 0"
    )
    stop(world)
    image, result = dump_without_memory(world, engine)
    go_on(world.place.tree.processes[-1])
    wait_for(lambda: world("much.closed"))
    stop(world)
    with pytest.raises(RolledBack, match="gone on"):
        result.memory.deliver(image.file, "", Cancel())


def test_program_that_ends_meanwhile_is_not_saved_nor_what_is_called_off(dumped):
    world, image, result = dumped
    cancel = Cancel()
    cancel.set()
    with pytest.raises(RolledBack):
        result.memory.deliver(image.file, "", cancel)
    world.place.kill()
    with pytest.raises(RolledBack, match="or ended"):
        result.memory.deliver(image.file, "", Cancel())


def test_what_a_program_may_not_read_itself_comes_back(places, engine):
    world = places.world()
    world(
        "import ctypes, mmap, os; "
        "much = mmap.mmap(-1, 3 << 20, flags=mmap.MAP_PRIVATE); "
        "much[:] = os.urandom(3 << 20); known = hash(bytes(much)); "
        "at = ctypes.addressof(ctypes.c_char.from_buffer(much)); "
        "libc = ctypes.CDLL(None); "
        "assert not libc.mprotect(ctypes.c_void_p(at), 2 << 20, 0); 0"
    )
    world = engine.cycle(world, places)
    world("assert not libc.mprotect(ctypes.c_void_p(at), 2 << 20, 3)")
    assert world("hash(bytes(much)) == known")


def test_one_of_them_is_left_for_later(dumped):
    world, image, result = dumped
    server = world.place.tree.server
    later, now = result.memory.split({server.ns_pid})
    assert later.logical_bytes > 8 << 20
    now.deliver(image.file, "", Cancel())
    assert sum(map(len, pages(image).values())) == now.logical_bytes
    later.deliver(image.file, "", Cancel())
    assert sum(map(len, pages(image).values())) == result.memory.logical_bytes
