"""Each rule of the pre-flight, with a real process that does it."""

import dataclasses
import importlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.criu import process as criu_process
from jupyterhub_gpu_reclaim.checkpoint.kinds import table
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.kinds.system_v import Objects
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot, start_time

PRELUDE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        print("errno", ctypes.get_errno(), flush=True)
        sys.exit()
    return result
"""


@pytest.fixture
def run():
    """Start a process that does something; answers with its snapshot."""
    made = []

    def start(code: str, *, uid: int = 0) -> Snapshot:
        program = PRELUDE + textwrap.dedent(code) + "\nprint('up', flush=True)\ninput()"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        said = process.stdout.readline().strip()
        if said.startswith("errno"):
            pytest.skip(f"this kernel does not let a program do that: {said}")
        assert said == "up"
        return snapshot_of(process.pid, uid=uid)

    yield start
    for process in made:
        process.kill()
        process.communicate()


def snapshot_of(pid: int, *, uid: int = 0, state: str = "S") -> Snapshot:
    """A tree of one process below us, who play the init."""
    init = Process(os.getpid(), 1, 0, "init", "S", 1, 0)
    start = start_time(pid) or 0
    return Snapshot(init, (Process(pid, 321, os.getpid(), "prog", state, start, uid),))


def test_program_that_hangs_below_the_init_is_named_at_once(run):
    one, other = run("").processes[0], run("").processes[0]
    init = Process(os.getpid(), 1, 0, "init", "S", 1, 0)
    orphan = Process(other.pid, 400, os.getpid(), "train", "S", 1, 0)
    found = only(Snapshot(init, (one, orphan)))
    assert found.code == "left_out"
    assert "Process 400 (train)" in found.message


def examine(snapshot: Snapshot, **options):
    return preflight.examine(os.getpid(), snapshot, **options)


def only(snapshot: Snapshot, **options):
    (found,) = examine(snapshot, **options)
    assert found.fatal
    return found


def test_examine_no_program_is_no_tree():
    init = Process(os.getpid(), 1, 0, "init", "S", 1, 0)
    assert only(Snapshot(init, ())).code == "no_tree"


def test_examine_dead_root_is_no_tree():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert only(snapshot_of(process.pid, state="Z")).code == "no_tree"


def test_examine_io_uring_that_is_only_mapped_is_found(run):
    snapshot = run("""
        import mmap
        ring = call(425, 8, ctypes.create_string_buffer(120))
        area = mmap.mmap(ring, 4096, flags=mmap.MAP_SHARED)
        os.close(ring)
        """)
    assert only(snapshot).code == "io_uring"


#: A namespace of its own, as a session has it.
ALONE = "assert libc.unshare(0x08000000) == 0\n"


def examine_alone(run, code: str) -> list[str]:
    """The messages of what is found in a session that is alone in its namespace."""
    snapshot = run(ALONE + textwrap.dedent(code))
    found = preflight.examine(snapshot.root.pid, snapshot)
    return [one.message for one in found if one.code == "ipc_unsupported"]


def test_examine_message_queue_that_nobody_holds_is_found(run):
    code = """
        librt = ctypes.CDLL("librt.so.1", use_errno=True)
        queue = librt.mq_open(b"/gpu-reclaim", os.O_RDWR | os.O_CREAT, 0o600, None)
        os.close(queue)
        """
    (said,) = examine_alone(run, code)
    assert said.startswith("It has the POSIX message queue /gpu-reclaim, which cannot")


def test_examine_more_objects_than_the_limit_is_found(run):
    code = """
        for number in range(4097):
            assert libc.semget(0, 1, 0o600) >= 0
        """
    (said,) = examine_alone(run, code)
    assert "more than 4096 System V objects" in said


def test_more_semaphores_and_messages_than_the_limits_are_found():
    def problems(**tables):
        return list(
            Objects({"sem": [], "msg": [], "shm": [], **tables}, [], False).problems({})
        )

    (said,) = problems(sem=[{"nsems": 1 << 20}, {"nsems": 1}])
    assert "more than 1048576 System V semaphores" in said
    (said,) = problems(msg=[{"cbytes": (64 << 20) - 63, "qnum": 1}])
    assert "more than 64 MiB in System V message queues" in said
    # The kernel has something of empty ones, too.
    assert problems(msg=[{"cbytes": 0, "qnum": (1 << 20) + 1}]) == [said]


def test_system_v_objects_in_a_shared_namespace_are_those_of_its_users():
    # Pure: such an object is in the namespace of every other test, too.
    objects = Objects({"sem": [{"uid": 7, "cuid": 0}], "msg": [], "shm": []}, [], True)
    (found,) = objects.problems({7})
    assert "that it shares with others" in found
    assert list(objects.problems({4242})) == []


def test_examine_user_namespace_is_found(run):
    found = examine(run("call(272, 0x10000000)"))
    assert [one.code for one in found] == ["foreign_namespace"]


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        (0x00020000, "mount"),
        (0x40000000, "network"),
        (0x08000000, "ipc"),
        (0x04000000, "uts"),
        (0x02000000, "cgroup"),
        (0x00000080, "time"),
    ],
)
def test_examine_foreign_namespace_is_found(run, flag, kind):
    found = only(run(f"call(272, {flag})"))
    assert found.code == "foreign_namespace"
    assert f"a {kind} namespace" in found.message


def test_examine_foreign_pid_namespace_is_found(run):
    snapshot = run("""
        call(272, 0x20000000)
        bound, tell = os.pipe()
        if os.fork() == 0:
            libc.prctl(1, 9)  # ends with its parent
            os.write(tell, b".")
            import signal
            signal.pause()
        os.read(bound, 1)  # or it may outlive a parent that is killed before it
        """)
    assert "a pid namespace" in only(snapshot).message


#: A program that holds its terminal as ``/dev/tty``.
DEV_TTY = """
import fcntl, pty, select, termios
os.setsid()
keep, mine = pty.openpty()
fcntl.ioctl(mine, termios.TIOCSCTTY, 0)
own = os.open("/dev/tty", os.O_RDWR)
"""


def test_examine_dev_tty_of_a_terminal_that_is_left_is_found(run):
    leave = "import signal; signal.signal(1, signal.SIG_IGN); "
    found = only(run(DEV_TTY + leave + "fcntl.ioctl(own, termios.TIOCNOTTY)"))
    assert found.code == "device_open"
    assert "/dev/tty" in found.message


@pytest.mark.parametrize(
    "device", ["/dev/loop-control", "/dev/fuse", "/dev/loop0", "/dev/net/tun"]
)
def test_examine_device_is_found_by_name(run, device):
    if not Path(device).exists():
        pytest.skip(f"there is no {device} here")
    found = only(run(f"keep = os.open({device!r}, os.O_RDONLY)"))
    assert found.code == "device_open"
    assert device in found.message


def test_examine_gpu_is_found_unless_it_is_emptied_before(run):
    """Another device under the name of a card: it is the name that counts."""
    real, path = Path("/dev/loop-control"), Path(f"/dev/nvidia-test-{os.getpid()}")
    if not real.exists():
        pytest.skip(f"there is no {real} here")
    os.mknod(path, stat.S_IFCHR | 0o600, real.stat().st_rdev)
    try:
        snapshot = run(f"keep = os.open('{path}', os.O_RDONLY)")
        assert only(snapshot).code == "device_open"
        pids = {process.pid for process in snapshot.processes}
        assert examine(snapshot, gpu_savable=pids) == []
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "hold", ["keep = file", "m = mmap.mmap(file.fileno(), 1 << 21)"]
)
def test_examine_large_deleted_file_is_found(run, tmp_path, monkeypatch, hold):
    path = tmp_path / "large"
    snapshot = run(f"""
        import mmap
        file = open({str(path)!r}, "w+b")
        file.write(b"x" * (2 << 20))
        file.flush()
        os.unlink({str(path)!r})
        {hold}
        if "m" in globals():
            file.close()
        """)
    assert examine(snapshot) == []
    monkeypatch.setattr(criu_process, "GHOST_LIMIT_BYTES", 1 << 20)
    found = only(snapshot)
    assert found.code == "ghost_too_large"
    assert str(path) in found.message
    assert "2.1 MB" in found.message


def test_examine_multipath_tcp_is_named_with_what_helps(run):
    """Go listens so by default."""
    found = only(
        run("""
        try:
            keep = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
        except OSError as error:
            print("errno", error.errno, flush=True)
            sys.exit()
        keep.bind(("127.0.0.1", 0))
        keep.listen()
        """)
    )
    assert found.code == "multipath_tcp"
    assert "GODEBUG=multipathtcp=0" in found.hint


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET"])
@pytest.mark.parametrize("accepted", [True, False])
def test_examine_unix_connection_to_a_program_outside_is_found(
    run, tmp_path, kind, accepted
):
    path = str(tmp_path / "outside.sock")
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as server:
        server.bind(path)
        server.listen()
        snapshot = run(f"""
            c = socket.socket(socket.AF_UNIX, socket.{kind})
            c.connect({path!r})
            """)
        peer = server.accept()[0] if accepted else socket.socket()
        with peer:
            found = only(snapshot)
        # One whose other end has gone is no connection any more.
        assert examine(snapshot) == [] or not accepted
    assert found.code == "unix_outside"
    assert path in found.message
    assert examine(snapshot) == []


def test_examine_client_that_has_begun_since_is_no_program_outside(run, tmp_path):
    """As gpg and ssh-add, which ask their agents in a moment."""
    path = str(tmp_path / "agent.sock")
    snapshot = run(f"""
        import threading
        server = socket.socket(socket.AF_UNIX)
        server.bind({path!r})
        server.listen()
        taken = []
        threading.Thread(target=lambda: taken.append(server.accept())).start()
        """)
    run(f"client = socket.socket(socket.AF_UNIX); client.connect({path!r})")
    start = processes.start_time(os.getpid())
    init = dataclasses.replace(snapshot.init, start_time=start)
    assert preflight.examine(init.pid, Snapshot(init, snapshot.processes)) == []


def test_examine_what_waits_in_a_socket_is_found_until_it_is_read(run):
    """Other kinds: tests/checkpoint/kinds/sockets.py."""
    found = only(
        run("""
        import select, struct
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        s.bind((0, 0))
        s.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0))
        select.select([s], [], [])
        """)
    )
    assert found.code == "socket_unread"
    assert found.retryable
    assert "a netlink socket" in found.message
    snapshot = run("""
        a, b = socket.socketpair()
        b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        s.bind((0, 0))
        """)
    assert examine(snapshot) == []


@pytest.mark.parametrize("names", ["./a", "link/a", "m/a", "\0a", "deleted"])
def test_examine_unix_socket_that_others_find_by_its_name_is_supported(
    run, tmp_path, names
):
    snapshot = run(f"""
        os.chdir({str(tmp_path)!r})
        os.mkdir("m"); os.symlink("m", "link")
        name = {names!r}
        one = socket.socket(socket.AF_UNIX)
        one.bind(os.path.abspath(name) if name == "link/a" else name)
        one.listen()
        if name == "deleted":
            os.unlink(name)
        """)
    assert examine(snapshot) == []


def test_examine_unix_socket_whose_name_is_no_text_is_told_as_text(run, tmp_path):
    found = only(
        run(f"""
        os.chdir({str(tmp_path)!r})
        one = socket.socket(socket.AF_UNIX); one.bind(b"\\xff"); one.listen()
        os.rename(b"\\xff", "b")
        """)
    )
    assert "is not the end of its path (\\xff)" in found.message
    codec.encode(found)


@pytest.mark.parametrize(("below", "is_found"), [(60, False), (61, True)])
def test_examine_files_above_the_limit_take_no_room_below_it(run, below, is_found):
    """They were opened before the limit was lowered."""
    snapshot = run(f"""
        import resource
        for number in range(300):
            os.dup2(0, 1000 + number)
        while os.dup(0) < {below} - 1:
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (63, 4096))
        """)
    if is_found:
        assert "has 61 files open, of 63 at most" in only(snapshot).message
    else:
        assert examine(snapshot) == []


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET", "SOCK_DGRAM"])
def test_examine_half_of_a_unix_pair_is_found(run, kind):
    """The other half is with a program that has left the tree."""
    found = only(
        run(f"""
        import signal
        a, b = socket.socketpair(socket.AF_UNIX, socket.{kind})
        parent = os.getpid()
        if os.fork() == 0:
            libc.prctl(1, 9)  # ends with its parent
            if os.getppid() == parent:  # else it has ended already
                signal.pause()
            os._exit(0)
        b.close()
        """)
    )
    assert found.code == "unix_outside"
    assert "a program outside" in found.message


def test_examine_unix_connection_into_another_network_is_found(run, tmp_path):
    """A socket in the file system is there for all networks, and listed in its own."""
    path = str(tmp_path / "outside.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        snapshot = run(f"""
            assert libc.unshare(0x40000000) == 0
            c = socket.socket(socket.AF_UNIX)
            c.connect({path!r})
            """)
        (process,) = snapshot.processes
        init = dataclasses.replace(snapshot.init, pid=process.pid)
        root = dataclasses.replace(process, ppid=init.pid)
        (found,) = preflight.examine(init.pid, Snapshot(init, (root,)))
        assert found.code == "unix_outside"


@pytest.mark.parametrize("name", ["path", "abstract"])
def test_examine_datagrams_to_a_name_outside_are_fine(run, tmp_path, name):
    """As to /dev/log: CRIU connects it again."""
    path = str(tmp_path / "log") if name == "path" else f"\0{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        snapshot = run(f"""
            c = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            c.connect({path!r})
            """)
        assert examine(snapshot) == []
    assert examine(snapshot) == []


def test_examine_other_user_needs_the_capability(run):
    snapshot = run("os.setuid(65534)", uid=65534)
    effective = int(procfs.status(os.getpid())["CapEff"], 16)
    found = examine(snapshot)
    if effective >> 24 & 1:
        assert found == []
    else:
        assert [one.code for one in found] == ["capability_missing"]
        assert "CAP_SYS_RESOURCE" in found[0].message
        assert "nobody" in found[0].message


def test_examine_findings_of_criu_are_handed_on_but_the_capability_is_judged(run):
    criu = [
        finding(Reason.CRIU_MISSING, found=", only 3.17", minimum="4.1"),
        finding(Reason.CAPABILITY_MISSING, fatal=False, capability="X", user="other"),
    ]
    found = preflight.examine(os.getpid(), run("pass"), criu)
    assert [one.code for one in found] == ["criu_missing"]


def test_examine_process_that_ends_meanwhile_is_no_error(run):
    snapshot = run("pass")
    pid = snapshot.processes[0].pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED)
    assert examine(snapshot) == []


def test_examine_changes_nothing(run):
    snapshot = run("keep = socket.socketpair(), socket.create_server(('127.0.0.1', 0))")
    pid = snapshot.processes[0].pid
    before = sorted(procfs.descriptors(pid))
    ours = len(list(procfs.descriptors(os.getpid())))
    examine(snapshot)
    assert sorted(procfs.descriptors(pid)) == before
    assert len(list(procfs.descriptors(os.getpid()))) == ours


def test_every_kind_is_in_the_table():
    folder = Path(table.__file__).parent
    for path in folder.glob("*.py"):
        importlib.import_module(f"{table.__package__}.{path.stem}")
    assert set(Kind.__subclasses__()) == set(table.KINDS)
    assert len(table.KINDS) == len(set(table.KINDS))


def test_every_rule_of_the_table_has_its_test():
    """What the kinds say is the list of what is promised."""
    source = Path(preflight.__file__).with_name("kinds")
    rules = "".join(one.read_text() for one in source.glob("*.py"))
    found = re.findall(r"(?:found|finding)\(\s*Reason\.(\w+)", rules)
    told = {Reason[name].value for name in found}
    folder = Path(__file__).parent
    others = folder / "test_inherited.py", *(folder / "kinds").glob("*.py")
    tests = "".join(one.read_text() for one in (Path(__file__), *others))
    assert told
    assert {code for code in told if f'"{code}"' not in tests} == set()


#: Each page of its own.
MANY_MAPPINGS = """
import ctypes, mmap
many = mmap.mmap(-1, 20_000 * 4096, flags=mmap.MAP_PRIVATE)
first = ctypes.addressof(ctypes.c_char.from_buffer(many))
for page in range(0, 20_000, 2):
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + page * 4096), 4096, 1)
"""


def test_process_with_many_mappings_is_looked_at_in_time(places):
    """What the kernel tells of them is put together once, not at each page of it."""
    world = places.world()
    world(MANY_MAPPINGS)
    begun = time.process_time()
    assert preflight.examine(world.place.init_pid, world.place.tree) == []
    assert time.process_time() - begun < 5
