"""Files are put back as they were, and nothing newer is ever gone."""

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import sqlite3
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.files import open_files, put_back
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from tests.checkpoint.test_kept_files import ROOT, Keeper
from tests.support.long_stories import but

#: 13:55 UTC
MOMENT = 1_700_142_900.0
INSIDE = Path("/proc/self/root")


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """Of the machine's programs only this one and its children are looked at."""

    def own():
        found = [os.getpid()]
        for task in Path("/proc/self/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, task.read_text().split())
        return found

    monkeypatch.setattr(put_back.procfs, "pids", own)


class Then:
    """A save point of what this process has open below a folder."""

    def __init__(
        self, folder: Path, limit: int = 1 << 28, who: Credentials = ROOT
    ) -> None:
        self.folder = folder
        self.keeper = Keeper(limit)
        self.keeper.take(who)
        files = self.keeper.kept.deliver(self.keeper.file, Cancel())
        self.keeper.kept.close()
        prefix = os.fsencode(folder) + b"/"
        files = [one for one in files if one.path.startswith(prefix)]
        self.files = open_files.by_contents(files)

    def changed(self) -> list[open_files.FileFingerprint]:
        return [one.file for one in open_files.look(self.files, INSIDE)[0]]

    def put_back(self, who: Credentials = ROOT, step: int = 1 << 30) -> list[str]:
        def read(name):
            whole = self.keeper.stored[name].getvalue()
            return [whole[at : at + step] for at in range(0, len(whole), step)]

        return put_back.put_back(
            os.getpid(),
            self.changed(),
            self.files,
            who,
            moment=MOMENT,
            read=read,
        )


def contents(folder: Path) -> set[bytes]:
    return {one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def reads(path: Path):
    with path.open("rb") as file:
        yield file


def writes(path: Path):
    with path.open("r+b") as file:
        yield file


def appends(path: Path):
    with path.open("ab") as file:
        yield file


def maps(path: Path):
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    yield shared
    shared.close()


def maps_to_read(path: Path):
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        yield shared
        shared.close()


KINDS = {
    "read": reads,
    "written": writes,
    "appended": appends,
    "mapped": maps,
    "mapped to be read": maps_to_read,
}


def fresh(path: Path) -> None:
    other = path.with_name("fresh")
    other.write_bytes(b"newer, by another name")
    other.replace(path)


SINCE = {
    "nothing": lambda _: None,
    "grown": lambda path: path.write_bytes(path.read_bytes() + b" and newer"),
    "overwritten": lambda path: path.write_bytes(b"newer" * 1000),
    "shorter": lambda path: os.truncate(path, 3),
    "gone": lambda path: path.unlink(),
    "replaced": fresh,
    "a folder was there": lambda path: (
        (path.parent / "newer than 13:55").mkdir(),
        (path.parent / "newer than 13:55" / path.name).write_bytes(b"older newer"),
        path.write_bytes(b"newest"),
    ),
    "a link was there": lambda path: (
        (path.parent / "newer than 13:55").symlink_to("/"),
        path.write_bytes(b"newest"),
    ),
    "a journal has come": lambda path: (
        path.write_bytes(b"newest"),
        path.with_name(path.name + "-journal").write_bytes(b"hot"),
        path.with_name(path.name + "-wal").write_bytes(b"newest, too"),
    ),
}


@pytest.mark.parametrize(("kind", "since"), list(itertools.product(KINDS, SINCE)))
def test_nothing_newer_is_ever_gone(tmp_path, kind, since):
    path = tmp_path / "file"
    path.write_bytes(b"then " * 2000)
    inode = path.stat().st_ino
    with contextlib.contextmanager(KINDS[kind])(path):
        then = Then(tmp_path)
        SINCE[since](path)
    newer = contents(tmp_path)
    before = path.read_bytes() if path.exists() else None
    changed = then.changed()
    if kind == "read":
        assert changed == []
        return
    then.put_back()
    assert newer <= contents(tmp_path)
    assert then.changed() == []
    if since not in {"gone", "replaced"}:
        assert path.stat().st_ino == inode  # SQLite asks for that
    grown = kind == "appended" and since == "grown"
    assert path.read_bytes() == (before if grown else b"then " * 2000)
    if changed and before is not None:
        assert not path.with_name("file-journal").exists()
        assert not path.with_name("file-wal").exists()
    assert not list(tmp_path.glob(".*"))


#: Calls that change something.
CALLS = (
    *("open", "mkdir", "write", "ftruncate", "fchmod", "fchown", "utime", "fsync"),
    *("link", "unlink", "rmdir", "rename"),
)


class Failing:
    """The operating system, of which one call fails."""

    def __init__(self, number: int, *, killed: bool) -> None:
        self.number, self.killed, self.count = number, killed, 0

    def __getattr__(self, name: str):
        real = getattr(os, name)
        return partial(self._call, real) if name in CALLS else real

    def renameat2(self, *words):
        return self._call(real_renameat2, *words)

    def _call(self, real, *words, **more):
        self.count += 1
        if self.count < self.number or (self.count > self.number and not self.killed):
            return real(*words, **more)
        if not self.killed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.count == self.number and self.number % 2:  # it has done this one
            real(*words, **more)
        raise KeyboardInterrupt


real_renameat2 = put_back.libc.renameat2


def old_renameat2(*_):
    """As of NFS."""
    ctypes.set_errno(errno.EINVAL)
    return -1


#: What its file system lacks.
LACKS = {"nothing": (), "names and flags": ("O_TMPFILE", "renameat2")}


@pytest.mark.parametrize(
    ("how", "lacks"),
    but(
        list(itertools.product(["killed", "no room"], LACKS)),
        ("killed", "nothing"),
        ("no room", "names and flags"),
    ),
)
def test_whatever_call_of_it_is_the_last_nothing_is_gone_and_the_next_try_ends_it(
    tmp_path, monkeypatch, lacks, how
):
    # Nobody else has them open: asking each time would take long.
    monkeypatch.setattr(put_back.procfs, "pids", list)
    if "O_TMPFILE" in LACKS[lacks]:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    number, ended = 0, False
    while not ended:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        then, newer = two_databases(folder)
        with monkeypatch.context() as patch:
            failing = Failing(number, killed=how == "killed")
            patch.setattr(put_back, "os", failing)
            rename = old_renameat2 if "renameat2" in LACKS[lacks] else failing.renameat2
            patch.setattr(put_back, "libc", SimpleNamespace(renameat2=rename))
            try:
                then.put_back()
            except (KeyboardInterrupt, RestoreFailed):
                pass
            else:
                ended = failing.count < number
        assert newer <= contents(folder), number
        if "renameat2" in LACKS[lacks]:
            with monkeypatch.context() as patch:
                old = SimpleNamespace(renameat2=old_renameat2)
                patch.setattr(put_back, "libc", old)
                then.put_back()
        else:
            then.put_back()
        assert newer <= contents(folder), number
        assert then.changed() == []
        assert not [each for each in folder.iterdir() if each.name.startswith(".back")]
        assert (folder / ".a.sqlite.back").read_bytes() == b"the user's"
    assert number > 20


def two_databases(folder: Path) -> tuple[Then, set[bytes]]:
    """Each with a journal, of then and of now, and what they hold now."""
    (folder / ".a.sqlite.back").write_bytes(b"the user's")
    names = ("a.sqlite", "a.sqlite-wal", "b.sqlite", "b.sqlite-wal")
    with contextlib.ExitStack() as stack:
        for name in names:
            (folder / name).write_bytes(f"then {name}".encode())
            stack.enter_context((folder / name).open("r+b"))
        then = Then(folder)
    for name in (*names, "a.sqlite-shm", "b.sqlite-journal"):
        (folder / name).write_bytes(f"now {name}".encode())
    return then, contents(folder)


def test_where_one_cannot_be_put_back_all_stay_as_they_are(tmp_path, monkeypatch):
    then, newer = two_databases(tmp_path)
    names = sorted(each.name for each in tmp_path.iterdir())
    real = then.keeper.stored[then.files[-1].kept].getvalue

    def fail():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(then.keeper.stored[then.files[-1].kept], "getvalue", fail)
    with pytest.raises(RestoreFailed, match="restore_failed") as failed:
        then.put_back()
    assert "b.sqlite" in failed.value.message
    assert "No space left on device" in failed.value.message
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert contents(tmp_path) == newer
    monkeypatch.setattr(then.keeper.stored[then.files[-1].kept], "getvalue", real)
    assert len(then.put_back()) == 1


def test_database_is_moved_with_its_journals_and_keeps_owner_mode_and_time(tmp_path):
    path = tmp_path / "data.sqlite"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (n)")
    database.execute("insert into t values (1)")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, -1, 4712)
    was = path.stat()
    then = Then(tmp_path)
    database.execute("insert into t values (2)")
    database.execute("pragma wal_checkpoint")
    newest = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    # As when a node is lost: its files stay as they are, and nobody has them open.
    with pytest.raises(RestoreFailed, match="file_in_use") as failed:
        then.put_back()
    assert str(path) in failed.value.message
    assert f"(process {os.getpid()})" in failed.value.message
    saved = tmp_path.parent / "saved"
    saved.mkdir()
    for name, data in newest.items():
        (saved / name).write_bytes(data)
    database.close()
    for one in tmp_path.iterdir():
        one.unlink()
    for one in saved.iterdir():
        one.rename(tmp_path / one.name)
    os.chown(path, was.st_uid, was.st_gid)
    (beside,) = then.put_back()
    assert beside == f"{tmp_path}/newer than 13:55"
    assert {p.name: p.read_bytes() for p in Path(beside).iterdir()} == newest
    now = path.stat()
    assert (now.st_uid, now.st_gid) == (was.st_uid, was.st_gid)
    assert now.st_mode & 0o7777 == 0o640
    for folder, count in ((tmp_path, 1), (Path(beside), 2)):
        with sqlite3.connect(folder / "data.sqlite") as read:
            assert read.execute("select count(*) from t").fetchone() == (count,)
        read.close()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "file"


def saved(path: Path) -> Then:
    """A save point of its folder while it was open."""
    path.write_bytes(b"then")
    with path.open("r+b"):
        return Then(path.parent)


@pytest.fixture
def then(path) -> Then:
    """Of a file that has newer contents now."""
    found = saved(path)
    path.write_bytes(b"newer")
    return found


def test_part_of_a_database_that_was_not_kept_is_told(tmp_path):
    path, log = tmp_path / "data", tmp_path / "data-wal"
    path.write_bytes(b"then, and large")
    log.write_bytes(b"then")
    with path.open("r+b"), log.open("r+b"):
        then = Then(tmp_path, limit=10)
    log.write_bytes(b"newer")
    changed = then.changed()
    (lost,) = put_back.incomplete(changed, then.files)
    assert lost.path == os.fsencode(path)
    words = open_files.newer(open_files.look(then.files, INSIDE)[0], [lost])
    assert words == f"{path} (belongs to it, not kept)"


def test_set_user_id_does_not_come_back(path):
    path.touch()
    path.chmod(0o6755)
    then = saved(path)
    path.write_bytes(b"newer")
    then.put_back()
    assert path.stat().st_mode & 0o7777 == 0o755


def test_file_of_another_program_is_named_and_nothing_is_moved(tmp_path, path, then):
    words = f"f = open({str(path)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(RestoreFailed, match="file_in_use") as failed:
            then.put_back()
        other.communicate(b"\n")
    assert f"(process {other.pid})" in failed.value.message
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert then.put_back() == [f"{tmp_path}/newer than 13:55"]


def test_folder_of_its_name_is_not_moved(path, then):
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"newer")
    with pytest.raises(RestoreFailed, match="restore_failed"):
        then.put_back()
    assert (path / "inside").read_bytes() == b"newer"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_link_in_the_way_leads_nowhere(tmp_path):
    """The folder of the file was replaced by a link to another one."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    path = folder / "file"
    (other / "file").write_bytes(b"another's")
    then = saved(path)
    path.unlink()
    folder.rmdir()
    folder.symlink_to(other)
    with pytest.raises(RestoreFailed, match="restore_failed"):
        then.put_back()
    assert [one.name for one in other.iterdir()] == ["file"]
    assert (other / "file").read_bytes() == b"another's"


def test_folder_that_is_gone_is_made_again(tmp_path):
    folder = tmp_path / "runs" / "1"
    folder.mkdir(parents=True)
    path = folder / "log"
    then = saved(path)
    path.unlink()
    folder.rmdir()
    folder.parent.rmdir()
    assert then.put_back() == []
    assert path.read_bytes() == b"then"
    assert folder.stat().st_mode & 0o777 == 0o755


def test_holes_stay_holes(tmp_path, path):
    with path.open("w+b") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"then")
        file.flush()
        then = Then(tmp_path)
        blocks = path.stat().st_blocks
    path.write_bytes(b"newer")
    then.put_back(step=1 << 20)
    assert then.changed() == []
    assert path.stat().st_size == 64 << 20
    assert path.stat().st_blocks <= blocks + (2 << 20) // 512


def test_what_only_has_the_name_of_a_journal_is_no_part_of_it(tmp_path):
    """A folder, or the name of a working folder, with the log of a training beside."""
    folder, path = tmp_path / "train", tmp_path / "train-wal"
    (folder / "inside").mkdir(parents=True)
    with contextlib.chdir(folder):
        then = saved(path)
    path.write_bytes(b"newer")
    assert put_back.incomplete(then.changed(), then.files) == []
    assert then.put_back() == [f"{tmp_path}/newer than 13:55"]
    assert (folder / "inside").is_dir()


@pytest.fixture
def shared():
    """A folder that others may write, too; its name."""
    if os.geteuid() != 0:
        pytest.skip("needs other users")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        os.chown(folder, 0, 4700)
        folder.chmod(0o2775)
        yield folder


MINE = Credentials(4711, 4711, (4700,))


def of_two(folder: Path, owner: int = 4712) -> tuple[Path, Then]:
    """A file of another member of the group, which the session had open."""
    path = folder / "shared"
    path.write_bytes(b"then")
    os.chown(path, owner, 4700)
    path.chmod(0o664)
    with path.open("r+b"):
        then = Then(folder, who=MINE)
    path.write_bytes(b"newer, of another")
    return path, then


def test_newer_file_of_another_stays_theirs_and_within_their_reach(shared):
    path, then = of_two(shared)
    (beside,) = map(Path, then.put_back(MINE))
    for each in (path, beside / "shared"):
        status = each.stat()
        assert (status.st_uid, status.st_gid) == (4712, 4700)
        assert status.st_mode & 0o777 == 0o664
    status = beside.stat()
    assert (status.st_uid, status.st_gid) == (4711, 4700)
    assert status.st_mode & 0o777 == 0o775


def test_folder_of_another_is_not_used_for_newer_files(shared):
    """Its owner could remove them."""
    path, then = of_two(shared)
    trap = shared / "newer than 13:55"
    trap.mkdir()
    os.chown(trap, 4712, 4700)
    trap.chmod(0o777)
    (beside,) = map(Path, then.put_back(MINE))
    assert beside.name == "newer than 2023-11-16 13:55"
    assert list(trap.iterdir()) == []
    assert path.read_bytes() == b"then"


def test_nothing_is_made_another_users_that_was_not(shared):
    path, then = of_two(shared)
    path.unlink()
    assert then.put_back(MINE) == []
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (4711, 4700)


def test_folder_where_its_user_may_not_write_stays_as_it_is(shared):
    path, then = of_two(shared)
    shared.chmod(0o755)
    with pytest.raises(RestoreFailed, match="restore_failed") as failed:
        then.put_back(MINE)
    assert "Permission denied" in failed.value.message
    assert [each.name for each in shared.iterdir()] == ["shared"]
    assert path.read_bytes() == b"newer, of another"


def in_own_mounts(words: str) -> str:
    """Run Python with mounts of its own; what it prints."""
    program = ["unshare", "--mount", sys.executable, "-c", words]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_disk_without_room_and_a_mount_in_its_place(tmp_path):
    """On a real disk that is full, and where another file is mounted on the newer."""
    words = f"""
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {str(Path.cwd())!r})
from tests.checkpoint.test_put_back import Then, RestoreFailed
disk = Path({str(tmp_path)!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "x", str(disk)], check=True)
path = disk / "file"
path.write_bytes(b"then" * (1 << 20))
with path.open("r+b"):
    then = Then(disk)
path.write_bytes(b"newer" * 10)
(disk / "filler").write_bytes(b"x" * (6 << 20))
try:
    then.put_back()
except RestoreFailed as error:
    print(error.reason.value, error.message)
print(sorted(each.name for each in disk.iterdir()), path.read_bytes() == b"newer" * 10)
(disk / "filler").unlink()
other = disk / "other"
other.write_bytes(b"other")
subprocess.run(["mount", "--bind", str(other), str(path)], check=True)
try:
    then.put_back()
except RestoreFailed as error:
    print(error.reason.value)
print(sorted(each.name for each in disk.iterdir()), path.read_bytes())
subprocess.run(["umount", str(path)], check=True)
print(then.put_back(), path.read_bytes() == b"then" * (1 << 20))
"""
    lines = in_own_mounts(words).splitlines()
    assert lines[0].startswith("restore_failed ")
    assert "No space left on device" in lines[0]
    assert lines[1] == "['file', 'filler'] True"
    assert lines[2] == "restore_failed"
    assert lines[3] == "['file', 'other'] b'other'"
    assert lines[4] == f"['{tmp_path}/newer than 13:55'] True"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_file_that_cannot_be_moved_takes_none_of_its_group_away(tmp_path):
    path, log = tmp_path / "data.sqlite", tmp_path / "data.sqlite-wal"
    for each in (path, log):
        each.write_bytes(b"then " + each.name.encode())
    with path.open("r+b"), log.open("r+b"):
        then = Then(tmp_path)
    for each in (path, log):
        each.write_bytes(b"now " + each.name.encode())
    if subprocess.run(["chattr", "+i", log], check=False).returncode:
        pytest.skip("no such attribute here")
    names = sorted(each.name for each in tmp_path.iterdir())
    try:
        with pytest.raises(RestoreFailed, match="restore_failed"):
            then.put_back()
        assert sorted(each.name for each in tmp_path.iterdir()) == names
        assert path.read_bytes() == b"now data.sqlite"
    finally:
        subprocess.run(["chattr", "-i", log], check=True)
    then.put_back()
    assert path.read_bytes() == b"then data.sqlite"


def test_another_name_of_the_file_keeps_what_is_newer(tmp_path, path, then):
    """As in a backup of hard links."""
    backup = tmp_path / "backup"
    backup.hardlink_to(path)
    then.put_back()
    assert path.read_bytes() == b"then"
    assert backup.read_bytes() == b"newer"


def test_file_that_a_program_opens_after_the_last_look_is_moved(
    path, then, monkeypatch
):
    """What it writes on lands in what is newer, and not in what was put back."""
    monkeypatch.setattr(put_back, "_refuse_in_use", lambda *_: None)
    words = f"f = open({str(path)!r}, 'a'); print(flush=True); input(); f.write(' on')"
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        (beside,) = map(Path, then.put_back())
        other.communicate(b"\n")
    assert path.read_bytes() == b"then"
    assert (beside / "file").read_bytes() == b"newer on"


def test_nobody_opens_a_file_between_its_copy_and_what_is_written_into_it(
    path, then, monkeypatch
):
    refused = []
    copy = put_back._copy

    def look(*words):
        copy(*words)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except BlockingIOError:
            refused.append(path)

    monkeypatch.setattr(put_back, "_copy", look)
    (beside,) = map(Path, then.put_back())
    assert len(refused) == 2  # behind the copy, and behind what was written
    assert path.read_bytes() == b"then"
    assert (beside / "file").read_bytes() == b"newer"
