"""Every kind of the tables, with real CRIU: kept, refused before, or told as lost.

All programs of one outcome live in one session, so that it takes seconds.
"""

import ast
import os
import re

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from tests.checkpoint.kinds import files, memory, processes, sockets

LINUX = tuple(map(int, os.uname().release.split(".")[:2]))
OF_X86 = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of x86"),
    pytest.mark.skipif(LINUX < (6, 18), reason="some rows need Linux 6.18"),
]
TABLES = [files, sockets, memory, pytest.param(processes, marks=OF_X86)]

#: In the session: starts a program in a folder of its own, reads what it sees, and asks
#: it again.
RUNNER = """
programs, BEGIN = {}, '''
import sys
try:
    exec(compile(sys.argv.pop(), "program", "exec"), {"__name__": "__main__"})
except Exception as error:
    print(("failed", repr(error)), flush=True)
'''
def begin(folder, program):
    os.mkdir(folder)
    programs[folder] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BEGIN, program], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
def seen(folder):
    return programs[folder].pid, programs[folder].stdout.readline().strip()
def ask(folder):
    programs[folder].stdin.write("\\n")
    programs[folder].stdin.flush()
    return seen(folder)[1]
"""
#: What a program says that asks for something which this kernel does not have yet.
OLDER = ("('failed', \"OSError(22,", "not here")


class Rows:
    """Programs of a table in one session."""

    def __init__(self, world, folder, table, *outcomes: str) -> None:
        self.world = world
        self.table = table
        world(RUNNER)
        rows = [one for one in table.KINDS if one.program and one.outcome in outcomes]
        self.kinds = {f"{folder}/{number}": one for number, one in enumerate(rows)}
        for name, one in self.kinds.items():
            world(f"begin({name!r}, {one.program!r})")
        said = {name: world(f"seen({name!r})") for name in self.kinds}
        failed = {n for n, (_, line) in said.items() if line.startswith(OLDER)}
        self.before = {n: line for n, (_, line) in said.items() if n not in failed}
        self.pids = {n: pid for n, (pid, _) in said.items() if n not in failed}
        broken = [one for one in self.before.values() if "failed" in one or not one]
        assert broken == []

    def examine(self):
        tree = self.world.place.tree
        return preflight.examine(self.world.place.init_pid, tree)


def difference(before, after):
    """Of many options those that differ."""
    if not before.startswith("{") or not after.startswith("{"):
        return before, after
    had, has = ast.literal_eval(before), ast.literal_eval(after)
    return {key: (had[key], has.get(key)) for key in had if had[key] != has.get(key)}


@pytest.mark.parametrize("table", TABLES)
def test_what_is_kept_is_seen_again_and_what_is_lost_is_not(
    places, engine, tmp_path, table
):
    comes_back(places, engine, tmp_path, table, times=1)


@pytest.mark.long
def test_memory_comes_back_a_second_time(places, engine, tmp_path):
    comes_back(places, engine, tmp_path, memory, times=2)


def comes_back(places, engine, tmp_path, table, times):
    rows = Rows(places.world(), tmp_path, table, "kept", "lost")
    assert rows.examine() == []
    for _ in range(times):
        rows.world = engine.cycle(rows.world, places)
        wrong = {}
        for name, before in rows.before.items():
            kind, after = rows.kinds[name], rows.world(f"ask({name!r})")
            # What is lost of a process may be as it was.
            fits = kind.outcome == "lost" and (table is processes or before != after)
            if not after or not (fits or (before == after and kind.outcome == "kept")):
                wrong[kind.name] = difference(before, after)
        assert wrong == {}


@pytest.mark.parametrize("table", TABLES)
def test_what_is_refused_is_found_before_anything_is_touched(places, tmp_path, table):
    rows = Rows(places.world(), tmp_path, table, "refused")
    tree = rows.world.place.tree
    parents = {one.ns_pid: one for one in tree.processes}
    hosts = {one.pid: one.ns_pid for one in tree.processes}
    told: dict[int, set[str]] = {pid: set() for pid in rows.pids.values()}
    for one in rows.examine():
        pid = int(re.match(r"Process (\d+) ", one.message)[1])
        if pid not in told:  # what a row's child is told of is the row's
            pid = hosts[parents[pid].ppid]
        assert one.fatal
        told[pid].add(one.code)
    missed = {}
    for name, pid in rows.pids.items():
        kind, codes = rows.kinds[name], told[pid]
        # Whether it is confined is asked when it stands: test_inherited.py.
        if kind.code != "confined" and (
            not codes or {kind.code or min(codes)} != codes
        ):
            missed[kind.name] = codes
    assert missed == {}


@pytest.mark.parametrize("table", [files, sockets, memory, processes])
def test_every_row_has_a_name_of_its_own_and_can_be_read(table):
    assert len({one.name for one in table.KINDS}) == len(table.KINDS)
    for one in table.KINDS:
        compile(one.program, one.name, "exec")
