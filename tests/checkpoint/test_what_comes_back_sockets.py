"""Every kind of socket and option: kept, refused before anything, or told as lost."""

import ast

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from tests.checkpoint.kinds.sockets import KINDS

#: Runs each program in a process and a folder of its own.
RUN = """
children = {{}}

def begin(number, program):
    into, out = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(into[0], 0); os.dup2(out[1], 1)
        os.closerange(3, 1000)
        os.mkdir(f"{folder}/{{number}}"); os.chdir(f"{folder}/{{number}}")
        sys.stdin = open(0, closefd=False); sys.stdout = open(1, "w", closefd=False)
        try:
            exec(compile(program, "program", "exec"), {{"__name__": "__main__"}})
        except BaseException as error:
            print("failed", repr(error), flush=True)
        finally:
            os._exit(0)
    os.close(into[0]); os.close(out[1])
    children[number] = (pid, open(into[1], "w"), open(out[0]))

def said():
    return {{number: (pid, lines.readline().strip())
            for number, (pid, _, lines) in children.items()}}

def go_on():
    for _, lines, _ in children.values():
        print(file=lines, flush=True)
"""


def begun(world, folder, kinds):
    """What each program has seen, and its pid in the session, by its number."""
    folder.mkdir()
    world(RUN.format(folder=folder))
    for number, kind in enumerate(kinds):
        world(f"begin({number}, {kind.program!r})")
    said = world("said()")
    failed = {kinds[n].name: line for n, (_, line) in said.items() if "failed" in line}
    assert failed == {}
    return said


def difference(before, after):
    """Of many options those that differ."""
    had, has = ast.literal_eval(before), ast.literal_eval(after)
    if isinstance(had, dict):
        return {key: (had[key], has[key]) for key in had if had[key] != has[key]}
    return had, has


def come_back(place, places, engine):
    """As the agent does it: what leads out is forgotten, and the ports are free."""
    image = engine.image()
    result = engine.dump(place, image.sink)
    pids = [process.pid for process in place.tree.processes]
    inet.reset_all(place.init_pid, pids)
    place.kill()
    holding = places.hold()
    restored = engine.restore(holding, image, result)
    proceed(restored, result.stopped)
    return holding


def test_what_is_kept_comes_back_equal_and_what_is_lost_does_not(
    places, engine, tmp_path
):
    kinds = [kind for kind in KINDS if kind.outcome != "refused" and kind.program]
    world = places.world()
    before = begun(world, tmp_path / "rows", kinds)
    assert preflight.examine(world.place.init_pid, world.place.tree) == []
    place = come_back(world.place, places, engine)
    world = world.at(place)
    world("go_on()")
    after = world("said()")
    wrong = {
        kind.name: difference(before[number][1], after[number][1])
        for number, kind in enumerate(kinds)
        if (before[number][1] == after[number][1]) != (kind.outcome == "kept")
    }
    assert not wrong, "\n".join(map(str, wrong.items()))


def test_what_is_refused_is_found_before_anything_is_touched(places, tmp_path):
    kinds = [kind for kind in KINDS if kind.outcome == "refused" and kind.program]
    world = places.world()
    said = begun(world, tmp_path / "rows", kinds)
    found = preflight.examine(world.place.init_pid, world.place.tree)
    told = " ".join(one.message for one in found)
    missing = [
        kinds[n].name for n, (pid, _) in said.items() if f"Process {pid} " not in told
    ]
    assert missing == []
