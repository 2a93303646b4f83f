"""What CRIU believes because it is root: files and memory that a session can write.

A container's own root (``sudo`` in an image) has no rights outside, but writes where
CRIU looks; a login of the same user beside the session writes into its memory.
"""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import LOG
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Program
from jupyterhub_gpu_reclaim.checkpoint.kinds.rights import Rights
from jupyterhub_gpu_reclaim.checkpoint.preflight import examine
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.checkpoint.conftest import Engine, Places, fingerprints
from tests.support.attacker import (
    GID,
    SECRET,
    UID,
    criu_for_any_user,
    make_folder,
    start_session,
    system_python,
)
from tests.support.ran import ran


def in_mounts_of(place, command: str) -> str:
    init = str(place.init_pid)
    done = ran(["nsenter", "-t", init, "-m", "sh", "-c", command], check=True)
    return done.stdout


def criu_log(engine) -> str:
    log = (engine.folder / f"work{engine.count}" / LOG).read_text(errors="replace")
    assert "Running on" in log
    return log


OWN_RUN = "mount -t tmpfs -o mode=755 none /run"
#: Long enough for any version, with the marks of none.
STALE = "head -c 65536 /dev/zero > /run/criu.kdat"


def test_criu_neither_reads_nor_writes_in_the_sessions_run(places, engine):
    """CRIU calls an address that stands there as root, in the middle of a restore."""
    world = places.world()
    in_mounts_of(world.place, f"{OWN_RUN} && {STALE}")
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    # One with the wrong marks would have been removed, and made again.
    assert in_mounts_of(world.place, "stat -c %n-%s /run/*") == "/run/criu.kdat-65536\n"
    assert "kdat cache" not in criu_log(engine)
    world.place.kill()
    place = places.hold()
    in_mounts_of(place, f"{OWN_RUN} && {STALE}")
    restored = engine.restore(place, image, result)
    assert in_mounts_of(place, "stat -c %n-%s /run/*") == "/run/criu.kdat-65536\n"
    assert "kdat cache" not in criu_log(engine)
    proceed(restored, result.stopped)
    assert world.at(place)("1 + 1") == 2


def test_criu_that_we_run_has_no_cache_where_a_session_writes(criu):
    data = criu.binary.read_bytes()
    made = criu_module.forgetful(data)
    assert b"criu.kdat" not in made
    assert len(made) == len(data)
    assert criu_module.forgetful(made) == made


#: A program of the same user, outside of the session and of its pid namespace. CRIU has
#: each thread tell its own users by code in its memory, into a place that is used again
#: for the next thread. There he says that they are root's, as often as he can. He opens
#: the memory before, or each time.
LIAR = r"""
import os, struct, sys
pid, uid, gid, before = map(int, sys.argv[1:])
truth = struct.pack("8I", *[uid] * 4, *[gid] * 4)
lie = bytes(32)
memory = os.open(f"/proc/{pid}/mem", os.O_RDWR) if before else -1
print("up", flush=True)
while True:
    try:
        with open(f"/proc/{pid}/maps") as maps:
            areas = [one.split()[0] for one in maps if "rw-s" in one and "CRIU" in one]
        for area in areas:
            start = int(area.split("-")[0], 16)
            if not before:
                memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
                print("reached", flush=True)
            while True:
                at = os.pread(memory, 8192, start).find(truth)
                if at >= 0:
                    os.pwrite(memory, lie, start + at)
    except OSError:
        pass
"""


class Neighbour:
    """A session of some user, and what the same user runs beside it."""

    def __init__(self, criu, folder: Path, places: Places) -> None:
        self.engine = Engine(criu_for_any_user(criu, folder), folder)
        self.places = places
        self.world = start_session(folder, places)
        self._made: list[subprocess.Popen[str]] = []

    @property
    def home(self) -> Path:
        return self.engine.folder / "home"

    @property
    def pid(self) -> int:
        tree = self.world.place.tree
        assert tree.server is not None
        assert tree.server.uid == UID
        return tree.server.pid

    def run(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        popen = subprocess.Popen(
            [system_python(), "-I", "-S", "-c", program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            user=UID,
            group=GID,
            extra_groups=[],
        )
        self._made.append(popen)
        assert popen.stdout is not None
        assert popen.stdout.readline() == "up\n"
        return popen

    def clear(self) -> None:
        for popen in self._made:
            popen.kill()
            popen.communicate()
        self.places.clear()


@pytest.fixture
def neighbour(criu):
    folder = make_folder()
    made = Neighbour(criu, folder, Places(folder))
    yield made
    made.clear()
    shutil.rmtree(folder, ignore_errors=True)


THREADS = "for _ in range(60): threading.Thread(target=time.sleep, args=(1e6,)).start()"


def test_neighbour_never_reaches_memory_that_criu_works_in(neighbour):
    """He won every second time before: threads were saved as root's."""
    world = neighbour.world
    world(f"{THREADS}\ndata = os.urandom(1 << 20); right = data[::997]; 1")
    liar = neighbour.run(LIAR, neighbour.pid, UID, GID, 0)
    for _ in range(4):
        image = neighbour.engine.image()
        result = neighbour.engine.dump(world.place, image.sink)
        assert saved_users(image) == {UID}
        thaw(world.place.tree, result.stopped)
        assert world("data[::997] == right")
        # It is its user's as before: a debugger of his may look at it.
        assert Path(f"/proc/{neighbour.pid}/mem").stat().st_uid == UID
    liar.kill()
    assert liar.stdout.read() == ""


def test_neighbour_who_has_the_memory_open_already_is_named(neighbour):
    world = neighbour.world
    liar = neighbour.run(LIAR, neighbour.pid, UID, GID, 1)
    image = neighbour.engine.image()
    with pytest.raises(RolledBack) as caught:
        neighbour.engine.dump(world.place, image.sink)
    assert caught.value.reason is Reason.CAPTURE_FAILED
    assert f"process {liar.pid} " in caught.value.message
    assert image == {}
    assert world("os.getresuid()") == (UID,) * 3
    assert Path(f"/proc/{neighbour.pid}/mem").stat().st_uid == UID
    liar.kill()
    liar.wait()
    result = neighbour.engine.dump(world.place, neighbour.engine.image().sink)
    thaw(world.place.tree, result.stopped)
    assert world("1 + 1") == 2


#: What the memory of a task could say of its rights, and the kernel does not.
LIES = [
    *((name, 0) for name in ("uid", "euid", "suid", "fsuid")),
    *((name, 0) for name in ("gid", "egid", "sgid", "fsgid")),
    *((f"cap_{name}", [1, 0]) for name in ("inh", "prm", "eff", "amb")),
    ("cap_bnd", [1 << 31, 0]),
    ("groups", [0]),
    ("secbits", 4),
    ("no_new_privs", 1),
]


def test_rights_that_the_kernel_does_not_confirm_are_refused(neighbour):
    """Whatever has become of the task's memory: its word alone does not count."""
    world = neighbour.world
    image = neighbour.engine.image()
    result = neighbour.engine.dump(world.place, image.sink)
    name = f"core-{result.root_pid}.img"
    answers = {}
    programs = [Program(one) for one in world.place.tree.processes]
    for field, value in LIES:
        core = images.parse(
            "core_entry", next(images.split(image[name], images.CORE_MAGIC))
        )
        creds = core.thread_core.creds
        if isinstance(value, list):
            del getattr(creds, field)[:]
            getattr(creds, field).extend(value)
        else:
            setattr(creds, field, value)
        data = images.join(images.CORE_MAGIC, [images.serialize(core)])
        saved = SavedImages(None, {name: data})
        try:
            Rights().save(SimpleNamespace(images=saved, programs=programs))
            answers[field] = "believed"
        except ReclaimError as error:
            answers[field] = str(error)
    others = {field: one for field, one in answers.items() if "other rights" not in one}
    assert others == {}


def saved_users(image) -> set[int]:
    """The users that the threads of a suspended session would come back as."""
    cores = [
        images.parse("core_entry", next(images.split(data, images.CORE_MAGIC)))
        for name, data in image.items()
        if name.startswith("core-")
    ]
    creds = [core.thread_core.creds for core in cores]
    return {uid for one in creds for uid in (one.uid, one.euid, one.suid, one.fsuid)}


#: Opens the memory of everybody with many threads who is younger than that process, as
#: soon as he may, and tells when a thread of the same process is root still.
WAITS_FOR_ROOT = r"""
import os, sys
print("up", flush=True)
while True:
    try:
        for pid in os.listdir("/proc"):
            if not pid.isdigit() or int(pid) <= int(sys.argv[1]):
                continue
            tasks = os.listdir(f"/proc/{pid}/task")
            while len(tasks) > 10:
                try:
                    os.close(os.open(f"/proc/{pid}/task/{tasks[1]}/mem", os.O_RDWR))
                except PermissionError:
                    continue
                for task in reversed(tasks):
                    with open(f"/proc/{pid}/task/{task}/status") as status:
                        if "\nUid:\t0\t0" in status.read():
                            print("a thread of root runs what I write", flush=True)
                            sys.exit()
                break
    except OSError:
        pass
"""


#: Half of them run only while nobody else wants to: the last to give up root's rights.
LAZY_THREADS = """
def lazy(number):
    if number % 2:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    ready.release()
    time.sleep(1e6)
ready = threading.Semaphore(0)
for number in range(20):
    threading.Thread(target=lazy, args=(number,)).start()
for _ in range(20):
    ready.acquire()
"""


@pytest.mark.long
def test_neighbour_never_reaches_memory_that_a_thread_of_root_runs(neighbour):
    """CRIU gives each thread its user by itself, and all of them share their memory."""
    engine, world = neighbour.engine, neighbour.world
    world(LAZY_THREADS)
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    world.place.kill()
    for _ in range(3):
        place = neighbour.places.hold()
        waits = [neighbour.run(WAITS_FOR_ROOT, place.init_pid) for _ in range(3)]
        restored = engine.restore(place, image, result, opened=opened)
        for one in waits:
            one.kill()
        assert [one.stdout.read() for one in waits] == [""] * 3
        proceed(restored, result.stopped)
        assert world.at(place)("os.getresuid()") == (UID,) * 3
        # It is its user's as before: a debugger of his may look at it.
        assert place.tree.server is not None
        memory = Path(f"/proc/{place.tree.server.pid}/mem")
        assert memory.stat().st_uid == UID
        place.kill()


@pytest.fixture
def secret(neighbour):
    """A file of root's that nobody else may open, in a folder that all may walk."""
    path = neighbour.engine.folder / "secret-of-root"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def test_deleted_file_is_saved_only_if_its_user_may_read_it(neighbour, secret):
    """As ``/etc/shadow`` once a password is changed; to hold it so needs no right."""
    world, engine = neighbour.world, neighbour.engine
    world("file = open('own', 'w'); os.fchmod(file.fileno(), 0); file.write('kept')")
    world("file.flush(); place = os.open('own', os.O_PATH); os.unlink('own')")
    for way, mode in ("O_PATH", 0o600), ("O_WRONLY", 0o602):
        secret.write_text(SECRET)
        secret.chmod(mode)
        world(f"held = os.open({str(secret)!r}, os.{way})")
        secret.unlink()
        (found,) = [
            one
            for one in examine(world.place.init_pid, world.place.tree)
            if one.code == Reason.HANDLE_UNSUPPORTED.value
        ]
        assert "secret-of-root" in found.message
        image = engine.image()
        with pytest.raises(RolledBack) as caught:
            engine.dump(world.place, image.sink)
        assert caught.value.reason is Reason.HANDLE_UNSUPPORTED
        assert not any(SECRET.encode() in data for data in image.values()), way
        world("os.close(held)")
    # One of his own is saved, however it is held.
    assert not [
        one
        for one in examine(world.place.init_pid, world.place.tree)
        if one.code == Reason.HANDLE_UNSUPPORTED.value
    ]
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    assert any(b"kept" in data for name, data in image.items() if "ghost" in name)
    thaw(world.place.tree, result.stopped)


def test_fifo_that_its_user_may_only_fill_is_not_read_for_him(neighbour, secret):
    """CRIU copies what waits in a FIFO for those alone who hold its reading end."""
    world = neighbour.world
    secret.unlink()
    os.mkfifo(secret)
    secret.chmod(0o622)
    both = os.open(secret, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(both, SECRET.encode())
        world(f"held = os.open({str(secret)!r}, os.O_WRONLY)")
        image = neighbour.engine.image()
        neighbour.engine.dump(world.place, image.sink)
    finally:
        os.close(both)
    assert not any(SECRET.encode() in data for data in image.values())


#: A file that has lost its name, and its folder, and has another name.
LINKED = """
os.mkdir("lost"); linked = open("lost/file", "w+")
linked.write("what has another name"); linked.flush()
os.link(linked.name, "other"); os.unlink(linked.name); os.rmdir("lost")
"""


def test_name_for_a_deleted_file_is_not_made_in_a_folder_of_root(neighbour):
    """CRIU would make it by the path of the folder, as root: no race is needed."""
    world, engine = neighbour.world, neighbour.engine
    closed = engine.folder / "closed"
    closed.mkdir(mode=0o755)
    world(LINKED)
    world(f"os.symlink({str(closed)!r}, 'lost')")
    with pytest.raises(RolledBack) as caught:
        engine.dump(world.place, engine.image().sink)
    assert caught.value.reason is Reason.HANDLE_UNSUPPORTED
    assert list(closed.iterdir()) == []
    assert world("linked.seek(0), linked.read()")[1] == "what has another name"
