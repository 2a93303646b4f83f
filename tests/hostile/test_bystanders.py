"""What lives in a session's pid namespace beside its tree does nothing while CRIU does.

As ``docker exec`` leaves it there, or another container that shares the namespace: root
with every capability, who kills what he finds, writes into its memory and lets the
stopped go on.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.linux import cgroups, processes

#: Acts against everybody but the init and himself, as quickly as he can.
ATTACKER = """
import os, signal, sys
known = {1, os.getpid(), *map(int, sys.argv[2:])}
def strangers():
    return [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) not in known]
def write(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "wb", 0) as mem:
        for line in maps:
            if " rw" in line:
                mem.seek(int(line.split("-")[0], 16))
                mem.write(b"\\xcc" * 4096)
act = {"kills": lambda pid: os.kill(pid, signal.SIGKILL), "writes": write,
       "wakes": lambda pid: os.kill(pid, signal.SIGCONT)}[sys.argv[1]]
print("up", flush=True)
tree = known - {1, os.getpid()}
while True:
    for pid in tree if sys.argv[1] == "wakes" else strangers():
        try:
            act(pid)
        except OSError:
            pass
"""


class Beside:
    """A program in the namespaces of a place, beside its tree."""

    def __init__(self, place, *command: str) -> None:
        known = [str(one.ns_pid) for one in place.tree.processes]
        self.popen = subprocess.Popen(
            [
                *("nsenter", "-t", str(place.init_pid), "-p", "-m"),
                *(sys.executable, "-I", "-S", "-c", *command, *known),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout.readline() == "up\n"
        (self.pid,) = processes.families()[self.popen.pid]

    @property
    def state(self) -> str:
        text = (processes.procfs.PROC / str(self.pid) / "stat").read_text()
        return text.rpartition(")")[2].split()[0]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            # It stops together with the program that it has started.
            self.popen.send_signal(signal.SIGCONT)
        self.popen.communicate(timeout=20)


@pytest.fixture
def beside():
    made = []

    def start(place, *command: str) -> Beside:
        made.append(Beside(place, *command))
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.mark.parametrize("what", ["kills", "writes", "wakes"])
def test_attacker_beside_the_tree_stands_while_criu_works(
    places, engine, beside, wait_for, what
):
    world = places.world()
    world("data = os.urandom(3 << 20); right = data[::7]; 1")
    attacker = beside(world.place, ATTACKER, what)
    image, states = engine.image(), []

    def sink(name):
        states.append(attacker.state)
        return image.sink(name)

    result = engine.dump(world.place, sink)
    assert set(states) == {"T"}
    assert {one.state for one in world.place.tree.processes} == {"T"}
    thaw(world.place.tree, result.stopped)
    wait_for(lambda: attacker.state != "T")
    assert world("data[::7] == right")
    attacker.end()
    world.place.kill()

    place = places.hold()
    attacker = beside(place, ATTACKER, what)
    states.clear()

    class Source(type(image)):
        def stream(self, name, skip=()):
            states.append(attacker.state)
            return super().stream(name, skip)

    restored = engine.restore(place, Source(image), result)
    # The plan is made before anything is begun.
    assert states[-1] == "T"
    assert attacker.state == "T"
    attacker.end()
    proceed(restored, result.stopped)
    assert world.at(place)("data[::7] == right")


def test_tree_stands_before_anything_of_ours_enters(places, engine):
    world = places.world()
    world("child = subprocess.Popen(['sleep', '1000']); 1")
    states = set()

    def prepare(helper):
        states.update(one.state for one in world.place.tree.processes)

    result = engine.dump(world.place, engine.image().sink, prepare=prepare)
    assert states == {"T"}
    thaw(world.place.tree, result.stopped)
    assert world("child.poll()") is None


def test_thaw_leaves_a_bystander_stopped_that_was(places, engine, beside, wait_for):
    world = places.world()
    sleeps = "print('up', flush=True); import time; time.sleep(1000)"
    stopped, running = (beside(world.place, sleeps) for _ in range(2))
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_for(lambda: stopped.state == "T")
    result = engine.dump(world.place, engine.image().sink)
    assert running.state == "T"
    thaw(world.place.tree, result.stopped)
    wait_for(lambda: running.state != "T")
    assert stopped.state == "T"


def test_restore_that_fails_lets_bystanders_go_on(places, engine, beside, wait_for):
    world = places.world()
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    world.place.kill()
    place = places.hold()
    one = beside(place, "print('up', flush=True); import time; time.sleep(1000)")
    del image["inventory.img"]
    with pytest.raises(ReclaimError):
        engine.restore(place, image, result)
    wait_for(lambda: one.state != "T")


#: Each of them is gone before anybody can look at it twice.
BOMB = """
import os
def go():
    if os.fork() == 0:
        while True:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                pass
for _ in range(3): go()
"""


@pytest.fixture
def few_processes(wait_for):
    """A control group of 1,000: else a bomb takes the pids of the whole machine.

    Those that have ended count until their init, which waits for a processor, too, has
    looked at them.
    """
    parents = [g for g in cgroups.groups_of(os.getpid()) if "pids" in g.controllers]
    if not parents or not os.access(parents[0].folder, os.W_OK):
        pytest.skip("needs a control group that may be divided, for pids")
    [group] = cgroups.create(parents, f"gpu-reclaim-test-{os.getpid()}")
    (group.folder / "pids.max").write_text("1000")
    yield group
    wait_for(lambda: not (group.folder / "cgroup.procs").read_text())
    group.folder.rmdir()


def test_fork_bomb_is_refused_in_time_and_goes_on(few_processes, places):
    """Or stopped, where the machine is quick enough: but not waited for any longer."""
    world = places.world()
    cgroups.take(few_processes, world.place.tree.server.pid)
    world(BOMB)
    begun = time.monotonic()
    with contextlib.suppress(ReclaimError):
        freeze.freeze(world.place.init_pid, world.place.init_start, timeout=1.0)
    assert time.monotonic() - begun < 30
    thaw(world.place.tree)
    assert world("1 + 1") == 2
