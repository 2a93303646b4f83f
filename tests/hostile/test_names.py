"""Names in the file system of a suspended session: sockets, folders it watches."""

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from tests.checkpoint.conftest import criu  # noqa: F401 - a fixture
from tests.hostile.test_files import SECRET, refuse, replace, saved, secret, victim  # noqa: F401 - fixtures
from tests.support.attacker import UID


@pytest.fixture
def closed(saved):  # noqa: F811
    """A folder of root's in which only root may write."""
    folder = saved.home.parent / "closed"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def test_sockets_with_a_path_come_back_as_their_users(victim):  # noqa: F811
    world = victim.restore()
    world("talker.send(b'by the old connection')")
    assert world("accepted.recv(99)") == b"by the old connection"
    world("new = socket.socket(socket.AF_UNIX); new.connect(server.getsockname())")
    world("fresh, _ = server.accept(); new.send(b'by a new one')")
    assert world("fresh.recv(99)") == b"by a new one"
    assert world("sender.send(b'mail'); mail.recv(9)") == b"mail"
    assert world("server.getsockname()") == str(victim.home / "run" / "server")
    for name in ("server", "mail"):
        assert (victim.home / "run" / name).stat().st_uid == UID
    # Who connects is not told that the server is root.
    peer = "int.from_bytes(new.getsockopt(1, socket.SO_PEERCRED, 12)[4:8], 'little')"
    assert world(peer) == UID


def test_watch_comes_back_and_sees_what_is_made(victim):  # noqa: F811
    world = victim.restore()
    (victim.home / "watched" / "a name").touch()
    assert b"a name" in world("os.read(watcher, 1000)")


def test_socket_folder_swapped_removes_and_changes_nothing(victim, closed):  # noqa: F811
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(closed / "server"))
        (closed / "server").chmod(0o600)
        before = (closed / "server").stat()
        shutil.rmtree(victim.home / "run")
        replace(victim.home / "run", closed)
        refuse(victim, "file_denied")
        after = (closed / "server").stat()
    assert (after.st_ino, after.st_uid, after.st_mode) == (
        before.st_ino,
        before.st_uid,
        before.st_mode,
    )
    assert [path.name for path in closed.iterdir()] == ["server"]


def test_file_in_place_of_a_socket_is_not_removed(victim, secret):  # noqa: F811
    path = victim.home / "run" / "server"
    path.unlink()
    os.link(secret, path)
    refuse(victim, "file_denied")
    assert path.read_text() == SECRET


def test_sender_is_not_connected_to_a_server_of_root(victim, closed):  # noqa: F811
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(closed / "mail"))
        (closed / "mail").chmod(0o600)
        server.setblocking(False)
        shutil.rmtree(victim.home / "run")
        replace(victim.home / "run", closed)
        refuse(victim, "file_denied")
        with pytest.raises(BlockingIOError):
            server.recv(1)


def hear_nothing(victim, folder: Path) -> None:  # noqa: F811
    """It comes back, and watches nothing there: the folder that it knew has gone."""
    world = victim.restore()
    (folder / "made by root").touch()
    try:
        heard = world("os.read(watcher, 1000)")
        told = world("open(f'/proc/self/fdinfo/{watcher}').read()")
    finally:
        (folder / "made by root").unlink()
    assert b"made by root" not in heard
    assert "inotify wd" not in told


def test_watched_folder_that_is_closed_now_is_not_watched(victim):  # noqa: F811
    watched = victim.home / "watched"
    os.chown(watched, 0, 0)
    watched.chmod(stat.S_IRWXU)
    refuse(victim, "file_denied")


def test_link_in_place_of_a_watched_folder_is_not_followed(victim, closed):  # noqa: F811
    closed.chmod(0o700)
    shutil.rmtree(victim.home / "watched")
    replace(victim.home / "watched", closed)
    hear_nothing(victim, closed)


def test_watched_magic_link_is_not_followed(victim):  # noqa: F811
    shutil.rmtree(victim.home / "watched")
    replace(victim.home / "watched", Path("/proc/self/root"))
    hear_nothing(victim, Path("/"))
