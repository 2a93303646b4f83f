"""Every kind of file, socket and option: kept, refused before, or told as lost."""

import ast

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from tests.checkpoint.kinds import files, sockets

#: What a program says that asks for something which this kernel does not have yet.
OLDER = "OSError(22,"

#: Runs each program in a process and a folder of its own.
RUN = """
import signal
children = {{}}

def begin(number, program):
    into, out = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(into[0], 0); os.dup2(out[1], 1)
        os.closerange(3, 1000)
        os.mkdir(f"{folder}/{{number}}"); os.chdir(f"{folder}/{{number}}")
        sys.stdin = open(0, closefd=False); sys.stdout = open(1, "w", closefd=False)
        code = 1
        try:
            exec(compile(program, "program", "exec"), {{"__name__": "__main__"}})
            code = 0
        except BaseException as error:
            print(("failed", repr(error)), flush=True)
        finally:
            os._exit(code)
    os.close(into[0]); os.close(out[1])
    children[number] = (pid, open(into[1], "w"), open(out[0]))

def said():
    return {{number: (pid, lines.readline().strip())
            for number, (pid, _, lines) in children.items()}}

def go_on():
    for _, lines, _ in children.values():
        print(file=lines, flush=True)
"""


def begin(world, folder, kinds):
    """What each program has seen, by its number; and its pid in the session."""
    folder.mkdir()
    world(RUN.format(folder=folder))
    for number, kind in enumerate(kinds):
        world(f"begin({number}, {kind.program!r})")
    return world("said()")


def seen(said):
    return {number: line for number, (_, line) in said.items()}


def failed_of(before):
    """The numbers of those that ask for something which is not there yet."""
    failed = {n: line for n, line in before.items() if line.startswith("('failed'")}
    assert [line for line in failed.values() if OLDER not in line] == []
    return failed


def of_outcome(table, *outcomes):
    return [one for one in table.KINDS if one.outcome in outcomes and one.program]


def difference(before, after):
    """Of many options those that differ."""
    if not before.startswith("{"):
        return before, after
    had, has = ast.literal_eval(before), ast.literal_eval(after)
    return {key: (had[key], has[key]) for key in had if had[key] != has[key]}


@pytest.mark.parametrize("table", [files, sockets])
def test_what_is_kept_and_what_is_lost(places, engine, tmp_path, table):
    kinds = of_outcome(table, "kept", "lost")
    world = places.world()
    before = seen(begin(world, tmp_path / "rows", kinds))
    failed = failed_of(before)
    tree = world.place.tree
    assert preflight.examine(world.place.init_pid, tree) == []
    world = engine.cycle(world, places)
    world("go_on()")
    after = seen(world("said()"))
    wrong = {
        kind.name: difference(before[number], after[number])
        for number, kind in enumerate(kinds)
        if number not in failed
        and (before[number] == after[number]) != (kind.outcome == "kept")
    }
    assert wrong == {}


@pytest.mark.parametrize("table", [files, sockets])
def test_what_is_refused_is_found_before_anything_is_touched(places, tmp_path, table):
    kinds = of_outcome(table, "refused")
    world = places.world()
    said = begin(world, tmp_path / "rows", kinds)
    failed_of(seen(said))
    found = preflight.examine(world.place.init_pid, world.place.tree)
    missed = [
        kinds[number].name
        for number, (pid, _) in said.items()
        if not any(f"Process {pid} " in one.message and one.fatal for one in found)
    ]
    assert missed == []
