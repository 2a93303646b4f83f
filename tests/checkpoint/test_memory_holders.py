"""Whose memory is open while CRIU works: the session's own, not one with its number."""

import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from tests.checkpoint.conftest import Image

#: Has opened the memory of that process, or of itself, and is not root.
HOLDER = """
import ctypes, os, sys
before = [open(name, "rb") for name in sys.argv[1:]]
os.setgroups([]), os.setgid(65534), os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
held = before or [open(f"/proc/{os.getpid()}/mem", "rb")]
print(held[0].name, flush=True)
sys.stdin.read()
"""
#: With a number of its own choice in a pid namespace of its own.
NUMBERED = """
echo "$1" > /proc/sys/kernel/ns_last_pid; shift; exec 3<&0; "$@" <&3 & wait
"""


@pytest.fixture
def holder():
    started = []

    def holder(*before: str, names: tuple[str, ...] = ()) -> str:
        line = [*before, sys.executable, "-I", "-S", "-c", HOLDER, *names]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(line, **pipes, text=True))
        return started[-1].stdout.readline().strip()

    yield holder
    for one in started:
        one.communicate()


def test_program_elsewhere_with_the_number_of_one_of_the_session_is_no_holder(
    places, engine, holder
):
    """As two users' Julia kernels have, each in a container of its own."""
    world = places.world()
    number = world.place.tree.processes[0].ns_pid
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    name = holder(*own, "sh", "-c", NUMBERED, "sh", str(number - 1))
    assert name == f"/proc/{number}/mem"
    result = engine.dump(world.place, Image().sink)
    thaw(world.place.tree, result.stopped)
    assert world("1 + 1") == 2


def test_program_elsewhere_that_has_memory_of_the_session_open_is_named(
    places, engine, holder
):
    world = places.world()
    holder(names=(f"/proc/{world.place.tree.processes[0].pid}/mem",))
    with pytest.raises(ReclaimError) as caught:
        engine.dump(world.place, Image().sink)
    assert "(python) has its memory open" in str(caught.value)
    assert world("1 + 1") == 2
