"""Dump, end, restore elsewhere: everything goes on. Real processes, real CRIU."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import processes, procfs

COUNTER = """
import sys, time
for number in range(10**9):
    # One piece, also where Python writes unbuffered: it may be stopped between two.
    print(f"count {number}\\n", end="", flush=True)
    time.sleep(0.02)
"""

#: A loopback connection with bytes on their way, in both directions.
TCP = """
one = socket.create_connection(listener2.getsockname())
two, _ = listener2.accept()
one.sendall(b"not read yet")
two.sendall(b"neither this")
"""

BASH = ("bash", "--norc", "--noprofile", "-i")

#: A terminal, for a job that Ctrl-Z stops and a program in the foreground.
_TERMINAL = """
pid, tty = pty.fork()
if pid == 0:
    os.environ.update(PS1="ready>", TERM="xterm", HISTFILE="")
    os.execvp(shell[0], list(shell))

def until(what, patience=10):
    data = b""
    while what.encode() not in data:
        if not select.select([tty], [], [], patience)[0]:
            return "TIMEOUT " + repr(data[-300:])
        data += os.read(tty, 65536)
    return data.decode(errors="replace")

def updates(count):
    while count and select.select([tty], [], [], 10)[0]:
        count -= 1
        os.read(tty, 65536)
        time.sleep(0.1)
    return count == 0

def type_in(text):
    os.write(tty, text.encode())

def begin_sleep():
    type_in("sleep 1000\\n")
    while subprocess.run(["pgrep", "-fx", "sleep 1000"], stdout=-3).returncode:
        time.sleep(0.02)
"""


def terminal(*shell: str) -> str:
    return f"shell = {shell}" + _TERMINAL


def test_cycle_counter_goes_on_with_same_pids_and_ends_on_sigterm(places, engine):
    place = places.start(sys.executable, "-c", COUNTER)
    printed = place.read_until("count 3\n")
    pids = [(p.ns_pid, p.name) for p in place.tree.processes]
    for _ in range(2):
        image = engine.image()
        result = engine.dump(place, image.sink)
        assert {p.state for p in place.tree.processes} == {"T"}
        place.kill()
        last = (printed + place.read_rest()).split()[-1]
        place = places.hold()
        restored = engine.restore(place, image, result)
        assert {p.state for p in place.tree.processes} == {"T"}
        proceed(restored, result.stopped)
        printed = place.read_until(f"count {int(last) + 5}\n")
        assert printed.splitlines()[0] == f"count {int(last) + 1}"
        assert [(p.ns_pid, p.name) for p in place.tree.processes] == pids
    os.kill(place.init_pid, signal.SIGTERM)
    assert place.wait() == 128 + signal.SIGTERM


#: A program whose parent ends at once, in the session of a leader of its own: what
#: ``!train &`` in a notebook leaves behind; a kernel leads its session.
ORPHANS = """
import contextlib

def leave_orphans(seconds):
    leader = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, time; subprocess.run(['sh', '-c',"
         f" 'sleep {seconds} & sleep {seconds} & exec 0<&-; echo']); time.sleep(2000)"],
        start_new_session=True, stdout=subprocess.PIPE)
    leader.stdout.readline()
    return leader

def asleep(seconds):
    found = subprocess.run(
        ["pgrep", "-fx", f"sleep {seconds}"], stdout=subprocess.PIPE).stdout.split()
    those = []
    for pid in map(int, found):
        # Who has ended since is none of them.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            those.append((pid, parent(pid), os.getsid(pid), os.getpgid(pid)))
    return those

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

def end_asleep(seconds):
    subprocess.run(["pkill", "-fx", f"sleep {seconds}"], check=True)
"""

#: What a session may have, set up in one program.
MANY = """
waits = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
waits.stdin.write(b"before"); waits.stdin.flush()
event = threading.Event()
threads = [threading.Thread(target=event.wait) for _ in range(30)]
for thread in threads: thread.start()
children = [subprocess.Popen(["sleep", "1400"]) for _ in range(20)]
"""


def orphans(world) -> dict:
    """Pid, parent, session and group of those whose parent or leader has ended."""
    return {seconds: world(f"asleep({seconds})") for seconds in (1100, 1200, 1300)}


def test_cycle_of_many_things_in_one_session(places, engine, wait_for):
    """Unread bytes, orphans, pipes, threads, children and a deleted file."""
    world = places.world()
    world("listener2 = socket.create_server(('127.0.0.1', 0))" + TCP)
    world(ORPHANS)
    # Its parent ends at once, as a terminal's shell does after `nohup train &`.
    world("subprocess.run(['sh', '-c', 'setsid sleep 1100 & echo'], check=True); 1")
    world("lives, dead = leave_orphans(1200), leave_orphans(1300)")
    world("dead.kill(); dead.wait(60)")
    root = world.place.tree.root.ns_pid

    def below_root() -> bool:
        found = orphans(world)
        return all(one[1] == root for those in found.values() for one in those)

    wait_for(below_root)
    had = orphans(world)
    assert [len(those) for those in had.values()] == [1, 2, 2]
    world(MANY)

    world = engine.cycle(world, places)
    assert world("one.recv(100)") == b"neither this"
    assert world("two.recv(100)") == b"not read yet"
    assert world("one.sendall(b'again'); two.sendall(b'back'); 1") == 1
    assert orphans(world) == had

    world = engine.cycle(world, places)  # and once more, from there
    assert world("one.recv(100)") == b"back"
    assert world("two.recv(100)") == b"again"
    assert world("waits.stdout.read1()") == b"before"
    assert world("waits.stdin.close(); waits.wait(60)") == 0
    assert orphans(world) == had
    for count in had:  # who ends is collected by the root, as before
        world(f"end_asleep({count})")
        wait_for(lambda count=count: not world(f"asleep({count})"))
    assert world("event.set(); [t.join(60) for t in threads]; len(threads)") == 30
    assert world("[c.kill() for c in children]; [c.wait(60) for c in children]") == (
        [-9] * 20
    )


def test_terminal_keeps_its_jobs_and_a_thaw_leaves_nothing_behind(places, engine):
    world = places.world()
    world("listener2 = socket.create_server(('127.0.0.1', 0))" + TCP)
    world(terminal(*BASH))
    assert "ready>" in world("until('ready>')")
    world("begin_sleep(); type_in('\\x1a')")
    assert "Stopped" in world("until('Stopped')")
    for _ in range(2):
        image = engine.image()
        result = engine.dump(world.place, image.sink)
        thaw(world.place.tree, result.stopped)
        assert world("one.sendall(b'again'); two.recv(100)").endswith(b"again")
        assert world("two.sendall(b'back'); one.recv(100)").endswith(b"back")
        states = {p.name: p.state for p in world.place.tree.processes}
        assert states.pop("sleep") == "T"
        assert set(states.values()) <= {"S", "R"}
    world("type_in('top -d 0.1\\n')")
    assert "Tasks" in world("until('Tasks')")
    for _ in range(2):
        world = engine.cycle(world, places)
        assert world("updates(4)")
        states = {p.name: p.state for p in world.place.tree.processes}
        assert states["sleep"] == "T"
        assert states["top"] in "SR"
    world("type_in('q'); until('ready>'); type_in('jobs\\n')")
    assert "sleep 1000" in world("until('sleep 1000')")


def test_shell_and_what_it_runs_that_hold_dev_tty_come_back(places, engine):
    world = places.world()
    world(terminal("dash", "-i"))
    assert "ready>" in world("until('ready>')")
    world("begin_sleep(); type_in('\\x1a')")
    assert "Stopped" in world("until('Stopped')")
    world("type_in('cat < /dev/tty\\n')")
    assert "before" in world("type_in('before\\n'); until('before\\r\\nbefore')")
    assert names_of_holders(world.place, "/dev/tty") == {"dash", "cat"}
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    thaw(world.place.tree, result.stopped)  # a save point
    assert "saved" in world("type_in('saved\\n'); until('saved\\r\\nsaved')")
    for _ in range(2):
        world = engine.cycle(world, places)
        assert "back" in world("type_in('back\\n'); until('back\\r\\nback')")
    world("type_in('\\x03'); until('ready>'); type_in('jobs\\n')")
    assert "Stopped" in world("until('sleep 1000')")
    assert "sleep 1000" in world("type_in('fg\\n'); until('fg\\r\\nsleep 1000')")
    assert "ready>" in world("type_in('\\x03'); until('ready>')")


def names_of_holders(place, file: str) -> set[str]:
    """The names of a tree's processes that have it open."""
    return {
        process.name
        for process in place.tree.processes
        for one in procfs.descriptors(process.pid)
        if one.target == file
    }


def test_cycle_without_relay_keeps_clock_output_memory_and_status(places, engine):
    world = places.world(relay=False)
    world("ballast = os.urandom(8 << 20); right = ballast[::509]")
    image = engine.image()
    begun = time.monotonic()
    inside = world("time.monotonic()")
    result = engine.dump(world.place, image.sink)
    world.place.kill()
    time.sleep(1.5)
    place = places.hold(relay=False)
    proceed(engine.restore(place, image, result), result.stopped)
    world = world.at(place)
    # The clock does not count the suspension.
    inside = world("time.monotonic()") - inside
    assert inside < time.monotonic() - begun - 1.4
    world("print('still here', flush=True)")  # to its new output
    assert "still here" in place.read_until("here\n")
    assert world("bytes(bytearray(ballast))[::509] == right") is True
    with pytest.raises((ValueError, OSError, SyntaxError)):
        world("os._exit(7)")
    assert place.wait() == 7


def test_root_is_the_reaper_and_server_its_child(places):
    world = places.world()
    tree = world.place.tree
    assert tree.root.ns_pid == 300
    assert tree.root.name == "session-root"
    assert tree.server.ns_pid == world("os.getpid()")
    assert processes.start_time(tree.root.pid) == tree.root.start_time
    assert Path(f"/proc/{tree.init.pid}/comm").read_text() == "session-init\n"


def test_restored_tree_is_in_the_control_groups_it_was_prepared_for(
    places, engine, tmp_path
):
    parent = Path("/sys/fs/cgroup/pids")
    if not os.access(parent / "cgroup.procs", os.W_OK):
        parent = Path("/sys/fs/cgroup")
    group = parent / f"gpu-reclaim-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a control group of its own")
    try:
        world = places.world()
        saved = engine.save(world.place)
        place = places.hold()
        saved.back(
            place, prepare=lambda pid: (group / "cgroup.procs").write_text(str(pid))
        )
        inside = {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        assert inside == {p.pid for p in place.tree.processes}
        place.kill()
    finally:
        group.rmdir()


#: Leaders of sessions, each with an orphan in a group whose leader has not been reaped:
#: no pid between theirs is free.
TWO_LEADERS = """
def lead():
    if os.fork():
        return
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    time.sleep(1000)
"""


def test_cycle_of_two_leaders_with_an_orphan_each(places, engine, wait_for):
    world = places.world()
    world(TWO_LEADERS)
    world("lead(), lead()")

    def below_root() -> list[int]:
        tree = world.place.tree
        those = [one for one in tree.processes if one.ppid == tree.root.pid]
        return sorted(one.ns_pid for one in those)

    wait_for(lambda: len(below_root()) == 3)  # the program itself, and the two
    had = below_root()
    for _ in range(2):
        world = engine.cycle(world, places)
        assert below_root() == had


#: A terminal whose foreground group has ended, as between two commands of a shell.
NO_FOREGROUND = """
leader, other = pty.fork()
if leader == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        os._exit(0)
    os.waitpid(child, 0)
    os.write(1, b"up")
    time.sleep(1000)
os.read(other, 2)

def cat():
    words = ["ps", "-o", "state=", "-C", "cat"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.strip()
"""


def test_cycle_of_what_its_terminal_has_stopped_and_of_one_without_a_foreground(
    places, engine, wait_for
):
    world = places.world()
    world(terminal(*BASH))
    world(NO_FOREGROUND)
    assert world("os.tcgetpgrp(other) not in (0, leader)")
    world("until('ready>')")
    world("type_in('cat &\\n')")  # it reads, in the background: SIGTTIN
    world("until('ready>')")
    wait_for(lambda: world("cat()") == "T")
    for _ in range(2):
        world = engine.cycle(world, places)
        assert world("os.tcgetpgrp(other) == leader")
        assert world("cat()") == "T"
    world("type_in('fg\\n')")
    wait_for(lambda: world("cat()") == "S")
    world("type_in('hello\\n')")
    assert "TIMEOUT" not in world("until('hello\\r\\nhello')")
