"""Dump, end, restore elsewhere: everything goes on. Real processes, real CRIU."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.test_stream import Taken

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

#: A terminal with a job that Ctrl-Z has stopped and a program in the foreground.
TERMINAL = """
pid, tty = pty.fork()
if pid == 0:
    os.environ.update(PS1="ready>", TERM="xterm", HISTFILE="")
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])

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
    while subprocess.run(["pgrep", "-x", "sleep"], stdout=-3).returncode:
        time.sleep(0.02)
"""


def test_cycle_counter_goes_on_with_same_pids(places, engine):
    place = places.start(sys.executable, "-c", COUNTER)
    printed = place.read_until("count 3\n")
    pids = [(p.ns_pid, p.name) for p in place.tree.processes]
    for _ in range(3):
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


def test_cycle_loopback_connection_keeps_unread_bytes(places, engine):
    world = places.world()
    world("listener2 = socket.create_server(('127.0.0.1', 0))" + TCP)
    for number in range(3):
        world = engine.cycle(world, places)
        expected = b"not read yet" if number == 0 else b"again"
        assert world("one.recv(100)") == (b"neither this" if number == 0 else b"back")
        assert world("two.recv(100)") == expected
        assert world("one.sendall(b'again'); two.sendall(b'back'); 1") == 1


def test_cycle_pipe_and_child_go_on(places, engine):
    world = places.world()
    world(
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE); child.stdin.write(b'before'); child.stdin.flush()"
    )
    world = engine.cycle(world, places)
    assert world("child.stdout.read1()") == b"before"
    assert world("child.stdin.close(); child.wait(20)") == 0


def test_cycle_orphan_comes_back(places, engine, wait_for):
    world = places.world()
    # Its parent ends at once, as a terminal's shell does after `nohup train &`.
    world("subprocess.run(['sh', '-c', 'setsid sleep 1000 & echo'], check=True); 1")
    world = engine.cycle(world, places)
    names = [p.name for p in world.place.tree.processes]
    assert "sleep" in names
    world("subprocess.run(['pkill', '-x', 'sleep'], check=True); 1")
    wait_for(lambda: len(world.place.tree.processes) == 2)


#: A program whose parent ends at once, in the session of a leader of its own: what
#: ``!train &`` in a notebook leaves behind; a kernel leads its session.
ORPHAN = """
kernel = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, time; subprocess.run(['sh', '-c',"
     " 'sleep 1000 & sleep 1001 & exec 0<&-; echo']); time.sleep(2000)"],
    start_new_session=True, stdout=subprocess.PIPE)
kernel.stdout.readline(), 1
"""


def below_root(place, name: str) -> list[tuple]:
    tree = place.tree
    return sorted(
        (process.ns_pid, os.getsid(process.pid), os.getpgid(process.pid))
        for process in tree.processes
        if process.name == name and process.ppid == tree.root.pid
    )


@pytest.mark.parametrize("leader", ["lives", "is dead"])
def test_cycle_orphans_of_another_session_stay_below_the_root(
    places, engine, wait_for, leader
):
    world = places.world()
    world(ORPHAN)
    wait_for(lambda: len(below_root(world.place, "sleep")) == 2)
    if leader == "is dead":
        world("kernel.kill(); kernel.wait(10); 1")
    had = world(
        "[(p, os.getsid(p), os.getpgid(p)) for p in map(int,"
        "subprocess.check_output(['pgrep', '-x', 'sleep']).split())]"
    )
    for _ in range(3):
        world = engine.cycle(world, places)
        assert len(below_root(world.place, "sleep")) == 2
        assert had == world(
            "[(p, os.getsid(p), os.getpgid(p)) for p in map(int,"
            "subprocess.check_output(['pgrep', '-x', 'sleep']).split())]"
        )
    # Who ends is collected by the root, as before.
    world("subprocess.run(['pkill', '-x', 'sleep'], check=True); 1")
    wait_for(lambda: not any(p.name == "sleep" for p in world.place.tree.processes))


def test_cycle_terminal_keeps_foreground_and_stopped_job(places, engine):
    world = places.world()
    world(TERMINAL)
    assert "ready>" in world("until('ready>')")
    world("begin_sleep(); type_in('\\x1a')")
    assert "Stopped" in world("until('Stopped')")
    world("type_in('top -d 0.1\\n')")
    assert "Tasks" in world("until('Tasks')")
    for _ in range(3):
        world = engine.cycle(world, places)
        assert world("updates(4)")
        states = {p.name: p.state for p in world.place.tree.processes}
        assert states["sleep"] == "T"
        assert states["top"] in "SR"
    world("type_in('q'); until('ready>'); type_in('jobs\\n')")
    assert "sleep 1000" in world("until('sleep 1000')")


def test_cycle_deleted_file_with_another_name_comes_back(places, engine, tmp_path):
    world = places.world()
    world(
        f"held = open({str(tmp_path / 'a')!r}, 'w+'); held.write('kept'); held.flush();"
        f"os.link(held.name, {str(tmp_path / 'b')!r}); os.unlink(held.name)"
    )
    world = engine.cycle(world, places)
    assert world("held.seek(0); held.read()") == "kept"
    assert [p.name for p in tmp_path.iterdir() if "remap" in p.name] == []


def test_cycle_without_relay_writes_to_new_output(places, engine):
    world = places.world(relay=False)
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    world.place.kill()
    place = places.hold(relay=False)
    proceed(engine.restore(place, image, result), result.stopped)
    world = world.at(place)
    world("print('still here', flush=True)")
    assert "still here" in place.read_until("here\n")


def test_thaw_after_dump_leaves_nothing_behind(places, engine, tmp_path):
    world = places.world()
    world("listener2 = socket.create_server(('127.0.0.1', 0))" + TCP)
    world(TERMINAL)
    world("until('ready>'); begin_sleep()")
    world("type_in('\\x1a'); until('Stopped')")
    world(
        f"held = open({str(tmp_path / 'a')!r}, 'w+'); held.write('kept'); held.flush();"
        f"os.link(held.name, {str(tmp_path / 'b')!r}); os.unlink(held.name)"
    )
    for _ in range(2):
        image = engine.image()
        result = engine.dump(world.place, image.sink)
        assert [p for p in tmp_path.iterdir() if "link_remap" in p.name]
        thaw(world.place.tree, result.stopped)
        assert not [p for p in tmp_path.iterdir() if "link_remap" in p.name]
        assert world("one.sendall(b'again'); two.recv(100)").endswith(b"again")
        assert world("two.sendall(b'back'); one.recv(100)").endswith(b"back")
        states = {p.name: p.state for p in world.place.tree.processes}
        assert states.pop("sleep") == "T"
        assert set(states.values()) <= {"S", "R"}
    world = engine.cycle(world, places)
    assert world("1 + 1") == 2


def test_restored_session_ends_with_its_status(places, engine):
    world = engine.cycle(places.world(), places)
    with pytest.raises((ValueError, OSError, SyntaxError)):
        world("os._exit(7)")
    assert world.place.wait() == 7


def test_restored_session_ends_on_sigterm(places, engine):
    world = engine.cycle(places.world(), places)
    os.kill(world.place.init_pid, signal.SIGTERM)
    assert world.place.wait() == 128 + signal.SIGTERM


def test_cycle_memory_taken_from_the_pipe_by_the_sink_itself(places, engine):
    world = places.world()
    world("ballast = os.urandom(8 << 20); right = ballast[::509]")
    image = engine.image()
    result = engine.dump(world.place, lambda name: Taken(image, name))
    assert result.files == {name: len(data) for name, data in image.items()}
    world.place.kill()
    place = places.hold()
    proceed(engine.restore(place, image, result), result.stopped)
    assert world.at(place)("bytes(bytearray(ballast))[::509] == right") is True


def test_clock_does_not_count_the_suspension(places, engine):
    world = places.world()
    image = engine.image()
    begun = time.monotonic()
    inside = world("time.monotonic()")
    result = engine.dump(world.place, image.sink)
    world.place.kill()
    time.sleep(1.5)
    place = places.hold()
    proceed(engine.restore(place, image, result), result.stopped)
    inside = world("time.monotonic()") - inside
    assert inside < time.monotonic() - begun - 1.4


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
        image = engine.image()
        result = engine.dump(world.place, image.sink)
        world.place.kill()
        place = places.hold()
        restored = engine.restore(
            place,
            image,
            result,
            prepare=lambda pid: (group / "cgroup.procs").write_text(str(pid)),
        )
        proceed(restored, result.stopped)
        inside = {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        assert inside == {p.pid for p in place.tree.processes}
        place.kill()
    finally:
        group.rmdir()


def test_many_processes_and_threads_come_back(places, engine):
    world = places.world()
    world(
        "event = threading.Event()\n"
        "threads = [threading.Thread(target=event.wait) for _ in range(30)]\n"
        "for thread in threads: thread.start()\n"
        "children = [subprocess.Popen(['sleep', '1000']) for _ in range(20)]; 1"
    )
    world = engine.cycle(world, places)
    world = engine.cycle(world, places)
    assert world("event.set(); [t.join(10) for t in threads]; len(threads)") == 30
    assert world("[c.kill() for c in children]; [c.wait(10) for c in children]") == (
        [-9] * 20
    )
