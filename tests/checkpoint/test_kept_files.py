"""Files that a tree can write are kept as they are while it stands."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.files import kept_files, open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
from jupyterhub_gpu_reclaim.checkpoint.files.kept_files import KeptFiles, size_of
from jupyterhub_gpu_reclaim.checkpoint.staging import Staging

ROOT = Credentials(0, 0)


class File(io.BytesIO):
    """A file of a store."""

    def take_pipe(self, pipe: int) -> int:
        while data := os.read(pipe, 1 << 16):
            self.write(data)
        return self.tell()


class Keeper:
    """Opens files in this process, and keeps them."""

    def __init__(self, limit: int = 1 << 28) -> None:
        self.staging = Staging(0, lambda _, take: take())
        self.kept = KeptFiles(limit, self.staging.stage)
        self.stored: dict[str, File] = {}

    def take(self, who: Credentials = ROOT) -> None:
        opened = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
        self.kept.take(os.getpid(), opened, who)

    @contextlib.contextmanager
    def file(self, name: str):
        self.stored[name] = File()
        yield self.stored[name]

    def contents(self, folder) -> dict[str, bytes]:
        """Name below the folder → what was kept of it."""
        files = self.kept.deliver(self.file, Cancel())
        self.kept.close()
        prefix = os.fsencode(folder) + b"/"
        return {
            one.path.removeprefix(prefix).decode(): self.stored[one.kept].getvalue()
            for one in files
            if one.kept and one.path.startswith(prefix)
        }


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:
        yield lambda path, mode="r+b": stack.enter_context(path.open(mode))


def test_what_is_written_is_kept_as_it_was(tmp_path, opened):
    names = {"written": "r+b", "log": "ab", "read": "rb", "empty": "r+b"}
    for name, mode in names.items():
        path = tmp_path / name
        path.write_bytes(b"then" * (3 << 20) if name != "empty" else b"")
        opened(path, mode)
    keeper = Keeper()
    keeper.take()
    for name in names:
        (tmp_path / name).write_bytes(b"now")
    then = b"then" * (3 << 20)
    found = keeper.contents(tmp_path)
    assert found == {"written": then, "log": then, "empty": b""}
    files = [one for one in keeper.kept._opened if one.kept]
    for one in files:
        assert (
            one.digest
            == open_files.HASH
            + kept_files.blake3(keeper.stored[one.kept].getvalue()).hexdigest()
        )


def test_the_smallest_are_kept_up_to_the_limit(tmp_path, opened):
    for name, size in {"large": 1001, "small": 400, "other": 500}.items():
        path = tmp_path / name
        path.write_bytes(b"x" * size)
        opened(path)
    keeper = Keeper(1000)
    keeper.take()
    assert keeper.contents(tmp_path).keys() <= {"small", "other"}
    mine = [
        one
        for one in open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
        if one.path.startswith(os.fsencode(tmp_path))
    ]
    assert size_of(mine, 1000) == 900
    assert size_of(mine, 5000) == 1901


@pytest.mark.parametrize("trick", ["link", "other file", "fifo", "folder", "gone"])
def test_what_is_put_at_the_path_instead_is_not_kept(
    tmp_path, opened, monkeypatch, trick
):
    path, secret = tmp_path / "file", tmp_path / "secret"
    path.write_bytes(b"mine")
    secret.write_bytes(b"another's")
    opened(path)
    keeper = Keeper()
    taken = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
    path.unlink()
    if trick == "link":
        path.symlink_to(secret)
    elif trick == "other file":
        secret.rename(path)
    elif trick == "fifo":
        os.mkfifo(path)
    elif trick == "folder":
        path.mkdir()
    monkeypatch.setattr(open_files, "fingerprint", lambda *_, **__: taken)
    keeper.take()
    assert keeper.contents(tmp_path) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_what_its_user_may_not_write_is_not_kept(opened):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        own, closed = folder / "own", folder / "closed"
        for path in (own, closed):
            path.write_bytes(b"x")
            opened(path)
        folder.chmod(0o755)
        os.chown(own, 4711, 4711)
        keeper = Keeper()
        keeper.take(Credentials(4711, 4711))
        assert keeper.contents(folder) == {"own": b"x"}


def test_a_log_of_a_database_belongs_to_it_although_nothing_has_it_open(tmp_path):
    path = tmp_path / "data.sqlite"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("create table t (n)")
    (tmp_path / "data.sqlite-journal").write_bytes(b"left behind")
    keeper = Keeper()
    keeper.take()
    assert keeper.contents(tmp_path).keys() == {"data.sqlite", "data.sqlite-journal"}
    database.close()


def test_a_reflink_is_what_it_was(tmp_path, opened, monkeypatch):
    """Another file system would make it; here it is a copy."""

    def clone(descriptor: int, _: int, source: int) -> None:
        os.pwrite(descriptor, os.pread(source, 1 << 20, 0), 0)

    monkeypatch.setattr(kept_files.fcntl, "ioctl", clone)
    path = tmp_path / "file"
    path.write_bytes(b"then")
    opened(path)
    keeper = Keeper()
    keeper.take()
    path.write_bytes(b"now")
    assert keeper.staging.logical_bytes == 0
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert keeper.contents(tmp_path) == {"file": b"then"}
