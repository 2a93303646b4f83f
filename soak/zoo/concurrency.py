"""What goes on by itself in a kernel: threads, tasks and timers.

What they have done so far can be computed again from how much it is: a step that was
lost or done twice shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
import time
import zlib

from soak.zoo.keeper import digest


class Nothing:
    """A number; what is looked at stands beside it."""

    def __init__(self) -> None:
        self.value = 0

    def look(self) -> tuple[str, int]:
        return digest(self.value), 0

    def work(self) -> None:
        self.value += 1


class Chain:
    """Numbers that follow from each other, with how many there were."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.value = seed
        self.length = 0

    def step(self) -> None:
        self.value = zlib.crc32(self.value.to_bytes(4, "little"))
        self.length += 1

    def check(self) -> int:
        """How many there were.

        Raises:
            AssertionError: they do not follow from each other.
        """
        again = Chain(self.seed)
        for _ in range(self.length):
            again.step()
        assert (again.value, again.length) == (self.value, self.length)
        return self.length


class Threads:
    """Threads that count under locks, wait for each other, and know who they are."""

    COUNT = 8

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.turn = threading.Condition()
        self.due = 0
        self.chains = [Chain(n + 1) for n in range(self.COUNT)]
        self.threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True)
            for n in range(self.COUNT)
        ]
        self.local = threading.local()
        for thread in self.threads:
            thread.start()
        self.secret = 0

    def _run(self, number: int) -> None:
        self.local.number = number
        while True:
            with self.turn:
                self.turn.wait_for(lambda: self.due == number)
                with self.lock:
                    assert self.local.number == number
                    self.chains[number].step()
                self.due = (number + 1) % self.COUNT
                self.turn.notify_all()
            time.sleep(0.005)

    def look(self) -> tuple[str, int]:
        who = [(thread.ident, thread.native_id) for thread in self.threads]
        assert all(thread.is_alive() for thread in self.threads)
        with self.turn, self.lock:
            grown = sum(chain.check() for chain in self.chains)
        return digest(who, self.secret), grown

    def work(self) -> None:
        self.secret += 1


class Tasks:
    """Tasks in the kernel's own loop: timers, queues and a server on loopback."""

    def __init__(self) -> None:
        self.chain = Chain(7)
        self.queue: asyncio.Queue[int] = asyncio.Queue(3)
        self.taken = Chain(7)
        self.answered = 0
        self.secret = 0
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(work)
            for work in (self._produce(), self._consume(), self._serve())
        ]

    async def _produce(self) -> None:
        while True:
            self.chain.step()
            await self.queue.put(self.chain.value)
            await asyncio.sleep(0.02)

    async def _consume(self) -> None:
        while True:
            value = await self.queue.get()
            self.taken.step()
            assert value == self.taken.value

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while True:
            line = b"%d\n" % self.answered
            writer.write(line)
            assert await reader.readline() == line
            self.answered += 1
            await asyncio.sleep(0.02)

    async def _echo(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            writer.write(line)

    def look(self) -> tuple[str, int]:
        for task in self.tasks:
            if task.done():
                task.result()
        waits = self.chain.length - self.taken.length
        assert 0 <= waits <= 3 + 1
        grown = self.chain.check() + self.taken.check() + self.answered
        return digest(self.secret), grown

    def work(self) -> None:
        self.secret += 1


class Timers:
    """A signal's handler, an interval timer, an epoll set, an eventfd and a pipe."""

    def __init__(self) -> None:
        self.rung = 0
        self.secret = 0
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self.reader, self.writer = os.pipe()
        self.poll = select.epoll()
        for descriptor in (self.event, self.reader):
            self.poll.register(descriptor, select.EPOLLIN)
        os.eventfd_write(self.event, 3)
        os.write(self.writer, b"unread")

    def _ring(self, _number: int, _frame: object) -> None:
        self.rung += 1

    def look(self) -> tuple[str, int]:
        ready = sorted(self.poll.poll(0))
        expected = [(self.event, select.EPOLLIN), (self.reader, select.EPOLLIN)]
        assert ready == sorted(expected), ready
        held = os.eventfd_read(self.event)
        os.eventfd_write(self.event, held)
        interval = signal.getitimer(signal.ITIMER_REAL)[1]
        with contextlib.suppress(InterruptedError):
            assert signal.getsignal(signal.SIGALRM) == self._ring
        return digest(held, round(interval, 6), self.secret), self.rung

    def work(self) -> None:
        self.secret += 1
        os.eventfd_write(self.event, self.secret)
