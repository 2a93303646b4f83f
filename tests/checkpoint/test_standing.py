"""Memory that is saved already is left out of a dump, and no other."""

from __future__ import annotations

import signal
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import KeptImages
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.standing import StandingMemory
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, wait_for

MUCH = "import os; much = bytearray(os.urandom(8 << 20))"


class Carries(Image):
    """Files in memory, and what was taken over from another checkpoint."""

    def __init__(self, former: Image) -> None:
        super().__init__()
        self.former, self.carried = former, {}

    def file(self, name: str):
        return self.sink(name)

    def carry(self, name: str, former: str) -> int:
        self[name] = self.former[former]
        self.carried[name] = former
        return len(self[name])


@pytest.fixture
def saved(places, engine):
    """A world that stands, its first image, and how long it had run by then."""
    world = places.world()
    world(MUCH)
    for one in world.place.tree.processes:
        processes.send(one, signal.SIGSTOP)
    wait_for(lambda: all(one.stopped for one in world.place.tree.processes))
    image = Image()
    stood = engine.dump(world.place, image.sink)
    thaw(world.place.tree, stood.stopped)
    ran = {p.ns_pid: processes.times_run(p) for p in world.place.tree.processes}
    assert all(ran.values())
    return world, image, ran


def pagemaps(image: Image, pids) -> dict[int, bytes]:
    return {pid: image[f"pagemap-{pid}.img"] for pid in pids}


def again(engine, world, image, ran, former=None):
    target = Carries(image)
    standing = StandingMemory(target, "", ran, former or pagemaps(image, ran))
    kept = KeptImages(standing)
    engine.dump(world.place, kept, look=standing.look)
    return target, standing.carry(kept.files)


def pages(image) -> dict[str, bytes]:
    return {name: data for name, data in image.items() if name.startswith("pages-")}


def test_what_has_not_run_since_is_taken_over(engine, saved):
    world, image, ran = saved
    target, carried = again(engine, world, image, ran)
    assert len(target.carried) == len(ran)
    assert carried == sum(len(target[name]) for name in target.carried) > 8 << 20
    assert target.keys() == image.keys()
    assert {*map(len, pages(target).values())} == {*map(len, pages(image).values())}


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


def test_kernel_that_does_not_count_has_everything_saved(engine, saved):
    world, image, ran = saved
    target, _ = again(engine, world, image, {pid: [] for pid in ran})
    assert target.carried == {}


def test_pagemap_that_is_damaged_is_refused_before_anything_is_touched(saved):
    _, image, ran = saved
    with pytest.raises(ReclaimError):
        StandingMemory(Carries(image), "", ran, dict.fromkeys(ran, b"nothing"))


def test_dump_that_fails_ends_what_is_left_out(engine, saved):
    world, image, ran = saved

    class Full(Carries):
        def file(self, name: str):
            if name == "files.img":
                raise RolledBack(Reason.STORE_FULL)
            return super().file(name)

    standing = StandingMemory(Full(image), "", ran, pagemaps(image, ran))
    threads = threading.active_count()
    with pytest.raises(RolledBack):
        engine.dump(world.place, KeptImages(standing), look=standing.look)
    wait_for(lambda: threading.active_count() <= threads)
