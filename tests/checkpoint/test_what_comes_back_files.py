"""Every kind of open file: kept, refused before it is touched, or told as lost."""

from jupyterhub_gpu_reclaim.checkpoint import preflight
from tests.checkpoint.kinds.files import KINDS

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


def of_outcome(*outcomes):
    return [kind for kind in KINDS if kind.outcome in outcomes and kind.program]


def test_what_is_kept_and_what_is_lost(places, engine, tmp_path):
    kinds = of_outcome("kept", "lost")
    world = places.world()
    before = seen(begin(world, tmp_path / "rows", kinds))
    failed = [n for n, line in before.items() if line.startswith("('failed'")]
    assert not [kinds[n].name + before[n] for n in failed if OLDER not in before[n]]
    tree = world.place.tree
    assert preflight.examine(world.place.init_pid, tree) == []
    world = engine.cycle(world, places)
    world("go_on()")
    after = seen(world("said()"))
    wrong = {
        kind.name: (before[number], after[number])
        for number, kind in enumerate(kinds)
        if number not in failed
        and (before[number] == after[number]) != (kind.outcome == "kept")
    }
    assert wrong == {}


def test_what_is_refused_is_found_before_anything_is_touched(places, tmp_path):
    kinds = of_outcome("refused")
    world = places.world()
    said = begin(world, tmp_path / "rows", kinds)
    found = preflight.examine(world.place.init_pid, world.place.tree)
    missed = [
        kinds[number].name
        for number, (pid, _) in said.items()
        if not any(f"Process {pid} " in one.message and one.fatal for one in found)
    ]
    assert missed == []
