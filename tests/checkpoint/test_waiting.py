"""Waits do not end early, and what came in meanwhile is heard before the clock is."""

import platform
import socket
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.waits import begins_alike
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import ptrace

EPOLL_WAIT = 232
TIMENS_MAGIC = 0x43114433
#: Longer than the test takes; its clock is put forward by more.
DELAY, JUMP = 1000, 5000
#: As a Jupyter server is made: a thread takes messages in, a loop has something due.
PROGRAM = f"""
import asyncio, socket, threading
listener = socket.create_server(("127.0.0.1", 0))
inner, outer = socket.socketpair()
loop = asyncio.new_event_loop()

def take_in():
    while True:
        with listener.accept()[0] as client:
            inner.send(client.recv(1))
            client.send(b"!")

loop.add_reader(outer, lambda: print("message", outer.recv(1), flush=True))
loop.call_later({DELAY}, print, "clock")
threading.Thread(target=take_in, daemon=True).start()
print("port", listener.getsockname()[1], flush=True)
loop.run_forever()
"""


def varint(number: int) -> bytes:
    """As protobuf writes numbers."""
    return bytes([number]) if number < 128 else _more(number)


def _more(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7)


def clock_image(seconds: int) -> bytes:
    """CRIU's image of the clocks, monotonic and since boot, at that time."""
    time_of_day = b"\x08" + varint(seconds) + b"\x10\x00"
    parts = (bytes([tag, len(time_of_day)]) + time_of_day for tag in (0x0A, 0x12))
    return images.join(TIMENS_MAGIC, [b"".join(parts)])


def waits(pid: int) -> bool:
    """Whether its first thread stands in ``epoll_wait``, and not just before it."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(EPOLL_WAIT)


def send(port: int) -> None:
    """A message that a thread of the program takes in, and says that it has."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.send(b"x")
        assert client.recv(1) == b"!"


def test_servers_loop_hears_before_it_looks_at_the_clock(engine, places, wait_for):
    """Its wait begins again, as long as it is; else the clock would come first."""
    old = places.start(sys.executable, "-c", PROGRAM)
    old.read_until("port ")
    port = int(old.read_until("\n"))
    send(port)
    old.read_until("message b'x'\n")
    pid, image = old.tree.server.ns_pid, engine.image()
    wait_for(lambda: waits(old.tree.server.pid))
    result = engine.dump(old, image.sink)
    old.kill()
    assert "timens-0.img" in image
    image["timens-0.img"] = clock_image(int(time.monotonic()) + JUMP)

    place = places.hold()
    restored = engine.restore(place, image, result)
    (loop,) = (p for p in restored.tree.processes if p.ns_pid == pid)
    others = set(ptrace.tasks(loop.pid)) - {loop.pid}
    assert others
    with ptrace.standing(loop.pid, but=others, seconds=20):
        proceed(restored)
        send(port)

    heard, due = "message b'x'\n", "clock\n"
    assert place.read_until(heard) == heard
    assert place.read_until(due) == due
    send(port)
    assert place.read_until(heard) == heard


#: One thread for each wait that is the same from its beginning; each says if it ends.
WAITS = """
import ctypes
libc = ctypes.CDLL(None)

class Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

ended = []
semaphore = ctypes.create_string_buffer(64)

def wait(name, *arguments):
    getattr(libc, name)(*arguments)
    ended.append(name)

def address(seconds):
    times.append(Time(int(seconds), 0))
    return ctypes.byref(times[-1])

times = []
over = address(600)
clock = address(600)
waits = [
    ("nanosleep", over, over),
    ("nanosleep", address(600), None),
    ("usleep", 600_000_000),
    ("clock_nanosleep", 1, 0, clock, clock),
    ("poll", None, 0, -1),
    ("sem_timedwait", semaphore, address(time.time() + 600)),
]
threads = [threading.Thread(target=wait, args=one, daemon=True) for one in waits]
for thread in threads:
    thread.start()
def wait_in():
    found = [open(f"/proc/self/task/{one.native_id}/syscall").read().split()[0]
             for one in threads]
    return "running" not in found
while not wait_in():
    time.sleep(0.01)
"""


@pytest.fixture
def waiting(places):
    world = places.world()
    world(f"{WAITS}\nlen(threads)")
    return world


@pytest.mark.skipif(platform.machine() != "x86_64", reason="as the kernel has it there")
def test_wait_does_not_end_with_a_save_or_a_return(engine, places, waiting):
    result = engine.dump(waiting.place, engine.image().sink)
    thaw(waiting.place.tree, result.stopped)
    time.sleep(0.2)
    assert waiting("ended") == []

    again = engine.cycle(waiting, places)
    time.sleep(0.2)
    assert again("ended") == []


#: One thread for each short wait, over and over; each says if it was interrupted.
SHORT_WAITS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)

class Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

interrupted, word = set(), ctypes.c_int(7)
epoll, events = libc.epoll_create1(0), ctypes.create_string_buffer(12)

def over_and_over(name, wait):
    while True:
        if wait() == -1 and ctypes.get_errno() == 4:
            interrupted.add(name)

def time_(seconds):
    return ctypes.byref(Time(seconds, 0))

waits = {
    "poll": lambda: libc.poll(None, 0, 5000),
    "ppoll": lambda: libc.ppoll(None, 0, time_(5), None),
    "select": lambda: libc.select(0, None, None, None, time_(5)),
    "epoll": lambda: libc.epoll_wait(epoll, events, 1, 5000),
    "epoll without an end": lambda: libc.epoll_wait(epoll, events, 1, -1),
    "futex": lambda: libc.syscall(202, ctypes.byref(word), 128, 7, time_(5)),
}
threads = [threading.Thread(target=over_and_over, args=one, daemon=True)
           for one in waits.items()]
for thread in threads:
    thread.start()
time.sleep(0.5)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="as the kernel has it there")
def test_short_wait_is_not_interrupted_by_a_save_or_a_return(engine, places):
    world = places.world()
    world(f"{SHORT_WAITS}\nlen(threads)")
    for _ in range(2):
        result = engine.dump(world.place, engine.image().sink)
        thaw(world.place.tree, result.stopped)
        time.sleep(0.2)
        assert world("interrupted") == set()
    again = engine.cycle(world, places)
    time.sleep(0.2)
    assert again("interrupted") == set()


@pytest.mark.parametrize(
    ("number", "arguments", "seconds", "alike"),
    [
        (7, [0, 0, 10_001, 0], 10.1, False),  # poll, for a while
        (35, [1, 2], 10.1, False),  # nanosleep that tells of the rest elsewhere
        (230, [1, 0, 1, 2], 10.1, False),  # clock_nanosleep: likewise
        # Until a given time, and without one: the kernel begins it again.
        (230, [1, 1, 1, 0], 10.1, False),
        (202, [1, 0x80, 0, 1], 10.1, False),  # futex, for a while
        (202, [1, 0x189, 0, 0], 10.1, False),
        (202, [1, 0x80, 0, 0], 10.1, False),
        (232, [1, 2, 3, 10_001], 10.1, False),  # epoll_wait
        (281, [1, 2, 3, 0x7FFFFFFF], 10.1, False),
        (0, [0, 0, 0, 0], 10.1, False),
        (7, [0, 0, 10_000, 0], 9.9, True),
        (7, [0, 0, 0xFFFFFFFF, 0], 9.9, True),  # without an end
        (202, [1, 0x80, 0, 1], 9.9, True),
        (232, [1, 2, 3, 0], 9.9, True),
        (281, [1, 2, 3, (1 << 64) - 1], 9.9, True),
        (65, [1, 2, 1, 0], 10.1, True),  # semop
        (220, [1, 2, 1, 3], 10.1, True),  # semtimedop
    ],
)
def test_only_a_wait_that_is_short_or_has_no_end_is_begun_again(
    number, arguments, seconds, alike
):
    assert begins_alike(number, arguments, lambda _: seconds) is alike
