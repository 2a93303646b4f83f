"""Memory of another process, read as one run of bytes."""

import ctypes
import mmap
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from jupyterhub_gpu_reclaim.linux.libc import libc
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory

PAGE = mmap.PAGESIZE


def areas_of(plain: np.ndarray, spans) -> np.ndarray:
    base = plain.ctypes.data
    return np.array([(base + at, length) for at, length in spans], np.int64)


@pytest.mark.parametrize("count", [1, 3, 3000])  # and more than one call takes
def test_areas_are_read_one_behind_the_other(count):
    plain = np.frombuffer(os.urandom(8 << 20), np.uint8).copy()
    chance = random.Random(count)
    spans = [
        (chance.randrange(7 << 20), chance.randrange(1, 3000)) for _ in range(count)
    ]
    expected = b"".join(plain[at : at + length].tobytes() for at, length in spans)
    memory = ProcessMemory(os.getpid(), areas_of(plain, spans))
    assert memory.length == len(expected)
    for at in (0, len(expected) // 2, len(expected) - 1):
        view = memoryview(bytearray(min(1 << 20, len(expected) - at)))
        memory.read_into(at, view)
        assert view == expected[at : at + len(view)]


def test_what_its_process_may_not_read_is_read():
    closed = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    closed[:] = expected = os.urandom(3 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(closed))
    middle = ctypes.c_void_p(address + PAGE)
    assert not libc.mprotect(middle, ctypes.c_size_t(PAGE), 0)
    view = memoryview(bytearray(3 * PAGE))
    memory = ProcessMemory(os.getpid(), np.array([(address, 3 * PAGE)], np.int64))
    memory.read_into(0, view)
    assert view == expected
    assert not libc.mprotect(middle, ctypes.c_size_t(PAGE), 3)


def test_no_memory_is_nothing_and_one_that_has_ended_an_error():
    nothing = ProcessMemory(os.getpid(), np.empty((0, 2), np.int64))
    assert nothing.length == 0
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    areas = areas_of(np.zeros(PAGE, np.uint8), [(0, PAGE)])
    with pytest.raises(OSError, match="No such"):
        ProcessMemory(ended.pid, areas).read_into(0, memoryview(bytearray(PAGE)))
