"""Files that are open, locked, deleted or mapped, and databases in a transaction."""

from __future__ import annotations

import fcntl
import mmap
import os
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

from soak.zoo.keeper import digest


class Transactions:
    """Two sqlite databases, each with rows that are not committed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=Path.home()))
        self.open = [self._make(mode) for mode in ("delete", "wal")]
        self.turn = 0
        self._begin()

    def _make(self, mode: str) -> sqlite3.Connection:
        made = sqlite3.connect(self.folder / f"{mode}.sqlite", isolation_level=None)
        made.execute(f"PRAGMA journal_mode = {mode}")
        made.execute("CREATE TABLE kept (number INTEGER, text TEXT)")
        return made

    def _begin(self) -> None:
        for one in self.open:
            one.execute("BEGIN IMMEDIATE")
            for number in range(100):
                text = os.urandom(20).hex()
                one.execute("INSERT INTO kept VALUES (?, ?)", (number, text))

    def look(self) -> tuple[str, int]:
        held: list[object] = []
        for one in self.open:
            assert one.in_transaction
            held += one.execute("SELECT * FROM kept ORDER BY rowid")
        for mode in ("delete", "wal"):
            with sqlite3.connect(self.folder / f"{mode}.sqlite") as other:
                count = other.execute("SELECT count(*) FROM kept").fetchone()[0]
                assert count == self.turn * 100, count
            other.close()
        return digest(held), 0

    def work(self) -> None:
        for one in self.open:
            one.execute("COMMIT")
        self.turn += 1
        self._begin()


class Unnamed:
    """Files that never had a name."""

    MAKE = (tempfile.TemporaryFile, partial(tempfile.SpooledTemporaryFile, 1))

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=Path.home()))
        self.files = [make(dir=self.folder) for make in self.MAKE]
        unnamed = os.open(self.folder, os.O_TMPFILE | os.O_RDWR)
        self.files.append(os.fdopen(unnamed, "w+b"))
        for one in self.files:
            one.write(os.urandom(100_000))
        self.work()

    def look(self) -> tuple[str, int]:
        at = [one.tell() for one in self.files]
        held = []
        for one, position in zip(self.files, at, strict=True):
            one.seek(0)
            held.append(one.read())
            one.seek(position)
        return digest(*held, at, sorted(self.folder.iterdir())), 0

    def work(self) -> None:
        for one in self.files:
            one.write(os.urandom(5000))
            one.flush()
            one.seek(-1000, os.SEEK_CUR)


class Files:
    """Written half, deleted but open, locked, mapped, and shared with a child."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=Path.home()))
        self.log = (self.folder / "log").open("a+b")
        self.ghost = (self.folder / "ghost").open("w+b")
        self.ghost.write(os.urandom(2 << 20))
        self.ghost.flush()
        (self.folder / "ghost").unlink()
        self.locked = (self.folder / "locked").open("wb")
        fcntl.flock(self.locked, fcntl.LOCK_EX)
        mapped = (self.folder / "mapped").open("w+b")
        mapped.write(bytes(1 << 20))
        mapped.flush()
        self.map = mmap.mmap(mapped.fileno(), 0)
        self.buffered = (self.folder / "buffered").open("w")
        self.turn = 0
        self.work()

    def look(self) -> tuple[str, int]:
        self.ghost.seek(0)
        with (self.folder / "locked").open("rb") as again:
            try:
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                raise AssertionError("the lock is gone")
        at = self.log.tell()
        return digest(self.ghost.read(), self.map[:], at, self.turn), 0

    def work(self) -> None:
        self.turn += 1
        self.log.write(b"a line\n")
        self.log.flush()
        self.map[self.turn * 64 % len(self.map)] = self.turn % 256
        self.buffered.write("not on the disk yet")
