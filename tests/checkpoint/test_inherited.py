"""What comes back has nothing of the agent that started CRIU."""

import contextlib
import ctypes
import os
import resource
import signal
from collections import Counter
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.kinds import attributes
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Program
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed, RolledBack
from jupyterhub_gpu_reclaim.linux import architecture, procfs, ptrace
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.checkpoint.conftest import fingerprints
from tests.support import keys


def read(tree):
    kind = attributes.ProcessAttributes()
    stack = contextlib.ExitStack()
    kind.before_dump(Dump(init_pid=tree.init.pid, tree=tree, stack=stack))
    return kind._saved


THREADS = """
import threading
for _ in range(20):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_each_thread_is_read_once_and_each_process_is_held_once(places, monkeypatch):
    """There may be thousands of them, and the session stands still meanwhile."""
    world = places.world()
    world(THREADS)
    tree, _ = freeze.freeze(world.place.init_pid, world.place.init_start, timeout=10)
    really, hold = procfs.read, ptrace.stopped
    statuses, held = Counter(), Counter()

    def noted(pid, name, *rest):
        statuses[name] += name.endswith("/status")
        return really(pid, name, *rest)

    def held_once(pid, **options):
        held[pid] += 1
        return hold(pid, **options)

    monkeypatch.setattr(procfs, "read", noted)
    monkeypatch.setattr(ptrace, "stopped", held_once)
    saved = read(tree)[tree.server.ns_pid]
    freeze.thaw(tree)
    assert len(saved.threads) > 20
    assert statuses.total() > 20
    assert {*statuses.values()} == {1, 0}
    assert {*held.values()} == {1}


def test_restored_sessions_share_no_keys_with_the_agent_or_each_other(places, engine):
    keys.join_session_keyring()
    keys.add_key("of-the-agent", "secret")
    assert keys.find_key("of-the-agent") == "secret"
    one, other = (engine.cycle(places.world(), places) for _ in range(2))
    one(keys.CODE)
    other(keys.CODE)
    assert one("find_key('of-the-agent')") is None
    one("add_key('of-one', 'secret')")
    assert one("find_key('of-one')") == "secret"
    assert other("find_key('of-one')") is None


#: Of the program itself, as far as it could inherit it.
SEEN = """
import json, os, resource
def seen():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Umask", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapBnd", "CapEff")
    return {
        **{name: status[name].strip() for name in names},
        "oom_score_adj": open("/proc/self/oom_score_adj").read(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "limits": [resource.getrlimit(number) for number in range(16)],
    }
"""


def spoil(pid: int) -> None:
    """Give a helper of the agent what no session ever asked for."""
    os.sched_setaffinity(pid, {0})
    os.setpriority(os.PRIO_PROCESS, pid, 5)
    Path(f"/proc/{pid}/oom_score_adj").write_text("444")
    hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
    resource.prlimit(pid, resource.RLIMIT_CORE, (1000, hard))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
def test_restored_session_inherits_nothing_of_the_agents_process(places, engine):
    world = places.world()
    world(SEEN)
    before = world("seen()")
    saved = engine.save(world.place)
    place = places.hold()
    restored = saved.restore(place, prepare=spoil)
    proceed(restored, saved.result.stopped)
    assert world.at(place)("seen()") == before


def test_processors_that_are_not_here_become_all_and_are_told(places, engine, caplog):
    world = places.world()
    world("import os; os.sched_setaffinity(0, {0})")
    saved = engine.save(world.place)
    # As from a machine with more of them.
    image, here = saved.image, b'"affinity":[0]'
    image[attributes.IMAGE] = image[attributes.IMAGE].replace(
        here, b'"affinity":[1000]'
    )
    place = saved.back(places.hold())
    assert world.at(place)("os.sched_getaffinity(0)") == os.sched_getaffinity(0)
    assert "was bound to processors [1000], which are not here" in caplog.text


#: Of a thread, in /proc/PID/status, as CRIU has to give it back.
GIVEN_BACK = (
    *("Name", "Umask", "Uid", "Gid", "Groups", "NSpgid", "NSsid"),
    *("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Seccomp_filters"),
    *("Speculation_Store_Bypass", "SpeculationIndirectBranch"),
)
#: Signals that come of stopping processes and starting them again.
STOPPING = sum(1 << one - 1 for one in (signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD))


def shown(tree) -> dict[tuple[int, int], dict[str, object]]:
    """What the kernel shows of the threads of a tree, by their numbers in it."""
    return {
        (process.ns_pid, procfs.inner_id(status)): shown_of(process.pid, tid)
        for process in tree.processes
        for tid, status in Program(process).threads.items()
    }


def shown_of(pid: int, tid: int) -> dict[str, object]:
    status = procfs.status(pid, tid)
    found: dict[str, object] = {name: status.get(name) for name in GIVEN_BACK}
    for name in ("SigPnd", "ShdPnd"):
        found[name] = int(status[name], 16) & ~STOPPING
    for name in ("NSpgid", "NSsid"):  # in the session, whose namespace is the last one
        found[name] = status[name].split()[-1]
    found["nice"] = os.getpriority(os.PRIO_PROCESS, tid)
    found["policy"] = os.sched_getscheduler(tid), os.sched_getparam(tid).sched_priority
    found["limits"] = procfs.text(pid, "limits")
    return found


def test_restored_tree_has_what_the_captured_one_had(places, engine):
    world = places.world()
    world("import os; os.sched_setaffinity(0, {0})")
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    before = read(world.place.tree), shown(world.place.tree)
    world.place.kill()
    place = places.hold()
    tree = engine.restore(place, image, result, opened=opened).tree
    assert (read(tree), shown(tree)) == before


def test_damaged_attributes_are_refused(engine):
    image = engine.image()
    image[attributes.IMAGE] = b"{"
    with pytest.raises(RestoreFailed, match="checkpoint_damaged"):
        attributes.load(SavedImages(image))


#: Confines the thread that runs it, as a sandbox does: nothing may be written.
CONFINE = """
import ctypes, os, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def confine(gives_up=True):
    if gives_up:
        assert libc.prctl(38, 1, 0, 0, 0) == 0
    rules = libc.syscall(444, struct.pack("=Q", 1 << 1), 8, 0)
    assert rules >= 0, os.strerror(ctypes.get_errno())
    assert libc.syscall(446, rules, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(rules)

def begin(*arguments):
    def run():
        confine(*arguments)
        ready.set()
        time.sleep(1000)
    ready = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    assert ready.wait(60)
"""


def has_landlock() -> bool:
    return ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


needs_landlock = pytest.mark.skipif(not has_landlock(), reason="needs Landlock")


@needs_landlock
@pytest.mark.parametrize("gives_up", [True, False])
def test_confined_thread_is_refused_before_it_would_be_free(places, engine, gives_up):
    """Landlock was lost in silence: confined before, unconfined after."""
    world = places.world()
    world(CONFINE)
    world(f"begin({gives_up})")
    with pytest.raises(RolledBack, match=r"confined: Process 302 .* Landlock"):
        engine.dump(world.place, engine.image().sink)
    assert world("1 + 1") == 2


@needs_landlock
def test_confined_program_is_told_from_a_free_one(places, engine):
    world = places.world()
    world(CONFINE)
    world("import subprocess, sys; program = 'import time; time.sleep(1000)'")
    world("free = subprocess.Popen([sys.executable, '-c', program])")
    world(
        "child = subprocess.Popen([sys.executable, '-c', program], preexec_fn=confine)"
    )
    # To know, a program must be made to call; only one that stands may be.
    assert preflight.examine(world.place.init_pid, world.place.tree) == []
    pid = world("child.pid")
    with pytest.raises(RolledBack, match=rf"confined: Process {pid} "):
        engine.dump(world.place, engine.image().sink)
    assert world("child.poll(), free.poll()") == (None, None)


#: Ends the process at any call that Python does not need.
DEADLY = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)

def forbid(*numbers):
    code = [struct.pack("=HBBI", 0x20, 0, 0, 0)]
    for number in numbers:
        code += [struct.pack("=HBBI", 0x15, 0, 1, number)]
        code += [struct.pack("=HBBI", 0x06, 0, 0, 0x80000000)]
    code += [struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)]
    text = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("@HP", len(code), ctypes.addressof(text))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0
"""


def test_program_that_a_filter_would_end_for_our_calls_lives(places, engine):
    world = places.world()
    world(DEADLY)
    world("import socket; one = socket.socket(socket.AF_UNIX)")
    world("one.bind(''); one.listen()")
    calls = [architecture.CALLS[name] for name in ("prctl", "kcmp", "listen")]
    world(f"forbid({', '.join(map(str, calls))})")
    preflight.examine(world.place.init_pid, world.place.tree)
    world = engine.cycle(world, places)
    assert world("1 + 1") == 2


def test_what_a_program_has_chosen_stays_so_and_what_its_place_gave_does_not(
    places, engine
):
    world = places.world()
    # To give up privileges is not to be confined.
    world("import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)")
    assert preflight.examine(world.place.init_pid, world.place.tree) == []
    # All processors of one machine are all of the next.
    os.sched_setaffinity(world.place.init_pid, {0})
    for process in world.place.tree.processes:
        os.sched_setaffinity(process.pid, {0})
    world = engine.cycle(world, places)
    assert world("os.sched_getaffinity(0)") == os.sched_getaffinity(0)
    assert world("ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)") == 1
    assert world("1 + 1") == 2


def test_program_that_emulates_system_calls_is_refused_and_goes_on(places):
    # As Wine has it; only a debugger can see it.
    world = places.world()
    world("import ctypes; asked = ctypes.c_byte(0)")
    world(
        "assert not ctypes.CDLL(None).prctl("
        "59, 1, 0, 4096, ctypes.c_void_p(ctypes.addressof(asked)))"
    )
    with pytest.raises(ReclaimError, match="emulates system calls"):
        read(world.place.tree)
    assert world("1 + 1") == 2


def test_program_that_may_run_nothing_new_is_refused_and_goes_on(places):
    world = places.world()
    if world("import ctypes; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)"):
        pytest.skip("a kernel without PR_SET_MDWE")
    with pytest.raises(ReclaimError, match="may run nothing new"):
        read(world.place.tree)
    assert world("1 + 1") == 2


@needs_landlock
def test_confined_program_of_another_user_is_told_from_a_free_one(places):
    world = places.world(system_user=SystemUser(54321, 54322))
    world("import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)")
    read(world.place.tree)
    world(CONFINE)
    world("begin()")
    with pytest.raises(ReclaimError, match=r"confined: Process 302 .* Landlock"):
        read(world.place.tree)
    assert world("1 + 1") == 2
