"""Every kind of memory that Linux has: kept, refused before, or lost and listed.

All programs of one outcome live in one session, so that it takes seconds.
"""

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from tests.checkpoint.kinds.memory import KINDS, PRELUDE
from tests.support.long_stories import but

#: In the session: starts a program, reads what it sees, and asks it again.
RUNNER = """
programs = {}
def begin(name, program):
    programs[name] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
def seen(name):
    return programs[name].pid, programs[name].stdout.readline().strip()
def ask(name):
    programs[name].stdin.write("\\n")
    programs[name].stdin.flush()
    return seen(name)[1]
"""


def rows(*outcomes: str):
    return [one for one in KINDS if one.program and one.outcome in outcomes]


def begin(places, kinds) -> tuple[object, dict[str, str], dict[int, str]]:
    """A session in which their programs run; what each sees; whose pid is whose."""
    world = places.world()
    world(RUNNER)
    for one in kinds:
        world(f"begin({one.name!r}, {PRELUDE + one.program!r})")
    before, names = {}, {}
    for one in kinds:
        pid, said = world(f"seen({one.name!r})")
        if not said.startswith("not here"):
            before[one.name], names[pid] = said, one.name
    return world, before, names


@pytest.mark.parametrize("generations", but([1, 2], 1))
def test_what_is_kept_comes_back_and_what_is_lost_is_known(places, engine, generations):
    world, before, names = begin(places, rows("kept", "lost"))
    assert all(before.values())
    found = preflight.examine(world.place.init_pid, world.place.tree)
    assert [(one.message, names) for one in found] == []
    lost = {one.name for one in rows("lost")}
    for _ in range(generations):
        world = engine.cycle(world, places)
        after = {name: world(f"ask({name!r})") for name in before}
        wrong = {
            name: (said, after[name])
            for name, said in before.items()
            if (said == after[name]) == (name in lost)
        }
        assert not wrong, "\n".join(f"{name}: {both}" for name, both in wrong.items())


def test_what_is_refused_is_refused_before_anything_is_touched(places):
    world, _, names = begin(places, rows("refused"))
    found = preflight.examine(world.place.init_pid, world.place.tree)
    told = {int(one.message.split()[1]) for one in found if one.fatal}
    assert {name for pid, name in names.items() if pid not in told} == set()


@pytest.mark.parametrize(
    "one", [one for one in KINDS if one.program], ids=lambda one: one.name
)
def test_program_of_the_table_can_be_read(one):
    compile(PRELUDE + one.program, one.name, "exec")
