"""System V objects on their way back: made once CRIU has ended, gone when it fails."""

import random
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds import system_v
from jupyterhub_gpu_reclaim.checkpoint.kinds.system_v import SavedObjects
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes

OBJECTS = """
import ctypes, struct
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
sets = [libc.semget(key, 2, 0o1600) for key in (1, 2)]
libc.semctl(sets[0], 0, 0)
queue = libc.msgget(9, 0o1600)
assert libc.msgsnd(queue, b"\\1" + bytes(7) + b"five!", 5, 0) == 0
about = ctypes.create_string_buffer(120)
def limit(*new):
    # Bytes that the queue may hold, which can be fewer than are in there.
    libc.msgctl(queue, 2, about)
    if new:
        struct.pack_into("Q", about, 88, *new)
        assert libc.msgctl(queue, 1, about) == 0
    return struct.unpack_from("Q", about, 88)[0]
limit(3)
first, second = [libc.shmget(key, 1 << 20, 0o1600) for key in (7, 8)]
address = libc.shmat(second, None, 0)
ctypes.memmove(address, b"here", 4)
"""
BLOCKER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
space = open(sys.argv[1])
assert libc.setns(space.fileno(), 0x08000000) == 0
assert libc.shmget(0, 1, 0o1600) == 0 and libc.shmget(0, 1, 0o1600) == 1
assert libc.shmctl(0, 0, None) == 0
"""


@pytest.fixture(scope="module")
def saved(shared_places, shared_engine):
    """An image of a session with some objects; the session has ended."""
    world = shared_places.world()
    world(OBJECTS)
    return world, shared_engine.save(world.place)


def there(place) -> list[int]:
    """How many there are of each kind."""
    return [len(table) for table in system_v.look(place.init_pid).tables.values()]


def test_return_that_fails_leaves_no_object_and_the_next_one_works(saved, places):
    world, made = saved
    place = places.hold()
    # The second number is taken, when the first has been made.
    space = f"/proc/{place.init_pid}/ns/ipc"
    subprocess.run([sys.executable, "-c", BLOCKER, space], check=True)
    before = there(place)
    with pytest.raises(RestoreFailed, match="objects could not be made") as error:
        made.restore(place)
    assert "is taken" in error.value.detail
    assert there(place) == before
    place = places.hold()
    made.engine.await_free(place, made.image)
    proceed(made.restore(place), made.result.stopped)
    assert there(place) == [1, 1, 2]
    world = world.at(place)
    assert world("libc.semget(2, 2, 0) == sets[1]")
    assert world("limit(), libc.msgrcv(queue, about, 9, 0, 0), about[8:13]") == (
        3,
        5,
        b"five!",
    )
    assert world("ctypes.string_at(address, 4)") == b"here"


def test_what_an_attempt_has_left_is_made_anew(saved, places):
    world, made = saved
    place = places.hold()
    made.restore(place)
    processes.kill_tree(place.init_pid, place.init_start, timeout=20)
    assert there(place) == [1, 1, 2]
    assert world.at(made.back(place))("ctypes.string_at(address, 4)") == b"here"


def test_posix_queue_that_came_at_the_last_moment_is_refused_and_all_goes_on(
    places, engine
):
    world = places.world()
    world("""
import ctypes
librt = ctypes.CDLL("librt.so.1")
os.close(librt.mq_open(b"/late", os.O_RDWR | os.O_CREAT, 0o600, None))
""")
    with pytest.raises(ReclaimError) as error:
        engine.dump(world.place, engine.image().sink)
    assert error.value.reason is Reason.IPC_UNSUPPORTED
    assert world("1 + 1") == 2


@pytest.mark.parametrize(
    "name", ["ipcns-sem", "ipcns-msg", "ipcns-shm", "pagemap-shmem"]
)
def test_image_that_is_cut_off_makes_nothing(saved, places, engine, name):
    _, made = saved
    image = copy_of(made.image)
    found = next(one for one in image if one.startswith(name))
    image[found] = image[found][:-3]
    place = places.hold()
    with pytest.raises(RestoreFailed) as error:
        engine.restore(place, image, made.result)
    assert error.value.reason is Reason.CHECKPOINT_DAMAGED
    assert there(place) == [0, 0, 0]


def test_images_that_are_off_are_told_and_never_believed(saved):
    """Nothing else is raised, and what is made stays within its limits."""
    _, made = saved
    image = made.image
    chance, reasons = random.Random(1), set()
    parts = ("ipcns-", "ids-", "mm-", "inventory", "pagemap-shmem", "pstree", "core-")
    names = [name for name in image if name.startswith(parts)]
    for _ in range(600):
        changed = copy_of(image)
        name = chance.choice(names)
        data = bytearray(image[name])
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        changed[name] = bytes(data)
        try:
            objects = SavedObjects(SavedImages(changed))
        except RestoreFailed as error:
            reasons.add(error.reason)
            continue
        for one in objects.wanted:
            if one["kind"] == "shm":
                assert sum(length for _, length in one["pages"]) <= one["size"] + 4095
    assert reasons == {Reason.CHECKPOINT_DAMAGED}


def copy_of(image):
    other = type(image)()
    other.update(image)
    return other
