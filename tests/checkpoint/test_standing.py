"""Memory of programs that stand anyway is left out of a dump, and saved behind it."""

import contextlib
import signal
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import leave_repair, thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.checkpoint.tree.standing import StandingMemory
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, wait_for

MUCH = "import os; much = bytearray(os.urandom(8 << 20))"


class Whole:
    def __init__(self, sink) -> None:
        self.write, self.close = sink.write, sink.close

    def take_pipe(self, pipe: int) -> int:
        with open(pipe, "rb", closefd=False) as file:
            data = file.read()
        self.write(data)
        return len(data)


class Stored(Image):
    @contextlib.contextmanager
    def file(self, name: str):
        sink = Whole(self.sink(name))
        yield sink
        sink.close()


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

    standing = StandingMemory(full, world.place.tree.processes)
    threads = threading.active_count()
    with pytest.raises(RolledBack):
        engine.dump(world.place, standing)
    wait_for(lambda: threading.active_count() <= threads)


def dump_without_memory(world, engine):
    """What is saved of it, what was left out, and what is known of it."""
    image = Stored()
    standing = StandingMemory(image.sink, world.place.tree.processes)
    result = engine.dump(world.place, standing)
    standing.mark()
    assert not pages(image)
    return image, standing, result


@pytest.fixture
def dumped(world, engine):
    return world, *dump_without_memory(world, engine)


def test_what_is_saved_behind_the_dump_comes_back(engine, places, dumped):
    world, image, standing, result = dumped
    assert standing.logical_bytes > 8 << 20
    standing.deliver(image.file, "", result.images, Cancel())
    assert sum(map(len, pages(image).values())) == standing.logical_bytes
    thaw(world.place.tree, ())
    expected = world("hash(bytes(much))")
    world.place.kill()
    there = places.hold()
    proceed(engine.restore(there, image, result))
    assert world.at(there)("hash(bytes(much))") == expected


def test_program_that_goes_on_meanwhile_is_not_saved(dumped):
    world, image, standing, result = dumped
    one = world.place.tree.processes[-1]
    before = processes.times_run(one)
    go_on(one)
    processes.send(one, signal.SIGSTOP)
    wait_for(lambda: processes.times_run(one) != before)
    with pytest.raises(RolledBack, match="gone on"):
        standing.deliver(image.file, "", result.images, Cancel())


def test_program_that_gives_memory_back_meanwhile_is_not_saved(places, engine):
    world = places.world()
    world(
        "import mmap, os, signal; "
        "much = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE); "
        "much[:] = os.urandom(8 << 20); "
        "signal.signal(signal.SIGCONT, lambda *_: much.close()); 0"
    )
    stop(world)
    image, standing, result = dump_without_memory(world, engine)
    go_on(world.place.tree.processes[-1])
    wait_for(lambda: world("much.closed"))
    stop(world)
    with pytest.raises(RolledBack, match="gone on"):
        standing.deliver(image.file, "", result.images, Cancel())


def test_program_that_ends_meanwhile_is_not_saved_nor_what_is_called_off(dumped):
    world, image, standing, result = dumped
    cancel = Cancel()
    cancel.set()
    with pytest.raises(RolledBack):
        standing.deliver(image.file, "", result.images, cancel)
    world.place.kill()
    with pytest.raises((ProcessLookupError, FileNotFoundError)):
        standing.deliver(image.file, "", result.images, Cancel())
