"""A return is tried beside the tree that stands, and leaves no trace of itself.

That it accepts whatever comes back is tried by ``Engine.cycle``, which rehearses each.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import HELPER
from jupyterhub_gpu_reclaim.checkpoint.kinds.watches import new_instance
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import (
    without_memory,
    without_pages,
)
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.place import empty_place
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped, rehearse
from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from tests.checkpoint.conftest import Image, fingerprints, wait_for

#: Root without the capabilities by which it opens what is not its own.
LIKE_A_USER = """
import ctypes, struct
head, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
libc = ctypes.CDLL(None)
libc.capget(head, data)
words = list(struct.unpack("6I", data.raw))
words[0] &= ~0x6; words[1] &= ~0x6
libc.capset(head, struct.pack("6I", *words))
"""


@pytest.fixture
def dumped(places, engine):
    stood = []

    def dumped(setup: str):
        world = places.world()
        world(setup)
        result = engine.dump(world.place, Image().sink)
        stood.append((world, result))
        return world, Dumped(result, fingerprints(world.place), ())

    yield dumped
    for world, result in stood:
        thaw(world.place.tree, result.stopped)
        assert world("1 + 1") == 2, "it does not go on"


def places_there(parent: int | None = None) -> list[int]:
    line = ["pgrep", "-f", HELPER.name, "-P", str(parent or os.getpid())]
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def listing(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything that tells whether somebody was there, but for times of access."""
    return {
        str(path): (s.st_ino, s.st_mode, s.st_uid, s.st_size, s.st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
        for s in [path.lstat()]
    }


#: What a return has to make, to lock or to watch among the user's files.
EVERYTHING = """
import fcntl, tempfile, ctypes
os.chdir({folder!r})
locked = open("locked", "w"); fcntl.flock(locked, fcntl.LOCK_EX)
server = socket.socket(socket.AF_UNIX); server.bind("named"); server.listen()
ears, mouth = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "12")
ears.bind({folder!r} + "/ears"); mouth.connect({folder!r} + "/ears")
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR); os.write(fifo, b"in it")
notes = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK)
events = 0x2 | 0x40 | 0x80 | 0x100 | 0x200  # written, moved, made, deleted
ctypes.CDLL(None).inotify_add_watch(notes, b".", events)
gone = open("gone", "w+"); gone.write("deleted"); gone.flush(); os.unlink("gone")
try:
    os.read(notes, 65536)
except BlockingIOError:
    pass
"""


def test_rehearsal_leaves_no_trace_among_the_users_files(dumped, engine, tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    world, saved = dumped(EVERYTHING.format(folder=str(folder)))
    before = listing(folder)
    engine.rehearse(world.place, saved)
    assert listing(folder) == before
    wait_for(lambda: not places_there())
    thaw(world.place.tree, saved.result.stopped)
    check = """
def events():
    try:
        return os.read(notes, 65536)
    except BlockingIOError:
        return b""
seen = events()
client = socket.socket(socket.AF_UNIX)
client.connect("named"); accepted, _ = server.accept(); client.send(b"hi")
mouth.send(b"hello")
"""
    world(check)
    assert world("seen") == b""
    assert world("accepted.recv(9), ears.recv(9), os.read(fifo, 9)") == (
        b"hi",
        b"hello",
        b"in it",
    )
    assert world("gone.seek(0), gone.read()") == (0, "deleted")
    with (folder / "locked").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: Every way of having a file open for writing.
WRITERS = """
import mmap
os.chdir({folder!r})
written, appended = open("written", "w"), open("appended", "a")
written.write("half a line"); written.flush()
both = open("both", "r+b")
direct = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
file = open("mapped", "r+b"); mapped = mmap.mmap(file.fileno(), 0); file.close()
file = open("seen", "r+b")
seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); file.close()
"""
IN_CLOSE_WRITE = 0x8


def test_rehearsal_tells_nobody_that_a_file_was_closed_after_writing(
    dumped, engine, tmp_path
):
    """Whoever waits for that takes what is there for whole."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("both", "mapped", "seen"):
        (folder / name).write_bytes(b"x" * 8192)
    world, saved = dumped(WRITERS.format(folder=str(folder)))
    before = listing(folder)
    watcher = new_instance(os.O_NONBLOCK)
    libc = ctypes.CDLL(None)
    assert libc.inotify_add_watch(watcher, bytes(folder), IN_CLOSE_WRITE) > 0
    engine.rehearse(world.place, saved)
    with pytest.raises(BlockingIOError):
        print(os.read(watcher, 4096))
    os.close(watcher)
    assert listing(folder) == before


def test_rehearsal_of_a_file_on_what_can_no_longer_be_written_refuses(
    dumped, engine, tmp_path
):
    folder = tmp_path / "disk"
    folder.mkdir()
    world, saved = dumped(f"file = open({str(folder / 'log')!r}, 'w')")
    inside = ["nsenter", f"--mount=/proc/{world.place.init_pid}/ns/mnt", "mount"]
    subprocess.run([*inside, "--bind", folder, folder], check=True)
    subprocess.run([*inside, "-o", "remount,bind,ro", folder], check=True)
    with pytest.raises(RolledBack) as caught:
        engine.rehearse(world.place, saved)
    assert caught.value.reason is Reason.WOULD_NOT_RETURN
    assert "Read-only" in caught.value.message


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_rehearsal_of_a_file_that_its_user_may_not_open_refuses(
    dumped, engine, tmp_path, mode
):
    path = tmp_path / "another's"
    path.write_text("secret")
    os.chown(path, 54321, 54321)
    path.chmod(mode)
    world, saved = dumped(f"file = open({str(path)!r}, 'r+')\n" + LIKE_A_USER)
    with pytest.raises(RolledBack) as caught:
        engine.rehearse(world.place, saved)
    assert caught.value.reason is Reason.WOULD_NOT_RETURN
    assert str(path) in caught.value.message
    assert f"({Path(sys.executable).name}) has it" in caught.value.message
    assert not caught.value.retryable
    wait_for(lambda: not places_there())


def test_rehearsal_of_a_folder_closed_to_the_socket_in_it_refuses(
    dumped, engine, tmp_path
):
    folder = tmp_path / "closed"
    folder.mkdir()
    setup = f"one = socket.socket(socket.AF_UNIX); one.bind({str(folder)!r} + '/named')"
    world, saved = dumped(f"{setup}\nos.chown({str(folder)!r}, 1, 1)\n{LIKE_A_USER}")
    with pytest.raises(RolledBack) as caught:
        engine.rehearse(world.place, saved)
    assert caught.value.reason is Reason.WOULD_NOT_RETURN
    assert "named" in caught.value.message


def test_rehearsal_of_a_file_that_somebody_has_removed_refuses(
    dumped, engine, tmp_path
):
    path = tmp_path / "data.csv"
    path.write_text("1,2")
    world, saved = dumped(f"file = open({str(path)!r})")
    path.unlink()
    with pytest.raises(RolledBack) as caught:
        engine.rehearse(world.place, saved)
    assert caught.value.reason is Reason.WOULD_NOT_RETURN
    assert str(path) in caught.value.message


#: Files as ``git``, ``rsync`` and SQLite have them open for a moment.
IN_PASSING = """
import mmap, shutil
os.chdir({folder!r})
pack, journal = open("pack.tmp", "w+"), open("journal", "r+")
seen, mapped = open("seen"), mmap.mmap(os.open("mapped", os.O_RDWR), 0)
part = open("folder/part"); os.chdir("folder")
"""
AFTERWARDS = """
os.chdir({folder!r})
os.rename("pack.tmp", "pack"); os.unlink("journal"); os.rename("mapped", "other")
open("new", "w").write("another, of another size"); os.rename("new", "seen")
shutil.rmtree("folder")
"""


@pytest.mark.parametrize("fingerprinted", [True, False])
def test_rehearsal_beside_a_tree_that_goes_on_needs_no_file_that_is_gone(
    dumped, engine, tmp_path, fingerprinted
):
    """What is in an archive has no fingerprint."""
    folder = tmp_path / "home"
    (folder / "folder").mkdir(parents=True)
    for name in ("journal", "seen", "mapped", "folder/part"):
        (folder / name).write_text("something")
    world, saved = dumped(IN_PASSING.format(folder=str(folder)))
    pids = {one.ns_pid: one.pid for one in world.place.tree.processes}
    memory = without_pages(saved.result.images, pids)
    saved = saved._replace(memory=memory)
    if not fingerprinted:
        saved = saved._replace(opened=())
    thaw(world.place.tree, saved.result.stopped)
    world(AFTERWARDS.format(folder=str(folder)))
    engine.rehearse(world.place, saved)
    with pytest.raises(RolledBack):
        engine.rehearse(world.place, saved._replace(memory=None))


def test_rehearsal_takes_none_of_the_memory(dumped, engine):
    setup = """
import ctypes, mmap
held = bytearray(os.urandom(1 << 20) * 64)
shared = mmap.mmap(-1, 32 << 20); shared.write(b"x" * (32 << 20))
locked = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
locked.write(b"x" * (32 << 20))
address = ctypes.addressof(ctypes.c_char.from_buffer(locked))
assert ctypes.CDLL(None).mlock(ctypes.c_void_p(address), 32 << 20) == 0
"""
    world, saved = dumped(setup)
    pids = {one.ns_pid: one.pid for one in world.place.tree.processes}
    memory = without_pages(saved.result.images, pids)
    source = without_memory(saved.result.images, memory)
    pages = [f"pages-{number}.img" for number in range(1, 9)]
    assert any(source.size(name) for name in pages)  # the vDSO
    assert sum(source.size(name) or 0 for name in pages) < 1 << 20
    engine.rehearse(world.place, saved)


def test_rehearsal_takes_none_of_the_watches_that_its_user_may_have(
    dumped, engine, tmp_path
):
    """Those of the tree, which stands beside it, leave no room for as many again."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances").read_text()
    folder = tmp_path / "watched"
    folder.mkdir()
    setup = f"""
import ctypes
libc = ctypes.CDLL(None)
notes = [libc.inotify_init1(os.O_NONBLOCK) for _ in range({int(limit) * 5 // 8})]
assert min(libc.inotify_add_watch(one, {bytes(folder)!r}, 0x100) for one in notes) > 0
"""
    world, saved = dumped(setup)
    engine.rehearse(world.place, saved)
    thaw(world.place.tree, saved.result.stopped)
    (folder / "made").touch()
    assert world("{len(os.read(one, 4096)) for one in notes}") == {32}


def test_rehearsal_that_is_called_off_ends_at_once(dumped, engine):
    world, saved = dumped("1")
    cancel = Cancel()
    cancel.set()
    with pytest.raises(RolledBack) as caught:
        rehearse(
            engine.criu,
            world.place.session,
            saved,
            folder=engine.work(),
            limit=60,
            cancel=cancel,
        )
    assert caught.value.reason is Reason.CANCELLED
    wait_for(lambda: not places_there())


def test_place_ends_with_the_agent_that_made_it(places):
    script = """
import signal, sys
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.place import empty_place
with empty_place(SessionInit(*map(int, sys.argv[1:]))) as init:
    print(init.init_pid, init.init_start, flush=True)
    signal.pause()
"""
    session = places.world().place.session
    facts = map(str, (session.init_pid, session.init_start))
    line = [sys.executable, "-c", script, *facts]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as maker:
        pid, start = map(int, maker.stdout.readline().split())
        assert processes.start_time(pid) == start
        maker.send_signal(signal.SIGKILL)
    wait_for(lambda: processes.start_time(pid) != start)


def test_place_has_nothing_of_the_session_but_its_files(places):
    world = places.world()
    with empty_place(world.place.session) as init:
        here = Path(f"/proc/{init.init_pid}")
        there = Path(f"/proc/{world.place.init_pid}")
        for kind in ("pid", "mnt", "net", "ipc", "uts"):
            assert (here / "ns" / kind).readlink() != (there / "ns" / kind).readlink()
        assert names_in(here / "root/dev/pts") == ["ptmx"]
        assert (here / "root/etc").stat().st_ino == (there / "root/etc").stat().st_ino
        shown = names_in(here / "root/proc")
        assert [name for name in shown if name.isdecimal()] == ["1"]
    wait_for(lambda: processes.start_time(init.init_pid) != init.init_start)
