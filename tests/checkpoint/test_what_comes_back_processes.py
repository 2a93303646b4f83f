"""Every row of ``kinds.processes``, with real CRIU."""

import json
import os
import re

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from tests.checkpoint.kinds.processes import KINDS, ProcessKind

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of x86"),
    pytest.mark.skipif(
        tuple(map(int, os.uname().release.split(".")[:2])) < (6, 18),
        reason="some rows need Linux 6.18",
    ),
]

#: Starts programs and tells what they have printed.
RUNNER = """
import subprocess, sys
programs = {}

def begin(number, file, out):
    programs[number] = subprocess.Popen(
        [sys.executable, "-I", "-S", file],
        stdin=subprocess.PIPE,
        stdout=open(out, "w"),
        stderr=subprocess.STDOUT,
    )
    return programs[number].pid

def go_on(number):
    try:
        programs[number].stdin.write(b"\\n")
        programs[number].stdin.close()
    except BrokenPipeError:
        pass  # what it has printed says why it has ended
"""


class Rows:
    def __init__(self, world, folder, kinds: list[ProcessKind]) -> None:
        self.world = world
        self.kinds = kinds
        self.folder = folder
        world(RUNNER)
        self.pids = [self._begin(number) for number in range(len(kinds))]

    def _begin(self, number: int) -> int:
        file = self.folder / f"{number}.py"
        file.write_text(self.kinds[number].program)
        return self.world(f"begin({number}, {str(file)!r}, {str(self.out(number))!r})")

    def out(self, number: int):
        return self.folder / f"{number}.out"

    def lines(self, number: int) -> list[str]:
        return self.out(number).read_text().splitlines()

    def wait(self, count: int, wait_for) -> None:
        """Until each has printed so much, or something has gone wrong with it."""

        def done() -> bool:
            texts = [self.lines(number) for number in range(len(self.kinds))]
            return all(
                len(text) >= count or any("Error" in line for line in text)
                for text in texts
            )

        wait_for(done, 60)

    def seen(self, number: int) -> list[object]:
        try:
            return [json.loads(line) for line in self.lines(number)]
        except ValueError:
            return [self.out(number).read_text()]


def of(outcome: str) -> list[ProcessKind]:
    return [one for one in KINDS if one.outcome == outcome and one.program]


def test_what_is_kept_is_seen_again_and_what_is_lost_is_not(
    places, engine, wait_for, tmp_path
):
    rows = Rows(places.world(), tmp_path, of("kept") + of("lost"))
    rows.wait(1, wait_for)
    tree = rows.world.place.tree
    assert preflight.examine(rows.world.place.init_pid, tree) == []
    rows.world = engine.cycle(rows.world, places)
    for number in range(len(rows.kinds)):
        rows.world(f"go_on({number})")
    rows.wait(2, wait_for)
    wrong = {}
    for number, kind in enumerate(rows.kinds):
        seen = rows.seen(number)
        same = len(seen) == 2 and seen[0] == seen[1]
        if len(seen) != 2 or (kind.outcome == "kept" and not same):
            wrong[kind.name] = seen
    assert wrong == {}


def test_what_is_refused_is_found_before_anything_is_touched(
    places, wait_for, tmp_path
):
    # Whether it is confined is asked when it stands: test_inherited.py.
    kinds = [one for one in of("refused") if one.name != "Landlock"]
    rows = Rows(places.world(), tmp_path, kinds)
    rows.wait(1, wait_for)
    tree = rows.world.place.tree
    found = preflight.examine(rows.world.place.init_pid, tree)
    parents = {one.ns_pid: one for one in tree.processes}
    hosts = {one.pid: one.ns_pid for one in tree.processes}
    told: dict[int, set[str]] = {pid: set() for pid in rows.pids}
    for one in found:
        pid = int(re.match(r"Process (\d+) ", one.message)[1])
        if pid not in told:  # what a row's child is told of is the row's
            pid = hosts[parents[pid].ppid]
        told[pid].add(one.code)
    assert {
        kind.name: told[pid] for kind, pid in zip(kinds, rows.pids, strict=True)
    } == {kind.name: {kind.code} for kind in kinds}
    for number in range(len(kinds)):
        rows.world(f"go_on({number})")
    rows.wait(2, wait_for)


def test_every_row_has_a_name_of_its_own():
    names = [one.name for one in KINDS]
    assert len(set(names)) == len(names)
