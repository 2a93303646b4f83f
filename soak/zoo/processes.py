"""Several connected processes: a pool of workers, and pipes with bytes in them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from multiprocessing import shared_memory
from pathlib import Path

from soak.zoo.keeper import digest


def _hold(state: dict[int, int], number: int) -> tuple[int, int]:
    """Keep a number in a worker; who it is, and what it has kept so far."""
    state[number] = state.get(number, 0) + 1
    return os.getpid(), sum(state.values())


def _work(tasks: multiprocessing.Queue, answers: multiprocessing.Queue) -> None:
    state: dict[int, int] = {}
    while (number := tasks.get()) is not None:
        answers.put(_hold(state, number))


class Workers:
    """Forked workers with queues, semaphores and shared memory in /dev/shm."""

    COUNT = 2

    def __init__(self) -> None:
        forks = multiprocessing.get_context("fork")
        self.answers = forks.Queue()
        self.tasks = [forks.Queue() for _ in range(self.COUNT)]
        self.shared = shared_memory.SharedMemory(create=True, size=4 << 20)
        self.shared.buf[:] = os.urandom(self.shared.size)
        self.semaphore = forks.BoundedSemaphore(3)
        self.semaphore.acquire()
        self.processes = [
            forks.Process(target=_work, args=(tasks, self.answers), daemon=True)
            for tasks in self.tasks
        ]
        for process in self.processes:
            process.start()
        self.turn = 0

    def look(self) -> tuple[str, int]:
        assert all(process.is_alive() for process in self.processes)
        for tasks in self.tasks:
            tasks.put(1)
        told = sorted(self.answers.get(timeout=30) for _ in self.processes)
        pids = [process.pid for process in self.processes]
        assert sorted(pids) == [pid for pid, _ in told]
        grown = sum(kept for _, kept in told)
        held = digest(self.shared.buf, pids, self.semaphore.get_value(), self.turn)
        return held, grown

    def work(self) -> None:
        self.turn += 1
        at = self.turn * 4096 % self.shared.size
        self.shared.buf[at : at + 16] = os.urandom(16)

    def end(self) -> None:
        self.shared.unlink()


class Pipes:
    """A program at two pipes, a shell's pipeline, and bytes that nobody has read."""

    SIZE = 40_000

    def __init__(self) -> None:
        self.cat = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.line = subprocess.Popen(
            ["sh", "-c", "while sleep 0.1; do echo x; done | tr x y | cat >/dev/null"]
        )
        self.fifo = Path.home() / "fifo"
        self.fifo.unlink(missing_ok=True)
        os.mkfifo(self.fifo)
        self.end = os.open(self.fifo, os.O_RDWR)
        os.write(self.end, b"nobody has read this")
        self.work()

    def look(self) -> tuple[str, int]:
        assert self.cat.stdout
        assert self.line.poll() is None
        held = b""
        while len(held) < self.SIZE:
            held += os.read(self.cat.stdout.fileno(), self.SIZE - len(held))
        self._send(held)
        waiting = os.read(self.end, 100)
        os.write(self.end, waiting)
        return digest(held, waiting, self.cat.pid, self.line.pid), 0

    def work(self) -> None:
        if hasattr(self, "_filled"):
            assert self.cat.stdout
            left = self.SIZE
            while left:
                left -= len(os.read(self.cat.stdout.fileno(), left))
        self._send(os.urandom(self.SIZE))
        self._filled = True

    def _send(self, data: bytes) -> None:
        assert self.cat.stdin
        os.write(self.cat.stdin.fileno(), data)
