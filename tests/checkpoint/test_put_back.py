"""Files are put back as they were, and nothing newer is ever gone."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.files import open_files, put_back
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from tests.checkpoint.test_kept_files import ROOT, Keeper

#: 13:55 UTC
MOMENT = 1_700_142_900.0
INSIDE = Path("/proc/self/root")


class Then:
    """A save point of what this process has open below a folder."""

    def __init__(self, folder: Path, limit: int = 1 << 28) -> None:
        self.folder = folder
        self.keeper = Keeper(limit)
        self.keeper.take()
        files = self.keeper.kept.deliver(self.keeper.file, Cancel())
        self.keeper.kept.close()
        prefix = os.fsencode(folder) + b"/"
        files = [one for one in files if one.path.startswith(prefix)]
        self.files = open_files.by_contents(files)

    def changed(self) -> list[open_files.FileFingerprint]:
        return [one.file for one in open_files.look(self.files, INSIDE)[0]]

    def put_back(self) -> list[str]:
        return put_back.put_back(
            os.getpid(),
            self.changed(),
            self.files,
            ROOT,
            moment=MOMENT,
            read=lambda name: [self.keeper.stored[name].getvalue()],
        )


def contents(folder: Path) -> set[bytes]:
    """What all files below a folder hold."""
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
#: After which step of putting back the agent ends; None: it does not.
ENDS = [None, "_make", "_give", "_rename", "_show"]


@pytest.mark.parametrize(
    ("kind", "since", "ends"), list(itertools.product(KINDS, SINCE, ENDS))
)
def test_nothing_newer_is_ever_gone(tmp_path, monkeypatch, kind, since, ends):
    path = tmp_path / "file"
    path.write_bytes(b"then " * 2000)
    with contextlib.contextmanager(KINDS[kind])(path):
        then = Then(tmp_path)
        SINCE[since](path)
        if kind.startswith("mapped"):  # whoever reads it has ended by now
            pass
    newer = contents(tmp_path)
    before = path.read_bytes() if path.exists() else None
    if kind == "read":
        assert then.changed() == []
        return
    if ends is not None:
        real = getattr(put_back, ends)

        def cut(*words):
            real(*words)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(put_back, ends, cut)
            with contextlib.suppress(KeyboardInterrupt):
                then.put_back()
        assert newer <= contents(tmp_path)
    changed = then.changed()
    then.put_back()
    assert newer <= contents(tmp_path)
    assert then.changed() == []
    grown = kind == "appended" and since == "grown"
    assert path.read_bytes() == (before if grown else b"then " * 2000)
    if changed and before is not None and ends is None:
        assert not path.with_name("file-journal").exists()
        assert not path.with_name("file-wal").exists()
    assert not list(tmp_path.glob(".*"))


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


def test_set_user_id_does_not_come_back(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"then")
    path.chmod(0o6755)
    with path.open("r+b"):
        then = Then(tmp_path)
        path.write_bytes(b"newer")
    then.put_back()
    assert path.stat().st_mode & 0o7777 == 0o755


def test_file_of_another_program_is_named_and_nothing_is_moved(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"then")
    with path.open("r+b"):
        then = Then(tmp_path)
    path.write_bytes(b"newer")
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


def test_folder_of_its_name_is_not_moved(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"then")
    with path.open("r+b"):
        then = Then(tmp_path)
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"newer")
    with pytest.raises(RestoreFailed, match="file_denied"):
        then.put_back()
    assert (path / "inside").read_bytes() == b"newer"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_link_in_the_way_leads_nowhere(tmp_path):
    """The folder of the file was replaced by a link to another one."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    path = folder / "file"
    path.write_bytes(b"then")
    (other / "file").write_bytes(b"another's")
    with path.open("r+b"):
        then = Then(tmp_path)
    path.unlink()
    folder.rmdir()
    folder.symlink_to(other)
    with pytest.raises(RestoreFailed, match="file_denied"):
        then.put_back()
    assert [one.name for one in other.iterdir()] == ["file"]
    assert (other / "file").read_bytes() == b"another's"
