"""Saved again and again while everything in it is at work: nothing of that notices.

``GPU_RECLAIM_SAVES=100`` saves it that often; ``docs/explanation/save-points.md`` has
what was measured so.
"""

import hashlib
import itertools
import os
import sqlite3
import statistics
import time
from contextlib import closing

import pytest

from tests.node.test_save import Counted
from tests.support.agent import wait_for

#: How often it is saved.
SAVES = int(os.environ.get("GPU_RECLAIM_SAVES", "6"))
#: Of the file that is downloaded meanwhile.
LARGE = 64 << 20
#: A cell that counts until it is told that it is enough.
COUNTS = """
import itertools, os, time
for number in itertools.count():
    if os.path.exists("enough"):
        break
    print(number, flush=True)
    time.sleep(0.01)
"""
#: A thread that adds to a transaction which nobody commits yet.
INSERTS = """
import itertools, os, sqlite3, threading, time
db = sqlite3.connect("rows.db", isolation_level=None, check_same_thread=False)
db.execute("CREATE TABLE rows (number INTEGER, square TEXT)")
db.execute("BEGIN")
def insert():
    for number in itertools.count():
        if os.path.exists("enough"):
            return
        db.execute("INSERT INTO rows VALUES (?, ?)", (number, str(number * number)))
        time.sleep(0.005)
inserting = threading.Thread(target=insert)
inserting.start()
"""
#: A program of its own that writes a running sum.
SUMS = """
import itertools, os, time
total = 0
with open("sums", "w") as file:
    for number in itertools.count():
        if os.path.exists("enough"):
            break
        total += number
        print(number, total, file=file, flush=True)
        time.sleep(0.005)
"""


class Working:
    """A session in which all of these work at once, until it is enough."""

    def __init__(self, server) -> None:
        self.server = server
        self.home = server.home
        (self.home / "large").write_bytes(os.urandom(LARGE))
        self.kernel = server.start_kernel("database.ipynb")
        server.run(self.kernel, INSERTS)
        (self.home / "sums.py").write_text(SUMS)
        start = "import subprocess, sys; program = subprocess.Popen([sys.executable, "
        server.run(self.kernel, start + "'sums.py'])")
        self.counted = Counted(server, server.start_kernel("count.ipynb"), COUNTS)
        self.counted.start()

    def go_on(self) -> None:
        """Wait until what counts, and what sums up, have done so once more."""
        text, sums = len(self.counted.text), self._sums().stat().st_size
        wait_for(lambda: len(self.counted.text) > text)
        wait_for(lambda: self._sums().stat().st_size > sums)

    def end(self) -> None:
        """It is enough; see that each has come to its end whole."""
        (self.home / "enough").touch()
        self.counted.join(60)
        assert self.counted.failure is None, self.counted.failure
        words = self.counted.text.split()
        assert words == [str(number) for number in range(len(words))]
        assert self.server.run(self.counted.kernel, "number") == str(len(words))
        assert self.server.run(self.kernel, "program.wait()") == "0"
        self._see_sums()
        self._see_rows()

    def _sums(self):
        path = self.home / "sums"
        wait_for(path.exists)
        return path

    def _see_sums(self) -> None:
        lines = [line.split() for line in self._sums().read_text().splitlines()]
        expected = itertools.accumulate(range(len(lines)))
        assert lines == [[str(n), str(total)] for n, total in enumerate(expected)]

    def _see_rows(self) -> None:
        """Nobody sees any before they are committed, all of them after that."""
        with closing(sqlite3.connect(self.home / "rows.db")) as outside:
            assert outside.execute("SELECT count(*) FROM rows").fetchone() == (0,)
            self.server.run(self.kernel, "inserting.join(); db.execute('COMMIT')")
            rows = outside.execute("SELECT * FROM rows ORDER BY number").fetchall()
            assert outside.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(rows) > SAVES
        assert rows == [(number, str(number * number)) for number in range(len(rows))]


@pytest.mark.long
@pytest.mark.timeout(60 + 10 * SAVES)
def test_session_at_work_is_saved_again_and_again_and_loses_nothing(agent, jupyter):
    server = jupyter()
    working = Working(server)
    expected = hashlib.sha256((server.home / "large").read_bytes()).hexdigest()
    got, infos, began = hashlib.sha256(), [], time.monotonic()
    with server.client.stream("GET", "files/large", timeout=60) as download:
        parts = download.iter_bytes(LARGE // (2 * SAVES))
        for number in range(1, SAVES + 1):
            got.update(next(parts))
            saved = agent.save(server.place, f"cp-{number}", number)
            assert saved[-1].get("checkpoint"), saved[-1]
            infos.append(saved[-1]["checkpoint"])
            working.go_on()
            # As the service does with those that are superseded.
            agent.post(f"/v1/checkpoints/cp-{number - 1}/discard").raise_for_status()
        took = time.monotonic() - began
        for part in parts:
            got.update(part)
    assert got.hexdigest() == expected
    working.end()
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == [f"cp-{SAVES}"]
    tell(infos, took)
    first, *others = infos
    assert all(one["stored_bytes"] < 0.5 * first["stored_bytes"] for one in others)


def tell(infos, took: float) -> None:
    still = [info["frozen_seconds"] for info in infos]
    stored = [info["stored_bytes"] / (1 << 20) for info in infos]
    whole = infos[-1]["logical_bytes"] / (1 << 20)
    print(
        f"{len(infos)} saves in {took:.1f} s: stood still {statistics.median(still)} s,"
        f" at most {max(still)} s; stored {stored[0]:.1f} MiB, then"
        f" {statistics.median(stored[1:]):.1f} MiB, at most {max(stored[1:]):.1f} MiB"
        f" of {whole:.0f} MiB"
    )
