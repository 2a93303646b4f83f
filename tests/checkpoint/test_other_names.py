"""Deleted files that have another name: refused by it, but for semaphores."""

import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.preflight import examine
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: As ``multiprocessing`` has them where workers are not forked, and each opens it by
#: its name.
SEMAPHORE = """
import multiprocessing
from _multiprocessing import SemLock
made = multiprocessing.get_context("spawn").Semaphore(5)
count = made._semlock
def opened():
    return SemLock._rebuild(0, count.kind, count.maxvalue, count.name)
def values():
    return count._get_value(), other._get_value(), opened()._get_value()
other = opened(); count.acquire()
"""
LINKED = """
linked = open("file", "w+"); linked.write("kept"); linked.flush()
os.link("file", "other"); os.unlink("file")
"""


def shared_memory(pid: int) -> Path:
    return Path(f"/proc/{pid}/root/dev/shm")


def held(world) -> list[str]:
    found = examine(world.place.init_pid, world.place.tree)
    return [one.message for one in found if one.code == Reason.HANDLE_UNSUPPORTED.value]


def test_semaphore_of_workers_that_are_spawned_comes_back_twice(places, engine):
    world = places.world()
    world(SEMAPHORE)
    assert world("values()") == (4, 4, 4)
    assert held(world) == []
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    (name,) = shared_memory(world.place.init_pid).iterdir()
    contents = name.read_bytes()
    world.place.kill()
    for _ in range(2):
        place = places.hold()
        # As the archive of its private file systems brings it back.
        (shared_memory(place.init_pid) / name.name).write_bytes(contents)
        proceed(engine.restore(place, image, result), result.stopped)
        again = world.at(place)
        assert again("opened().release(); values()") == (5, 5, 5)
        assert again("count.acquire(); values()") == (4, 4, 4)
        place.kill()


#: Each page of the file a mapping of its own.
MAPPED_OFTEN = """
import ctypes, mmap
linked.truncate(20_000 * 4096)
area = mmap.mmap(linked.fileno(), 20_000 * 4096, flags=mmap.MAP_PRIVATE)
first = ctypes.addressof(ctypes.c_char.from_buffer(area))
for page in range(0, 20_000, 2):
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + page * 4096), 4096, 1)
"""


def test_file_that_is_mapped_often_is_looked_at_once(places, tmp_path):
    world = places.world()
    world(f"os.chdir({str(tmp_path)!r})")
    world(LINKED)
    world(MAPPED_OFTEN)
    begun = time.process_time()
    assert len(held(world)) == 1
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("folder", ["", "/dev/shm/sub"])
def test_other_file_with_another_name_is_refused_by_it(
    places, engine, tmp_path, folder
):
    folder = folder or str(tmp_path)
    world = places.world()
    world(f"os.makedirs({folder!r}, exist_ok=True); os.chdir({folder!r})")
    world(LINKED)
    (message,) = held(world)
    assert f"the deleted file {folder}/file, which has another name" in message
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, engine.image().sink)
    assert caught.value.reason is Reason.HANDLE_UNSUPPORTED
    assert f"{folder}/file, which" in caught.value.message
    assert "other" in world("os.listdir()")
    assert not [name for name in world("os.listdir()") if "remap" in name]
    assert world("linked.seek(0); linked.read()") == "kept"
    world("linked.close()")
    assert held(world) == []


def test_mapped_library_that_was_replaced_and_is_in_a_cache_is_refused(
    places, tmp_path
):
    """As by uv or conda: they have one file under two names."""
    world = places.world()
    world(f"os.chdir({str(tmp_path)!r}); {LINKED!s}")
    world("import mmap; mapped = mmap.mmap(linked.fileno(), 0); linked.close()")
    (message,) = held(world)
    assert "which has another name" in message


def test_name_that_ends_as_that_of_a_deleted_file_is_none(places, engine, tmp_path):
    world = places.world()
    world(f"os.chdir({str(tmp_path)!r}); named = open('x (deleted)', 'w+')")
    world("named.write('kept'); named.flush()")
    assert held(world) == []
    saved = engine.save(world.place)
    place = saved.back(places.hold())
    assert world.at(place)("named.seek(0); named.read()") == "kept"
