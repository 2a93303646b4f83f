"""Memory that does not go through CRIU: all of it is there, or nothing but the init."""

import os
import signal
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.memory import plan
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, wait_for

MIB = 1 << 20

#: Memory of many kinds, each recognisable, and what it looks like.
KINDS = """
import ctypes, hashlib, mmap
libc = ctypes.CDLL(None, use_errno=True)
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

def area(size, flags=PRIVATE):
    made = mmap.mmap(-1, size, flags=flags)
    made.write(os.urandom(size))
    return made, ctypes.addressof(ctypes.c_char.from_buffer(made)), size

def must(result):
    assert result == 0, os.strerror(ctypes.get_errno())

def protect(one, how):
    must(libc.mprotect(ctypes.c_void_p(one[1]), ctypes.c_size_t(one[2]), how))

def stack(event):
    kept = (ctypes.c_char * (2 << 20)).from_buffer_copy(os.urandom(2 << 20))
    event.wait()

plain = os.urandom(8 << 20)
heap = [os.urandom(5000) for _ in range(1000)]
read_only, no_access, locked, advised = area(2 << 20), area(2 << 20), area(
    2 << 20), area(4 << 20)
shared = area(2 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
holes = mmap.mmap(-1, 32 << 20, flags=PRIVATE)
for at in range(0, 32 << 20, 4 << 20):
    holes[at:at + (2 << 20)] = os.urandom(2 << 20)
protect(read_only, mmap.PROT_READ)
protect(no_access, 0)
must(libc.mlock(ctypes.c_void_p(locked[1]), ctypes.c_size_t(locked[2])))
must(libc.madvise(ctypes.c_void_p(advised[1]), ctypes.c_size_t(advised[2]), 14))
must(libc.madvise(ctypes.c_void_p(advised[1]), ctypes.c_size_t(advised[2]), 10))
threading.stack_size(16 << 20)
done = threading.Event()
thread = threading.Thread(target=stack, args=(done,), daemon=True)
thread.start()

def digest():
    found = hashlib.blake2b(plain)
    for one in heap:
        found.update(one)
    for made, address, size in (read_only, locked, advised, shared):
        found.update(ctypes.string_at(address, size))
    protect(no_access, mmap.PROT_READ)
    found.update(ctypes.string_at(*no_access[1:]))
    protect(no_access, 0)
    found.update(holes)
    return found.hexdigest()
"""


def restored(world, engine, places):
    """What was dumped, under a new init, whole but stopped; and what was saved."""
    saved = engine.save(world.place)
    place = places.hold()
    return place, saved.restore(place), saved


def test_memory_of_every_kind_comes_back(places, engine):
    world = places.world()
    world(KINDS)
    before = world("digest()")
    for _ in range(2):
        place, tree, saved = restored(world, engine, places)
        image = saved.image
        assert tree.missing.pieces == {}
        server = place.tree.server.ns_pid
        kept, name = rseq_of(image, server), f"pages-{number_of(image, server)}.img"
        assert kept
        for one in plan.make_plan(SavedImages(image)).pieces[name]:
            assert not one.address <= kept < one.address + one.length
        assert image.copied > 24 * MIB
        proceed(tree, saved.result.stopped)
        world = world.at(place)
        assert world("digest()") == before
    assert world("done.set(); thread.join(60); thread.is_alive()") is False
    flags = flags_of(world.place)
    assert any(" lo" in line for line in flags)
    assert any(" dc" in line and " hg" in line for line in flags)


def flags_of(place) -> list[str]:
    maps = Path(f"/proc/{place.tree.server.pid}/smaps").read_text()
    return [line for line in maps.splitlines() if line.startswith("VmFlags")]


def rseq_of(image, pid) -> int:
    """Where the kernel says to that process' first thread on which processor it is."""
    (payload,) = images.split(image[f"core-{pid}.img"], images.CORE_MAGIC)
    core = images.parse("core_entry", payload)
    return core.thread_core.rseq_entry.rseq_abi_pointer


def number_of(image, pid) -> int:
    return images.read_pagemap(image[f"pagemap-{pid}.img"])[0]


FORK = """
import hashlib
common = os.urandom(48 << 20)
changed = bytearray(os.urandom(8 << 20))
asked, told = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    own = os.urandom(8 << 20)
    changed[::4096] = b"c" * len(changed[::4096])
    while os.read(asked[0], 1):
        found = hashlib.sha256(common + changed + own).digest()
        os.write(told[1], found)
    os._exit(0)
own = os.urandom(8 << 20)

def of_child():
    os.write(asked[1], b"?")
    return os.read(told[0], 32)

def of_parent():
    return hashlib.sha256(common + changed + own).digest()
"""


def test_memory_that_a_forked_child_shares_stays_shared(places, engine):
    world = places.world()
    world(FORK)
    before = world("of_child(), of_parent()")
    place, tree, saved = restored(world, engine, places)
    # Only what each has of its own was copied.
    assert 16 * MIB <= saved.image.copied < 48 * MIB
    held = [
        int(line.split()[1]) << 10
        for process in place.tree.processes
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss_Anon:")
    ]
    assert sum(held) < 48 * MIB + 4 * 8 * MIB + 24 * MIB
    proceed(tree, saved.result.stopped)
    world = world.at(place)
    assert world("of_child(), of_parent()") == before


@pytest.fixture(scope="module")
def world(shared_places):
    world = shared_places.world()
    world("ballast = os.urandom(16 << 20); right = hash(ballast)")
    return world


@pytest.fixture(scope="module")
def saved(world, shared_engine):
    """One for all: whatever fails, the same can come back."""
    return shared_engine.save(world.place)


def assert_whole(world):
    # A hash is kept by the object: it is made anew from a copy.
    assert world("hash(bytes(bytearray(ballast))) == right") is True


def test_memory_comes_back_in_huge_pages_where_the_kernel_takes_advice(
    saved, world, places
):
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[madvise]" not in modes.read_text():
        pytest.skip("this kernel takes no advice on huge pages")
    place = places.hold()
    tree = saved.restore(place)
    flags = flags_of(place)
    assert [line for line in flags if " hg" in line]
    assert [line for line in flags if " hg" not in line]
    proceed(tree, saved.result.stopped)
    assert_whole(world.at(place))


def first_of(pieces):
    return next(iter(pieces.values()))[0]


class ImageThatCannotCopy(Image):
    def copy(self, pieces, cancelled):
        super().copy({name: of_it[:1] for name, of_it in pieces.items()}, cancelled)
        raise StoreError(Reason.CHECKPOINT_DAMAGED, why="a flipped bit")


class ImageThatHangs(Image):
    """Copies nothing until it is told to stop."""

    reached: object = None

    def copy(self, pieces, cancelled):
        if self.reached is not None:
            self.reached.set()
        wait_for(cancelled)
        raise InterruptedError


class ImageThatKills(Image):
    """Its process ends while it is filled."""

    def copy(self, pieces, cancelled):
        super().copy(pieces, cancelled)
        pid = first_of(pieces).pid
        victim = processes.Process(pid, pid, 0, "", "T", processes.start_time(pid), 0)
        os.kill(pid, signal.SIGKILL)
        assert processes.wait_gone([victim], time.monotonic() + 20) == []


class ImageThatWakes(Image):
    """Its user, from outside, lets a process go on before the whole tree may."""

    def copy(self, pieces, cancelled):
        super().copy(pieces, cancelled)
        os.kill(first_of(pieces).pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("kind", "error", "reason", "options"),
    [
        (ImageThatCannotCopy, StoreError, Reason.CHECKPOINT_DAMAGED, {}),
        (ImageThatHangs, RestoreFailed, Reason.CANCELLED, {"cancel": Cancel()}),
        (ImageThatHangs, RestoreFailed, Reason.TIMED_OUT, {"limit": 2}),
        (ImageThatKills, RestoreFailed, Reason.RESTORE_FAILED, {}),
        (ImageThatWakes, RestoreFailed, Reason.RESTORE_FAILED, {}),
    ],
    ids=["cannot", "called off", "too long", "ends", "runs meanwhile"],
)
def test_memory_that_fails_leaves_only_the_init(
    saved, world, engine, places, kind, error, reason, options
):
    """And that init can take it once more."""
    place = places.hold()
    source = kind(saved.image)
    if "cancel" in options:
        source.reached = options["cancel"]
    with pytest.raises(error) as caught:
        engine.restore(place, source, saved.result, **options)
    assert caught.value.reason is reason
    assert place.living == ()
    assert_whole(world.at(saved.back(place)))


def test_proceed_before_the_memory_is_there_is_refused(saved, engine, places):
    place = places.hold()
    unfilled = engine.run_criu(place, saved.image, saved.result)
    assert unfilled.missing.total >= 16 * MIB
    with pytest.raises(ReclaimError) as caught:
        proceed(unfilled, saved.result.stopped)
    assert caught.value.reason is Reason.INTERNAL
    assert {one.state for one in place.tree.processes} == {"T"}
