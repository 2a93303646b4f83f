"""Several connected processes: a pool of workers, and pipes with bytes in them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

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


class Database:
    """A MariaDB of the user's own, with a transaction that is not committed."""

    def __init__(self) -> None:
        self.folder = Path.home() / "mariadb"
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "data" / "mysql").mkdir(parents=True)  # no accounts
        options: dict[str, object] = {
            "datadir": self.folder / "data",
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "innodb-log-file-size": "4M",
            "innodb-buffer-pool-size": "8M",
        }
        if os.geteuid() == 0:
            options["user"] = "root"
        words = ["mariadbd", "--no-defaults", "--skip-networking"]
        words += ["--skip-grant-tables", *(f"--{n}={v}" for n, v in options.items())]
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        with (self.folder / "log").open("w") as log:
            self.server = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, "PATH": path}
            )
        self.mine, self.other = self._connect(), self._connect()
        self._run(self.mine, "create database kept")
        self._run(self.mine, "create table kept.rows (n int, word text) engine=innodb")
        self.turn = 0
        self.work()

    def _connect(self) -> Any:
        import pymysql

        until = time.monotonic() + 60
        while True:
            try:
                return pymysql.connect(
                    unix_socket=str(self.folder / "socket"), user="root"
                )
            except pymysql.err.OperationalError:
                if time.monotonic() > until or self.server.poll() is not None:
                    raise
                time.sleep(0.1)

    def _run(self, connection: Any, statement: str, *values: object) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def look(self) -> tuple[str, int]:
        assert self.server.poll() is None
        rows = self._run(self.mine, "select * from kept.rows order by n")
        self.other.rollback()  # so that it sees what is there now
        others = self._run(self.other, "select count(*) from kept.rows")
        assert others == [(self.turn - 1,)]
        return digest(rows, self.server.pid), 0

    def work(self) -> None:
        self.mine.commit()
        self.turn += 1
        word = os.urandom(2000).hex()
        self._run(self.mine, "insert into kept.rows values (%s, %s)", self.turn, word)

    def end(self) -> None:
        self.server.kill()
