"""Memory of large programs is read while CRIU dumps them."""

import ctypes
import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.memory import ahead
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.process_memory import private_pages
from tests.checkpoint.conftest import Image, Taking

LARGE = (
    "import ctypes, mmap, os; "
    "much = bytearray(os.urandom(24 << 20)); "
    "zeros = bytearray(8 << 20); zeros[:4] = b'some'; "
    "code = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE, prot=7); "
    "code[:] = os.urandom(4 << 20); "
    "known = [hash(bytes(one)) for one in (much, zeros, code)]"
)
SAME = "known == [hash(bytes(one)) for one in (much, zeros, code)]"


class Parts(Image):
    """Files in memory, which can be composed of parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Taking] = []

    def part(self) -> Taking:
        image = Image()
        self.parts.append(Taking(image.sink("")))
        self.parts[-1].image = image
        return self.parts[-1]

    def file(self, name: str) -> "Composed":
        return Composed(self.sink(name))


class Composed(Taking):
    def compose(self, parts, pieces) -> None:
        for part, first, pages in pieces:
            data = parts[part].part.image[""]
            self.sink.write(data[first * PAGE : (first + pages) * PAGE])


def areas(*numbers):
    return np.array(numbers, np.int64).reshape(-1, 2) * PAGE


def test_pages_are_found_in_the_parts_that_have_them_and_the_rest_is_one_more():
    wanted = areas((0, 4), (10, 6), (30, 1))
    pieces, rest = ahead.split(wanted, [areas((1, 2), (9, 3)), areas((13, 5))])
    assert rest.tolist() == areas((0, 1), (3, 1), (12, 1), (30, 1)).tolist()
    assert pieces == [
        (2, 0, 1),
        (0, 0, 2),
        (2, 1, 1),
        (0, 3, 2),
        (2, 2, 1),
        (1, 0, 3),
        (2, 3, 1),
    ]


@given(st.sets(st.integers(0, 60)), st.lists(st.sets(st.integers(0, 60)), max_size=3))
def test_whatever_was_taken_each_page_comes_once_and_in_its_place(wanted, taken):
    taken = [part - set().union(*taken[:n]) for n, part in enumerate(taken)]
    taken = sorted((sorted(part) for part in taken if part), key=lambda part: part[0])
    # A part ends before the next one begins.
    taken = [
        [page for page in part if n + 1 == len(taken) or page < taken[n + 1][0]]
        for n, part in enumerate(taken)
    ]
    parts = [areas(*((page, 1) for page in part)) for part in taken]
    pieces, rest = ahead.split(areas(*((page, 1) for page in sorted(wanted))), parts)
    all_pages = [*parts, rest]
    expanded = [
        [at // PAGE + n for at, length in part.tolist() for n in range(length // PAGE)]
        for part in all_pages
    ]
    found = [
        page
        for part, first, pages in pieces
        for page in expanded[part][first : first + pages]
    ]
    assert found == sorted(wanted)
    assert set(expanded[-1]) == wanted - {page for part in taken for page in part}


def test_private_pages_are_those_that_were_written(tmp_path):
    memory = np.memmap(tmp_path / "file", np.uint8, "w+", shape=4 * PAGE)
    memory[:] = 1
    at = memory.ctypes.data
    assert not len(private_pages(os.getpid(), at, at + 4 * PAGE))
    mine = np.memmap(tmp_path / "file", np.uint8, "c")
    at = mine.ctypes.data
    mine[PAGE : 3 * PAGE] = 2
    assert private_pages(os.getpid(), at, at + 4 * PAGE).tolist() == [
        [at + PAGE, 2 * PAGE]
    ]


def test_memory_that_can_be_executed_is_not_read_ahead(places):
    """CRIU puts its system calls there while it is in a program."""
    world = places.world()
    world(LARGE)
    pid = world.place.tree.processes[-1].pid
    areas = list(procfs.data_areas(pid))
    for name, is_read in (("much", True), ("code", False)):
        at = world(f"ctypes.addressof(ctypes.c_char.from_buffer({name}))")
        assert any(begin <= at < end for begin, end in areas) == is_read


def test_guard_pages_are_no_memory():
    """A C library of 2025 has them below the stack of each thread: none can be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE)
    memory[:] = bytes([1]) * len(memory)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.madvise(ctypes.c_void_p(at), PAGE, 102):
        pytest.skip("no MADV_GUARD_INSTALL before Linux 6.13")
    found = private_pages(os.getpid(), at, at + 4 * PAGE)
    assert found.tolist() == [[at + PAGE, 3 * PAGE]]


def dumped(world, engine, image):
    return engine.dump_without_memory(world.place, image.sink, parts=image.part)


@pytest.mark.parametrize("slice_bytes", [512 << 20, 4 << 20])
def test_large_program_comes_back(places, engine, monkeypatch, slice_bytes):
    monkeypatch.setattr(ahead, "_SLICE_BYTES", slice_bytes)
    world = places.world()
    world(LARGE)
    image = Parts()
    result = dumped(world, engine, image)
    result.memory.deliver(image.file, "", Cancel())
    if slice_bytes < 24 << 20:
        assert len(image.parts) > 6
    else:
        assert len(image.parts[0].image[""]) > 24 << 20
    pages = [len(data) for name, data in image.items() if name.startswith("pages-")]
    assert sum(pages) == result.memory.logical_bytes
    thaw(world.place.tree, ())
    assert world(SAME)
    world.place.kill()
    there = places.hold()
    proceed(engine.restore(there, image, result))
    assert world.at(there)(SAME)


def test_programs_whose_turn_did_not_come_are_read_behind_the_dump(
    places, engine, monkeypatch
):
    world = places.world()
    world(LARGE)
    ended = threading.Event()
    end, slices = ahead.ReadAhead.end, ahead._slices

    def end_and_tell(self) -> None:
        end(self)
        ended.set()

    def wait_and_look(pid):
        assert ended.wait(30)
        yield from slices(pid)

    monkeypatch.setattr(ahead.ReadAhead, "end", end_and_tell)
    monkeypatch.setattr(ahead, "_slices", wait_and_look)
    monkeypatch.setattr(ahead, "_LEAST_BYTES", 1 << 20)
    image = Parts()
    result = dumped(world, engine, image)
    assert len(world.place.tree.processes) > 1
    result.memory.deliver(image.file, "", Cancel())
    pages = [len(data) for name, data in image.items() if name.startswith("pages-")]
    assert len(pages) > 1
    assert sum(pages) == result.memory.logical_bytes
    thaw(world.place.tree, ())
    assert world(SAME)


def test_what_is_read_ahead_and_fails_fails_the_save(places, engine):
    world = places.world()
    world(LARGE)
    image = Parts()
    result = engine.dump_without_memory(
        world.place, image.sink, parts=lambda: Taking(Full())
    )
    with pytest.raises(RolledBack, match="Not enough room"):
        result.memory.deliver(image.file, "", Cancel())
    thaw(world.place.tree, ())
    assert world(SAME)


class Full:
    def write(self, data) -> None:
        raise RolledBack(Reason.STORE_FULL, needed="1 B", free="0 B")

    def close(self) -> None: ...


def test_small_programs_are_left_for_later(places, engine):
    world = places.world()
    image = Parts()
    result = dumped(world, engine, image)
    assert not image.parts
    result.memory.deliver(image.file, "", Cancel())
    taken = sum(len(part.image[""]) for part in image.parts)
    assert taken == result.memory.logical_bytes
    thaw(world.place.tree, ())
