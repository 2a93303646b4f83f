"""Memory that is saved already is left out of a dump, and no other."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import KeptImages
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import leave_repair, thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.checkpoint.tree.standing import Former, StandingMemory
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, wait_for

MUCH = "import os; much = bytearray(os.urandom(8 << 20))"


class Whole:
    """A file of a store in memory."""

    def __init__(self, sink) -> None:
        self.write, self.close = sink.write, sink.close

    def take_pipe(self, pipe: int) -> int:
        with open(pipe, "rb", closefd=False) as file:
            data = file.read()
        self.write(data)
        return len(data)


class Carries(Image):
    """Files in memory, and what was taken over from another checkpoint."""

    def __init__(self, former: Image) -> None:
        super().__init__()
        self.former, self.carried = former, {}

    @contextlib.contextmanager
    def file(self, name: str):
        sink = Whole(self.sink(name))
        yield sink
        sink.close()

    def carry(self, name: str, former: str) -> int:
        self[name] = self.former[former]
        self.carried[name] = former
        return len(self[name])


@pytest.fixture
def world(places):
    """One that stands."""
    world = places.world()
    world(MUCH)
    stop(world)
    return world


def stop(world) -> None:
    for one in world.place.tree.processes:
        processes.send(one, signal.SIGSTOP)
    wait_for(lambda: all(one.stopped for one in world.place.tree.processes))


@pytest.fixture
def saved(world, engine):
    """The world, its first image, and how long it had run by then."""
    image = Image()
    stood = engine.dump(world.place, image.sink)
    thaw(world.place.tree, stood.stopped)
    ran = {p.ns_pid: processes.times_run(p) for p in world.place.tree.processes}
    assert all(ran.values())
    return world, image, ran


def go_on(process) -> None:
    """As its user may; reads would fail in repair mode (``freeze.py``)."""
    leave_repair(process)
    processes.send(process, signal.SIGCONT)


def pagemaps(image: Image, pids) -> dict[int, bytes]:
    return {pid: image[f"pagemap-{pid}.img"] for pid in pids}


def again(engine, world, image, ran, maps=None, programs=()):
    """A dump more; what was left out is saved in the end."""
    target = Carries(image)
    former = Former(ran, maps or pagemaps(image, ran))
    standing = StandingMemory(target.sink, programs, former)
    kept = KeptImages(standing)
    engine.dump(world.place, kept, look=standing.look)
    standing.mark()
    return target, standing.deliver(target, "", kept.files, Cancel())


def pages(image) -> dict[str, bytes]:
    return {name: data for name, data in image.items() if name.startswith("pages-")}


def test_what_has_not_run_since_is_taken_over(engine, saved):
    world, image, ran = saved
    target, carried = again(engine, world, image, ran)
    assert len(target.carried) == len(ran)
    assert carried == sum(len(target[name]) for name in target.carried) > 8 << 20
    assert target.keys() == image.keys()
    assert {*map(len, pages(target).values())} == {*map(len, pages(image).values())}
    check_kernel_that_does_not_count(engine, world, image, ran)
    check_damaged_pagemap(image, ran)
    check_dump_that_fails(engine, world, image, ran)


def check_kernel_that_does_not_count(engine, world, image, ran):
    """Everything is saved."""
    target, _ = again(engine, world, image, {pid: [] for pid in ran})
    assert target.carried == {}


def check_damaged_pagemap(image, ran):
    """It is refused before anything is touched."""
    with pytest.raises(ReclaimError):
        StandingMemory(image.sink, (), Former(ran, dict.fromkeys(ran, b"nothing")))


def check_dump_that_fails(engine, world, image, ran):
    """What is left out is not waited for."""

    def full(name: str):
        if name == "files.img":
            raise RolledBack(Reason.STORE_FULL)
        return image.sink(name)

    standing = StandingMemory(full, ran)
    threads = threading.active_count()
    with pytest.raises(RolledBack):
        engine.dump(world.place, KeptImages(standing), look=standing.look)
    wait_for(lambda: threading.active_count() <= threads)


def test_what_has_run_since_is_saved_whole(engine, saved):
    world, image, ran = saved
    one = world.place.tree.processes[-1]
    processes.send(one, signal.SIGCONT)
    processes.send(one, signal.SIGSTOP)
    wait_for(lambda: processes.times_run(one) != ran[one.ns_pid])
    target, _ = again(engine, world, image, ran)
    assert len(target.carried) == len(ran) - 1


def test_dump_that_was_given_up_leaves_nothing_to_build_upon(engine, saved):
    world, image, ran = saved
    engine.dump(world.place, Image().sink)
    target, carried = again(engine, world, image, ran)
    assert (target.carried, carried) == ({}, 0)
    assert sum(map(len, pages(target).values())) > 8 << 20


def test_pages_that_differ_are_read_from_what_stands(engine, saved):
    """As if the kernel had taken some away; a lost page is no reason to lose all."""
    world, image, ran = saved
    others = {pid: image[f"pagemap-{max(ran)}.img"] for pid in ran}
    whole = Image()
    # The same once more: its pages by CRIU, to compare with those that we read.
    target, _ = again(engine, world, image, ran, others)
    assert len(target.carried) == 1
    engine.dump(world.place, whole.sink)
    ours, theirs = pages(target), pages(whole)
    assert ours.keys() == theirs.keys()
    assert {name: len(data) for name, data in ours.items()} == {
        name: len(data) for name, data in theirs.items()
    }
    largest = max(theirs, key=lambda name: len(theirs[name]))
    same = sum(
        ours[largest][at : at + 4096] == theirs[largest][at : at + 4096]
        for at in range(0, len(theirs[largest]), 4096)
    )
    assert same > 0.95 * len(theirs[largest]) / 4096


# --- saved behind the dump -----------------------------------------------------------


def dump_without_memory(world, engine):
    """What is saved of it, what was left out, the images that are kept, its place."""
    image = Carries(Image())
    standing = StandingMemory(
        image.sink, [p.ns_pid for p in world.place.tree.processes]
    )
    kept = KeptImages(standing)
    result = engine.dump(world.place, kept, look=standing.look)
    standing.mark()
    assert not pages(image)
    return image, standing, kept, result


@pytest.fixture
def dumped(world, engine):
    return world, *dump_without_memory(world, engine)


def test_what_is_saved_behind_the_dump_comes_back(engine, places, dumped):
    world, image, standing, kept, result = dumped
    assert standing.logical_bytes > 8 << 20
    assert standing.deliver(image, "", kept.files, Cancel()) == 0
    assert sum(map(len, pages(image).values())) == standing.logical_bytes
    thaw(world.place.tree, ())
    expected = world("hash(bytes(much))")
    world.place.kill()
    there = places.hold()
    proceed(engine.restore(there, image, result))
    assert world.at(there)("hash(bytes(much))") == expected


def test_program_that_goes_on_meanwhile_is_not_saved(dumped):
    world, image, standing, kept, _ = dumped
    one = world.place.tree.processes[-1]
    before = processes.times_run(one)
    go_on(one)
    processes.send(one, signal.SIGSTOP)
    wait_for(lambda: processes.times_run(one) != before)
    with pytest.raises(RolledBack, match="gone on"):
        standing.deliver(image, "", kept.files, Cancel())


def test_program_that_gives_memory_back_meanwhile_is_not_saved(places, engine):
    world = places.world()
    world(
        "import mmap, os, signal; "
        "much = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE); "
        "much[:] = os.urandom(8 << 20); "
        "signal.signal(signal.SIGCONT, lambda *_: much.close()); 0"
    )
    stop(world)
    image, standing, kept, _ = dump_without_memory(world, engine)
    before = standing.ran()
    go_on(world.place.tree.processes[-1])
    wait_for(lambda: world("much.closed"))
    stop(world)
    assert standing.ran() == before
    with pytest.raises(RolledBack, match="gone on"):
        standing.deliver(image, "", kept.files, Cancel())


def test_program_that_ends_meanwhile_is_not_saved_nor_what_is_called_off(dumped):
    world, image, standing, kept, _ = dumped
    cancel = Cancel()
    cancel.set()
    with pytest.raises(RolledBack):
        standing.deliver(image, "", kept.files, cancel)
    world.place.kill()
    with pytest.raises((ProcessLookupError, FileNotFoundError)):
        standing.deliver(image, "", kept.files, Cancel())
