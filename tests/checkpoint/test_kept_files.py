"""Files that a tree can write are kept as they are while it stands."""

import contextlib
import io
import os
import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.files import kept_files, open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
from jupyterhub_gpu_reclaim.checkpoint.files.kept_files import KeptFiles
from jupyterhub_gpu_reclaim.checkpoint.staging import Staging
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason

ROOT = Credentials(0, 0)


class Keeper:
    """Opens files in this process, and keeps them."""

    def __init__(self, limit: int = 1 << 28) -> None:
        self.staging = Staging(0, lambda _, take: take())
        self.kept = KeptFiles(limit, self.staging.stage)
        self.stored: dict[str, io.BytesIO] = {}

    def take(self, who: Credentials = ROOT) -> None:
        opened = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
        self.kept.take(os.getpid(), opened, who)

    @contextlib.contextmanager
    def file(self, name: str):
        self.stored[name] = io.BytesIO()
        yield self.stored[name]

    def contents(self, folder) -> dict[str, bytes]:
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
    assert kept_files.most_bytes(mine, 1000) == 1000
    assert kept_files.most_bytes(mine, 5000) == 1901


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


def test_many_small_files_take_no_more_memory_than_they_have(tmp_path, opened):
    for number in range(300):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number * 100)
        opened(path)
    keeper = Keeper()
    taken = []

    def grant(count, take):
        taken.append(count)
        return take()

    keeper.staging = Staging(0, grant)
    keeper.kept = KeptFiles(1 << 28, keeper.staging.stage)
    keeper.take()
    assert sum(taken) <= 32 << 20  # what is taken at once
    found = keeper.contents(tmp_path)
    assert found == {str(n): b"%d" % n * 100 for n in range(300)}


def test_file_that_another_session_appends_to_meanwhile_ends(tmp_path, opened):
    """Its copy is of the length that it had, whatever comes behind."""
    path = tmp_path / "log"
    path.write_bytes(b"then")
    opened(path)
    keeper = Keeper()
    taken = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
    path.write_bytes(b"then and newer")
    keeper.kept.take(os.getpid(), taken, ROOT)
    assert keeper.contents(tmp_path) == {"log": b"then"}


def test_file_that_another_session_has_cut_is_known_by_what_was_kept(tmp_path, opened):
    path = tmp_path / "file"
    path.write_bytes(b"then, and more")
    opened(path)
    keeper = Keeper()
    taken = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
    path.write_bytes(b"then")
    keeper.kept.take(os.getpid(), taken, ROOT)
    files = keeper.kept.deliver(keeper.file, Cancel())
    (one,) = [one for one in files if one.path == os.fsencode(path)]
    assert one.size == 4
    with path.open("rb") as file:
        assert open_files.has_contents(one, file.fileno())


def test_without_memory_for_the_copies_there_is_no_save_point(tmp_path, opened):
    path = tmp_path / "file"
    path.write_bytes(b"then" * (1 << 20))
    opened(path)

    def refuse(*_):
        raise ReclaimError(Reason.NOT_ENOUGH_MEMORY)

    kept = KeptFiles(1 << 28, Staging(0, refuse).stage)
    taken = open_files.fingerprint(os.getpid(), [os.getpid()], reads=False)
    with pytest.raises(ReclaimError, match="not_enough_memory"):
        kept.take(os.getpid(), taken, ROOT)
    kept.close()


def test_what_a_program_serves_is_not_read_while_it_may_stand_still(
    tmp_path, opened, monkeypatch
):
    path = tmp_path / "file"
    path.write_bytes(b"then")
    opened(path)
    device = path.stat().st_dev
    device = f"{os.major(device)}:{os.minor(device)}"
    fuse = SimpleNamespace(kind="fuse.sshfs", device=device)
    monkeypatch.setattr(kept_files, "read_mounts", lambda _: [fuse])
    keeper = Keeper()
    keeper.take()
    assert keeper.contents(tmp_path) == {}
    names = open_files.not_kept(keeper.kept._opened)
    assert str(path) in names
