"""Files that changed while a session was away: harmless, or refused by name."""

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.open_files import (
    FileFingerprint,
    contents_digest,
)
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import beneath

ROOT = Path("/proc/self/root")


def compare(opened, root: Path) -> list[Finding]:
    """What is not as it was, as a return refuses it."""
    changed, found = open_files.look(opened, root)
    if changed:
        lost = [one.file for one in changed if not one.file.kept]
        path = open_files.newer(changed, lost)
        found.append(finding(Reason.FILE_CHANGED, path=path))
    return found


class Holder:
    """A process that holds files open, as told, and its fingerprints."""

    def __init__(self, code: str) -> None:
        program = textwrap.dedent(code) + "\nprint('up', flush=True)\ninput()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self.process.stdout.readline() != b"up\n":
            self.close()
            pytest.fail("the holder has failed")
        pid = self.process.pid
        self.opened = open_files.fingerprint(pid, [pid])

    def one(self, path: Path) -> FileFingerprint:
        (found,) = [o for o in self.opened if o.path == os.fsencode(path)]
        return found

    def compare(self):
        return compare(self.opened, ROOT)

    def codes(self) -> list[str]:
        return [finding.code for finding in self.compare()]

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def hold():
    made = []

    def make(code: str) -> Holder:
        made.append(Holder(code))
        return made[-1]

    yield make
    for holder in made:
        holder.close()


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    return path


def test_compare_nothing_changed_finds_nothing(hold, path):
    holder = hold(f"f = open({str(path)!r}, 'r+b'); f.seek(7)")
    assert holder.compare() == []
    one = holder.one(path)
    assert (one.written, one.appended, one.position, one.size) == (
        True,
        False,
        7,
        10_000,
    )


def test_fingerprint_survives_json(hold, path):
    odd = path.parent / os.fsdecode(b"\xff name\n")
    odd.write_bytes(b"")
    holder = hold(f"f = open({os.fsencode(odd)!r}, 'ab')")
    assert holder.one(odd).appended
    data = msgspec.json.encode(holder.opened)
    assert msgspec.json.decode(data, type=list[FileFingerprint]) == holder.opened


def test_fingerprint_kernel_files_and_deleted_ones_are_left_out(hold, path):
    holder = hold(
        f"import os; f = open({str(path)!r}); os.unlink({str(path)!r});"
        "p = open('/proc/self/stat'); c = open('/sys/kernel/uevent_seqnum')"
    )
    paths = [one.path for one in holder.opened]
    assert not [p for p in paths if p.startswith((b"/proc", b"/sys", bytes(path)))]
    assert paths  # the libraries


def test_compare_file_gone_is_refused_by_name(hold, path):
    holder = hold(f"f = open({str(path)!r})")
    path.unlink()
    (finding,) = holder.compare()
    assert (finding.code, finding.fatal) == ("file_missing", True)
    assert finding.message.startswith(f"The file {path}, ")
    assert str(path) in finding.message


def test_compare_folder_in_its_place_counts_as_gone(hold, path):
    holder = hold(f"f = open({str(path)!r})")
    path.unlink()
    path.mkdir()
    assert holder.codes() == ["file_missing"]


@pytest.mark.parametrize(
    ("mode", "codes"), [("rb", []), ("ab", []), ("r+b", ["file_changed"])]
)
def test_compare_grown_file_read_or_appended_is_taken(hold, path, mode, codes):
    holder = hold(f"f = open({str(path)!r}, {mode!r})")
    with path.open("ab") as file:
        file.write(b"more")
    assert holder.codes() == codes


@pytest.mark.parametrize(
    ("mode", "code"),
    [("rb", "file_shrank"), ("ab", "file_changed"), ("r+b", "file_changed")],
)
def test_compare_shorter_file_is_refused(hold, path, mode, code):
    holder = hold(f"f = open({str(path)!r}, {mode!r})")
    os.truncate(path, 9_999)
    assert holder.codes() == [code]


def test_compare_log_of_other_contents_is_refused_however_long_it_is(hold, path):
    """As one that was rotated: copied, and emptied."""
    holder = hold(f"f = open({str(path)!r}, 'ab')")
    path.write_bytes(b"y" * 20_000)
    assert holder.codes() == ["file_changed"]


def test_all_files_that_have_changed_are_told_at_once(hold, tmp_path):
    paths = [tmp_path / f"file-{number}" for number in range(7)]
    for one in paths:
        one.write_bytes(b"then")
    holder = hold(f"all = [open(p, 'r+b') for p in {[str(p) for p in paths]!r}]")
    for one in paths:
        one.write_bytes(b"now")
    (finding,) = holder.compare()
    assert finding.code == "file_changed"
    assert all(str(one) in finding.message for one in paths[:5])
    assert " UTC, not kept) and 2 more." in finding.message
    assert len(finding.hint) > 0


@pytest.mark.parametrize("program", ["WRITES", "MAPS_SHARED", "LOG"])
def test_time_of_a_file_says_nothing_behind_a_save_point(hold, path, program):
    programs = {
        "WRITES": WRITES,
        "MAPS_SHARED": MAPS_SHARED,
        "LOG": "f = open({path!r}, 'ab')",
    }
    holder = hold(programs[program].format(path=str(path)))
    status = path.stat()
    path.write_bytes(b"y" * 10_000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = compare(open_files.by_contents(holder.opened), ROOT)
    assert [one.code for one in found] == ["file_changed"]
    path.write_bytes(b"x" * 10_000)
    assert compare(open_files.by_contents(holder.opened), ROOT) == []


def test_mapped_file_too_large_to_be_known_counts_as_changed(hold, path, monkeypatch):
    monkeypatch.setattr(open_files, "MAX_WRITTEN_BYTES", 9_999)
    holder = hold(MAPS_SHARED.format(path=str(path)))
    assert holder.compare() == []
    found = compare(open_files.by_contents(holder.opened), ROOT)
    assert [one.code for one in found] == ["file_changed"]


WRITES = "f = open({path!r}, 'r+b')"
MAPS_SHARED = WRITES + "; import mmap; m = mmap.mmap(f.fileno(), 0)"


@pytest.mark.parametrize("program", [WRITES, MAPS_SHARED])
def test_compare_file_that_was_put_back_is_taken(hold, path, program):
    holder = hold(program.format(path=str(path)))
    assert holder.one(path).shared is (program == MAPS_SHARED)
    path.write_bytes(b"y" * 10_000)
    assert holder.codes() == ["file_changed"]
    path.unlink()
    path.write_bytes(b"x" * 10_000)  # another time, another inode
    assert holder.compare() == []


def test_compare_program_that_is_being_written_needs_all_its_bytes(hold, library):
    """Its build ID says which link it is from, not what was written since."""
    holder = hold(WRITES.format(path=str(library)))
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    library.write_bytes(data)
    assert holder.codes() == ["file_changed"]


def test_written_files_are_hashed_up_to_so_many_bytes(hold, path, monkeypatch):
    monkeypatch.setattr(open_files, "MAX_WRITTEN_BYTES", 12_000)
    small, large = path.with_name("small"), path.with_name("large")
    small.write_bytes(b"s" * 2_000)
    large.write_bytes(b"l" * 10_001)
    holder = hold(
        ";".join(
            f"f{n} = open({str(p)!r}, 'r+b')" for n, p in enumerate([large, small])
        )
    )
    assert holder.one(small).digest
    assert not holder.one(large).digest


def test_contents_that_a_mapping_has_written_are_hashed_anew(hold, path):
    holder = hold(MAPS_SHARED.format(path=str(path)))
    before, status = holder.one(path).digest, path.stat()
    with path.open("r+b") as file:
        file.write(b"z")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    pid = holder.process.pid
    (now,) = [
        one
        for one in open_files.fingerprint(pid, [pid])
        if one.path == os.fsencode(path)
    ]
    assert now.digest != before


@pytest.mark.parametrize("mode", ["ACCESS_READ", "ACCESS_WRITE"])
def test_compare_mapped_file_is_never_taken_shorter(hold, path, mode):
    holder = hold(
        f"import mmap; f = open({str(path)!r}, 'r+b');"
        f"m = mmap.mmap(f.fileno(), 0, access=mmap.{mode})"
    )
    path.write_bytes(b"shorter")
    assert holder.codes()


def test_compare_other_mode_only_is_taken(hold, path):
    holder = hold(f"f = open({str(path)!r}, 'r+b')")
    path.chmod(0o600 if path.stat().st_mode & 0o077 else 0o644)
    assert holder.compare() == []


def test_compare_folder_and_fifo_must_only_be_there(hold, tmp_path):
    folder, fifo = tmp_path / "folder", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    holder = hold(
        f"import os; f = open({str(fifo)!r}, 'r+b', 0); os.chdir({str(folder)!r})"
    )
    (folder / "new").touch()
    folder.chmod(0o711)
    fifo.chmod(0o600)
    assert holder.compare() == []
    (folder / "new").unlink()
    folder.rmdir()
    fifo.unlink()
    fifo.write_text("a file now")
    assert holder.codes() == ["file_missing", "file_missing"]
    assert any(one.message.startswith("The folder ") for one in holder.compare())


def make_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table t(a)")
    database.close()


def test_compare_database_that_grew_is_taken(hold, tmp_path):
    path = tmp_path / "history.sqlite"
    make_database(path)
    holder = hold(
        f"import sqlite3; c = sqlite3.connect({str(path)!r});"
        "c.execute('select * from t')"
    )
    assert holder.one(path).database
    with sqlite3.connect(path) as database:
        database.execute("insert into t values (zeroblob(20000))")
    database.close()
    assert holder.compare() == []


@pytest.mark.parametrize(
    "begins",
    [
        # Its journal is in memory, or it only reads yet, and would write on from that.
        ("pragma journal_mode=memory", "begin", "select * from t"),
        ("pragma journal_mode=memory", "begin", "insert into t values (1)"),
        ("pragma cache_spill=0; ", "begin exclusive", "insert into t values (1)"),
    ],
)
def test_compare_database_in_a_transaction_is_refused(hold, tmp_path, begins):
    path = tmp_path / "history.sqlite"
    make_database(path)
    holder = hold(f"""
        import sqlite3
        c = sqlite3.connect({str(path)!r}, isolation_level=None)
        for words in {begins!r}:
            rows = c.execute(words)
        rows.fetchone()
        """)
    assert not holder.one(path).database
    with path.open("ab") as file:
        file.write(b"x" * 4096)
    assert "file_changed" in holder.codes()


def test_compare_database_with_a_hot_journal_now_is_refused(hold, tmp_path):
    path = tmp_path / "history.sqlite"
    make_database(path)
    holder = hold(
        f"import sqlite3; c = sqlite3.connect({str(path)!r});"
        "c.execute('select * from t')"
    )
    with path.open("ab") as file:
        file.write(b"x" * 4096)
    Path(f"{path}-journal").write_bytes(b"journal")
    assert holder.codes() == ["file_changed"]


LOAD = "import ctypes; ctypes.CDLL({!r})"


@pytest.fixture
def library(tmp_path) -> Path:
    """A real library of this machine, as a user's environment would hold it."""
    with Path("/proc/self/maps").open() as maps:
        source = next(line.split()[-1] for line in maps if "/libc.so" in line)
    path = tmp_path / "libmine.so"
    shutil.copyfile(source.replace("libc.so.6", "libutil.so.1"), path)
    return path


def test_compare_library_replaced_by_an_equal_one_is_taken(hold, library):
    holder = hold(LOAD.format(str(library)))
    assert holder.one(library).mapped
    assert holder.one(library).digest
    copy = library.with_suffix(".new")
    shutil.copyfile(library, copy)
    copy.rename(library)
    assert holder.compare() == []


def test_compare_library_replaced_by_another_is_refused(hold, library):
    holder = hold(LOAD.format(str(library)))
    other = library.with_suffix(".new")
    data = bytearray(library.read_bytes())
    kind, _, build_id = holder.one(library).digest.partition(":")
    assert kind == "build-id"
    data[data.index(bytes.fromhex(build_id))] ^= 1
    other.write_bytes(data)
    other.rename(library)
    (finding,) = holder.compare()
    assert finding.code == "library_changed"
    assert str(library) in finding.message


def test_compare_mapped_data_of_other_contents_is_refused(hold, path):
    holder = hold(
        f"import mmap; f = open({str(path)!r});"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    )
    assert holder.one(path).digest.startswith("blake3:")
    path.write_bytes(b"y" * 10_000)
    assert holder.codes() == ["file_changed"]


def test_compare_links_of_the_session_do_not_lead_out_of_its_root(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "home").symlink_to("/../../etc")
    status = Path("/etc/passwd").stat()
    one = FileFingerprint(
        path=b"/home/passwd",
        device=0,
        inode=0,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        mode=status.st_mode,
    )
    assert [f.code for f in compare([one], root)] == ["file_missing"]


def test_compare_without_a_root_is_refused(tmp_path):
    with pytest.raises(Refused):
        compare([], tmp_path / "none")


def test_digest_header_that_lies_is_hashed_instead(tmp_path):
    path = tmp_path / "liar"
    path.write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 200)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert contents_digest(descriptor).startswith("blake3:")
    finally:
        os.close(descriptor)


PROGRAM = """
import os, sys, time
log = open({log!r}, "a")
os.chdir({folder!r})
read = open({read!r})
print("up", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
log.write("mine\\n"); log.flush()
print("read", repr(read.read()), flush=True)
"""


def test_session_with_grown_files_comes_back_by_their_fingerprints(
    places, engine, tmp_path
):
    """Without a fingerprint, a file of another size is refused."""
    log, read, go = tmp_path / "log", tmp_path / "read", tmp_path / "go"
    folder = tmp_path / "folder"
    folder.mkdir()
    log.write_text("")
    read.write_text("first ")
    program = PROGRAM.format(
        log=str(log), read=str(read), go=str(go), folder=str(folder)
    )
    place = places.start(sys.executable, "-c", program)
    place.read_until("up\n")
    saved = engine.save(place)
    log.write_text("somebody's\n")
    read.write_text("first second")
    log.chmod(0o600)
    folder.chmod(0o700)
    place = places.hold()
    with pytest.raises(RestoreFailed, match="file_changed"):
        saved.restore(place, opened=())
    place.kill()
    place = saved.back(places.hold())
    go.touch()
    place.read_until("read 'first second'\n")
    assert log.read_text() == "somebody's\nmine\n"


def test_open_file_in_root_opens_nothing_but_regular_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("/file")  # of the root, not of the machine
    (tmp_path / "other").symlink_to("/fifo")
    root = beneath.open_root(tmp_path)
    try:
        for name in (b"file", b"link"):
            descriptor = beneath.open_file_in_root(root, name)
            assert os.read(descriptor, 9) == b"x"
            os.close(descriptor)
        for name in (b"fifo", b"other", b"."):
            with pytest.raises(OSError, match="Invalid argument"):
                beneath.open_file_in_root(root, name)
    finally:
        os.close(root)


def away(world, places, engine, change):
    """The session after a suspend in which something was changed."""
    saved = engine.save(world.place)
    change()
    assert compare(saved.opened, ROOT) == []
    return world.at(saved.back(places.hold()))


WATCH = """
import ctypes, struct
libc = ctypes.CDLL(None)
instance = libc.inotify_init1(os.O_NONBLOCK)
numbers = [libc.inotify_add_watch(instance, path.encode(), mask)
           for path, mask in {watched!r}]

def events():
    try:
        data = os.read(instance, 9999)
    except BlockingIOError:
        return []
    found = []
    while data:
        number, mask, _, size = struct.unpack_from("iIII", data)
        found.append((numbers.index(number), mask))
        data = data[16 + size:]
    return found
"""
IN_CREATE, IN_DELETE_SELF, IN_IGNORED, IN_ISDIR = 0x100, 0x400, 0x8000, 1 << 30


def test_removed_folder_that_was_watched_is_told_like_any_other(
    places, engine, tmp_path
):
    names = ["kept", "told", "plain"]
    masks = [IN_CREATE, IN_CREATE | IN_DELETE_SELF, IN_CREATE]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    world = places.world()
    world(WATCH.format(watched=[*zip(map(str, folders), masks, strict=True)]))
    world = away(world, places, engine, lambda: [one.rmdir() for one in folders[1:]])
    assert world("events()") == [(1, IN_DELETE_SELF), (1, IN_IGNORED), (2, IN_IGNORED)]
    (folders[0] / "new").touch()
    assert world("events()") == [(0, IN_CREATE)]


def test_removed_fifo_is_without_a_name_and_works_on(places, engine, tmp_path):
    fifo = tmp_path / "fifo"
    world = places.world()
    world(f"""
os.mkfifo({str(fifo)!r})
read = os.open({str(fifo)!r}, os.O_RDONLY | os.O_NONBLOCK)
write = os.open({str(fifo)!r}, os.O_WRONLY)
os.write(write, b"unread")
""")
    world = away(world, places, engine, fifo.unlink)
    assert world("os.write(write, b' and more'); os.read(read, 99)") == (
        b"unread and more"
    )
    assert list(tmp_path.glob("*fifo*")) == []


def test_folder_of_a_socket_that_was_removed_is_made_again(places, engine, tmp_path):
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    path = folder / "socket"
    world = places.world()
    world(f"""
server = socket.socket(socket.AF_UNIX)
server.bind({str(path)!r})
server.listen()
""")
    world = away(world, places, engine, lambda: shutil.rmtree(tmp_path / "one"))
    assert (
        world(f"""
client = socket.socket(socket.AF_UNIX)
client.connect({str(path)!r})
server.accept()[0].sendall(b"here")
client.recv(99)
""")
        == b"here"
    )
    assert folder.stat().st_mode & 0o777 == 0o700


def test_socket_whose_folder_cannot_be_made_again_works_on_without_a_name(
    places, engine, tmp_path
):
    folder = tmp_path / "one"
    folder.mkdir()
    world = places.world()
    world(f"""
server = socket.socket(socket.AF_UNIX)
server.bind({str(folder / "socket")!r})
server.listen()
""")

    def change():
        shutil.rmtree(folder)
        folder.write_text("in the way")

    world = away(world, places, engine, change)
    assert world("server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)") == 1
