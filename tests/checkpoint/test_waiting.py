"""What came in while an event loop was away is heard before its clock is looked at."""

import socket
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import restart_wait
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.linux import ptrace

EPOLL_WAIT, READ, EINTR = 232, 0, (1 << 64) - 4
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


def core(**registers: int) -> bytes:
    entry = images.parse("core_entry", b"")
    for name, value in registers.items():
        setattr(entry.thread_info.gpregs, name, value)
    return images.join(images.CORE_MAGIC, [images.serialize(entry)])


def waits(pid: int) -> bool:
    """Whether its first thread stands in ``epoll_wait``, and not just before it."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(EPOLL_WAIT)


def send(port: int) -> None:
    """A message that a thread of the program takes in, and says that it has."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.send(b"x")
        assert client.recv(1) == b"!"


@pytest.mark.parametrize("again", [True, False])
def test_loop_that_waits_again_hears_before_it_looks_at_the_clock(
    engine, places, again, wait_for
):
    """Without it, the clock comes first: what the rewriting is for."""
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
    name = f"core-{pid}.img"
    waited = image[name]
    image[name] = restart_wait(waited)
    assert image[name] != waited
    if not again:
        image[name] = waited

    place = places.hold()
    restored = engine.restore(place, image, result)
    (loop,) = (p for p in restored.tree.processes if p.ns_pid == pid)
    others = set(ptrace.tasks(loop.pid)) - {loop.pid}
    assert others
    with ptrace.standing(loop.pid, but=others, seconds=20):
        proceed(restored)
        send(port)

    heard, due = "message b'x'\n", "clock\n"
    assert place.read_until(heard if again else due) == (heard if again else due)
    assert place.read_until(due if again else heard) == (due if again else heard)
    send(port)
    assert place.read_until(heard) == heard


def test_thread_that_waited_begins_its_call_anew():
    registers = images.parse(
        "core_entry",
        images.only(
            restart_wait(core(ax=EINTR, orig_ax=EPOLL_WAIT, ip=4096)), images.CORE_MAGIC
        ),
    ).thread_info.gpregs
    assert (registers.ax, registers.ip) == (EPOLL_WAIT, 4094)


@pytest.mark.parametrize(
    "registers",
    [
        {"ax": EINTR, "orig_ax": READ, "ip": 4096},
        {"ax": 1, "orig_ax": EPOLL_WAIT, "ip": 4096},
        {"ax": EINTR, "orig_ax": EPOLL_WAIT, "ip": 1},
        {"ax": EINTR, "orig_ax": EPOLL_WAIT, "ip": 4096, "mode": 2},
        {},
    ],
)
def test_thread_that_did_something_else_is_left_as_it_was(registers):
    assert restart_wait(core(**registers)) == core(**registers)


def test_image_that_is_none_is_damage():
    with pytest.raises(RestoreFailed):
        restart_wait(b"not CRIU's")
