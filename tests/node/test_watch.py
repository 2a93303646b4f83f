"""What wakes stopped programs that are no kernels, and what it costs to watch them."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.nap import inputs
from jupyterhub_gpu_reclaim.node.nap.inputs import TooManyError, all_unread, find_inputs
from jupyterhub_gpu_reclaim.node.nap.watch import Watch
from tests.node.test_messages import message
from tests.support.agent import wait_for

#: Seconds in which whoever is going to wake has done so.
CALM = 0.3
#: Opens one of each, says where, and waits.
PROGRAM = """
import json, os, resource, signal, socket, sys, threading, time, tty
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.signal(signal.SIGWINCH, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
def listener():
    made = socket.create_server(("127.0.0.1", 0))
    return made
server, tcp_listener = listener(), listener()
udp = socket.socket(type=socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX); unix.bind("\\0" + sys.argv[1]); unix.listen()
own = socket.socketpair()
own[0].send(b"to itself")
self_pipe = os.pipe()
os.write(self_pipe[1], b"to itself")
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
makers = {"files": lambda: os.open("/dev/null", os.O_RDONLY),
          "duplicates": lambda: [os.dup(self_pipe[0]), os.dup(server.fileno())],
          "sockets": lambda: socket.socket(socket.AF_UNIX)}
many = [makers[sys.argv[3]]() for _ in range(int(sys.argv[2]))]
print(json.dumps([server.getsockname()[1], tcp_listener.getsockname()[1],
                  udp.getsockname()[1]]), flush=True)
end, _ = server.accept()
friend, _ = unix.accept()
print("ready", flush=True)
while True:
    time.sleep(100)
"""


class Program:
    """A program with an open end of everything, and the other ends."""

    def __init__(self, *, many: int = 0, of: str = "files") -> None:
        self.pipe_out, self.pipe_in = os.pipe()
        self.master, slave = os.openpty()
        name = f"gra-watch-{os.getpid()}-{time.monotonic_ns()}"
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, name, str(many), of],
            stdin=slave,
            stdout=subprocess.PIPE,
            pass_fds=[self.pipe_out],
            start_new_session=True,
        )
        os.close(slave)
        os.close(self.pipe_out)
        server, self.listener, self.udp = json.loads(self.popen.stdout.readline())
        self.tcp = socket.create_connection(("127.0.0.1", server))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.connect("\0" + name)
        assert self.popen.stdout.readline() == b"ready\n"

    @property
    def process(self) -> processes.Process:
        (found,) = (
            one
            for one in processes.snapshot(os.getpid()).processes
            if one.pid == self.popen.pid
        )
        return found

    def stop(self) -> processes.Process:
        os.kill(self.popen.pid, signal.SIGSTOP)
        process = self.process
        wait_for(lambda: processes.is_stopped(process))
        return process

    def connect(self) -> None:
        socket.create_connection(("127.0.0.1", self.listener)).close()

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()
        self.tcp.close()
        self.unix.close()
        for descriptor in (self.pipe_in, self.master):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def program():
    made = Program()
    yield made
    made.close()


@contextlib.contextmanager
def watched(program, standing=None):
    process = program.stop()
    watch = Watch([process], standing or {})
    with contextlib.closing(watch):
        watch.open(os.getpid())
        yield watch


async def reason(watch, seconds: float = CALM) -> str:
    """What woke it; empty: nothing in that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await watch.wait()
    return ""


def send(program, number: signal.Signals) -> None:
    os.kill(program.popen.pid, number)


WAKING = {
    "a new connection": lambda p: p.connect(),
    "data on a connection": lambda p: p.tcp.send(b"x"),
    "a datagram": lambda p: socket.socket(type=socket.SOCK_DGRAM).sendto(
        b"x", ("127.0.0.1", p.udp)
    ),
    "data on a connection of UNIX": lambda p: p.unix.send(b"x"),
    "data in a pipe": lambda p: os.write(p.pipe_in, b"x"),
    "data in a pipe that ends": lambda p: os.close(p.pipe_in),
    "keys in its terminal": lambda p: os.write(p.master, b"a line\n"),
    "SIGINT": lambda p: send(p, signal.SIGINT),
    "SIGTERM": lambda p: send(p, signal.SIGTERM),
    "SIGUSR1": lambda p: send(p, signal.SIGUSR1),
    "the end of a program": lambda p: send(p, signal.SIGKILL),
    "a program that was continued": lambda p: send(p, signal.SIGCONT),
}
QUIET = {
    "nothing": lambda p: None,
    "the end of a connection": lambda p: p.tcp.close(),
    "the end of a UNIX connection": lambda p: p.unix.close(),
    "half a line": lambda p: os.write(p.master, b"half a li"),
    "the size of its window": lambda p: send(p, signal.SIGWINCH),
    "a timer": lambda p: send(p, signal.SIGALRM),
    "Ctrl-Z": lambda p: send(p, signal.SIGTSTP),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", WAKING)
async def test_what_wakes(program, what):
    with watched(program) as watch:
        assert await reason(watch) == ""
        WAKING[what](program)
        found = await reason(watch, 10)
        assert found
        # One that ends is not stopped for a moment before.
        ends = what == "the end of a program"
        assert what.startswith(found) or (ends and "continued" in found)


@pytest.mark.parametrize("what", QUIET)
async def test_what_does_not_wake(program, what):
    with watched(program) as watch:
        QUIET[what](program)
        assert await reason(watch) == ""
        program.unix.close()  # whoever else may say something
        os.write(program.pipe_in, b"x")
        assert await reason(watch, 10) == "data in a pipe"


async def test_what_came_before_the_watch_wakes_unless_it_had_been_left_unread(program):
    program.tcp.send(b"not wanted so far")
    process = program.process
    there = find_inputs(os.getpid(), [process])
    wait_for(lambda: all_unread(there))
    standing = all_unread(there)
    with watched(program, standing) as watch:
        assert await reason(watch) == ""
        program.tcp.send(b"x")
        assert await reason(watch, 10) == "data on a connection"
    with watched(program, standing) as watch:
        assert await reason(watch, 10) == "data on a connection"


async def test_datagram_behind_one_that_was_left_unread_wakes(program):
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", program.udp))
        standing = all_unread(find_inputs(os.getpid(), [program.process]))
        sender.sendto(b"x", ("127.0.0.1", program.udp))
    with watched(program, standing) as watch:
        assert await reason(watch, 10) == "a datagram"


async def test_ports_of_a_program_that_ends_are_free_while_it_is_watched(program):
    """The next kernel takes the same ones."""
    with watched(program):
        program.popen.kill()
        program.popen.wait()
        program.tcp.close()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", program.listener))


async def test_a_descriptor_that_becomes_another_wakes(program):
    with watched(program) as watch:
        changed = [one for one in watch._inputs if one.kind is inputs.InputKind.PIPE]
        index = watch._inputs.index(changed[0])
        watch._inputs[index] = inputs.Input(
            changed[0].process, changed[0].fd, "pipe:[1]", changed[0].kind
        )
        os.write(program.pipe_in, b"x")
        assert await reason(watch, 10) == "a descriptor that was changed"


@pytest.mark.parametrize("of", ["duplicates", "files"])
async def test_many_descriptors_of_few_inputs_are_no_way_out_of_naps(of):
    """4,100 times ``dup()`` were one."""
    made = Program(many=4100, of=of)
    try:
        found = find_inputs(os.getpid(), [made.process])
        assert len(found) < 20
        with watched(made) as watch:
            assert await reason(watch) == ""
            made.connect()
            assert await reason(watch, 10) == "a new connection"
    finally:
        made.close()


def test_more_descriptors_than_are_watched_are_refused():
    made = Program(many=inputs.MOST_DESCRIPTORS, of="sockets")
    try:
        begun = time.monotonic()
        with pytest.raises(TooManyError):
            find_inputs(os.getpid(), [made.process])
        assert time.monotonic() - begun < 10
    finally:
        made.close()


@pytest.fixture
def channel(program):
    """The program's TCP connection, taken for a channel of a kernel."""
    with watched(program) as watch:
        (number,) = (
            number
            for number, one in enumerate(watch._inputs)
            if one.kind is inputs.InputKind.DATA
            and socket_name(one) == program.tcp.getpeername()
        )
        kind = inputs.InputKind.CHANNEL
        watch._inputs[number] = dataclasses.replace(watch._inputs[number], kind=kind)
        yield watch


async def test_what_wakes_is_found_behind_many_that_do_not(program, channel):
    for _ in range(30):
        program.tcp.send(message("kernel_info_request"))
    assert await reason(channel) == ""
    program.tcp.send(message("execute_request"))
    assert await reason(channel, 10) == "execute_request"


async def test_queue_wakes_before_it_is_full(program, channel):
    """What wakes could not arrive any more."""
    program.tcp.setblocking(False)
    waiting = asyncio.create_task(reason(channel, 10))
    while not waiting.done():
        program.tcp.send(message("kernel_info_request"))
        await asyncio.sleep(0.005)
    assert await waiting == "more messages than are looked at"


async def test_flood_that_does_not_wake_costs_little(program, channel):
    """The smallest messages that wake nobody, one by one."""
    ping = b"\4\7\4PING\0\0"
    waiting = asyncio.create_task(reason(channel, 2))
    before = time.process_time()
    while not waiting.done():
        program.tcp.send(ping)
        await asyncio.sleep(0.001)
    assert await waiting == ""
    assert time.process_time() - before < 1.5


def socket_name(one) -> tuple:
    with one.opened() as copy, socket.socket(fileno=os.dup(copy)) as end:
        return end.getsockname() if end.family == socket.AF_INET else ()
