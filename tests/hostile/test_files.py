"""A user changes what his suspended session had open: he gains nothing by its return.

Each attack is that of somebody who owns the folder and can run programs there while the
session is away (a second server, ssh), before CRIU starts or at any step of it.
"""

import contextlib
import ctypes
import dataclasses
import os
import shutil
import socket
import stat
import struct
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES, SavedImages
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from tests.checkpoint.conftest import Places, criu  # noqa: F401 - a fixture
from tests.support.attacker import (
    SECRET,
    UID,
    criu_for_any_user,
    make_folder,
    save_session,
)

#: How its files are open.
OPEN = ["read", "append", "write", "map"]


@pytest.fixture(scope="module")
def saved(criu):  # noqa: F811
    folder = make_folder()
    places = Places(folder)
    try:
        yield save_session(criu_for_any_user(criu, folder), folder, places)
    finally:
        places.clear()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def victim(saved):
    saved.reset()
    saved.places = Places(saved.home)
    yield saved
    saved.places.clear()


@pytest.fixture
def secret(saved):
    """A file of root's that nobody else may open."""
    path = saved.home.parent / "secret-of-root"
    path.write_text(SECRET)
    path.chmod(0o600)
    yield path
    assert path.read_text() == SECRET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == 0
    path.unlink()


def replace(path: Path, target: Path) -> None:
    link = path.with_name("new link")
    link.symlink_to(target)
    os.chown(link, UID, UID, follow_symlinks=False)
    link.rename(path)


def refuse(victim, *codes: str, **options) -> RestoreFailed:
    with pytest.raises(RestoreFailed) as caught:
        victim.restore(**options)
    assert caught.value.reason.value in codes, caught.value
    assert victim.places.made[-1].living == ()
    return caught.value


def test_nothing_changed_comes_back_whole(victim):
    world = victim.restore()
    assert world("reads.read()").strip() == "own read"
    assert world("two[0].tell(), two[1].tell()") == (4, 0)
    world("appends.write('more'); appends.flush(); writes.write('WRITTEN')")
    world("writes.flush(); mapped[:3] = b'MAP'")
    assert world("deleted.seek(0); deleted.read()") == "what was deleted"
    assert world("os.fstat(deleted.fileno()).st_nlink") == 0
    assert world("os.read(fifo, 100)") == b"in the fifo"
    assert world("os.getcwd()") == str(victim.home / "work")
    assert (victim.home / "docs" / "append").read_text().endswith("more")
    assert (victim.home / "docs" / "write").read_text().startswith("WRITTEN")
    assert (victim.home / "docs" / "map").read_text().startswith("MAP")
    names = [path.name for path in victim.home.rglob("*")]
    assert not [name for name in names if "remap" in name or "reclaim" in name]


@pytest.mark.parametrize("name", OPEN)
def test_symlink_in_place_of_an_open_file_is_not_followed(victim, secret, name):
    replace(victim.home / "docs" / name, secret)
    refuse(victim, "file_missing", "file_denied", "library_changed", "file_changed")


@pytest.mark.parametrize("name", ["write", "map"])
def test_symlink_without_a_fingerprint_is_not_followed(victim, secret, name):
    replace(victim.home / "docs" / name, secret)
    refuse(victim, "file_missing", "file_denied", fingerprinted=False)


@pytest.mark.parametrize("name", ["write", "map"])
def test_hardlink_to_a_file_of_root_is_denied(victim, secret, name):
    (victim.home / "docs" / name).unlink()
    os.link(secret, victim.home / "docs" / name)
    refuse(victim, "file_denied", fingerprinted=False)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    "put",
    [
        lambda path: os.mkfifo(path, 0o666),
        lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(10, 130)),
        make_socket,
        lambda path: replace(path, Path("/proc/self/fd/0")),
    ],
    ids=["fifo", "watchdog", "socket", "magic link"],
)
def test_what_is_no_file_is_not_opened_in_place_of_one(victim, put):
    path = victim.home / "docs" / "read"
    path.unlink()
    put(path)
    refuse(victim, "file_missing")


@pytest.mark.parametrize("name", ["write", "map"])
def test_parent_folder_swapped_for_a_link_gives_no_more_rights(victim, secret, name):
    elsewhere = secret.with_name("elsewhere")
    (victim.home / "docs").rename(elsewhere)
    replace(victim.home / "docs", elsewhere)
    (elsewhere / name).unlink()
    shutil.copy(secret, elsewhere / name)
    try:
        found = refuse(victim, "file_denied", fingerprinted=False)
        assert name in found.message
    finally:
        shutil.rmtree(elsewhere)


def test_magic_link_in_place_of_a_folder_is_not_followed(victim):
    shutil.rmtree(victim.home / "gone")
    shutil.rmtree(victim.home / "work")
    replace(victim.home / "work", Path("/proc/self/cwd"))
    refuse(victim, "file_missing", "file_denied")


def test_folder_of_root_in_place_of_the_working_folder_is_denied(victim):
    (victim.home / "work").rmdir()
    (victim.home / "work").mkdir(mode=0o700)
    refuse(victim, "file_denied")


MS_BIND = 4096


@contextlib.contextmanager
def bound(source: Path, target: Path):
    """Mounted over the other for as long as the block lasts, everywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(bytes(source), bytes(target), None, MS_BIND, None) == 0
    try:
        yield
    finally:
        libc.umount2(bytes(target), 2)


@pytest.mark.parametrize("name", ["write", "map"])
def test_bind_mount_over_a_file_gives_no_more_rights(victim, secret, name):
    with bound(secret, victim.home / "docs" / name):
        refuse(victim, "file_denied", fingerprinted=False)


def test_deleted_file_is_not_made_in_another_folder(victim, secret):
    closed = secret.with_name("closed")
    closed.mkdir(mode=0o755)
    try:
        (victim.home / "gone").rmdir()
        replace(victim.home / "gone", closed)
        before = closed.stat().st_mtime_ns
        world = victim.restore()
        assert world("deleted.seek(0); deleted.read()") == "what was deleted"
        assert world("os.fstat(deleted.fileno()).st_uid") == UID
        assert (closed.stat().st_mtime_ns, list(closed.iterdir())) == (before, [])
    finally:
        closed.rmdir()


def test_deleted_file_that_was_held_unreadable_is_not_given_to_its_holder(victim):
    """Saved by a version that did not look, or by a CRIU that was fooled."""
    image = type(victim.image)(victim.image)
    (name,) = [one for one in image if one.startswith("ghost-file-")]
    head, (size,) = image[name][:8], struct.unpack_from("<I", image[name], 8)
    entry = images.parse("ghost_file_entry", image[name][12 : 12 + size])
    entry.uid = entry.gid = 0
    entry.mode = stat.S_IFREG | 0o600
    payload = images.serialize(entry)
    rest = image[name][12 + size :]
    image[name] = head + struct.pack("<I", len(payload)) + payload + rest

    saved = SavedImages(None, {FILES: image[FILES]})
    for entry in saved.entries(FILES, images.FILES_MAGIC, "file_entry"):
        if entry.reg.name.endswith(b"gone/deleted"):
            entry.reg.flags = os.O_PATH
    image |= saved.written()
    refuse(victim, "file_denied", image=image)


def test_own_file_with_a_closed_mode_comes_back(victim):
    """Its user could open it again by a chmod."""
    for name in ("append", "write"):
        path = victim.home / "docs" / name
        path.chmod(0)
    opened = [
        type(one)(
            **{**as_dict(one), "inode": Path(os.fsdecode(one.path)).stat().st_ino}
        )
        if one.path.startswith(bytes(victim.home))
        else one
        for one in victim.opened
    ]
    world = victim.restore(opened=opened)
    assert world("writes.write('still'); writes.flush()") is None
    with pytest.raises(AssertionError, match="Permission"):
        world("open('../docs/write')")


def as_dict(one) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_file_that_now_belongs_to_root_does_not_come_back(victim):
    path = victim.home / "docs" / "write"
    os.chown(path, 0, 0)
    path.chmod(0o644)
    found = refuse(victim, "file_denied")
    assert "write" in found.message


MOMENTS = ("files.img", "remap-fpath.img", "mm-", "fs-", "pagemap-", "core-")


class Racing:
    """Images that swap the user's files once CRIU asks for one of them."""

    def __init__(self, image, moment: str, swap) -> None:
        self.image, self.moment, self.swap = image, moment, swap
        self.asked = False

    def __getattr__(self, name):
        return getattr(self.image, name)

    def begin(self, helper: int) -> None:
        """Every file is open; CRIU has not begun."""
        self.asked = True
        if not self.moment:
            self.swap()

    def size(self, name):
        if self.asked and self.moment and name.startswith(self.moment):
            self.swap()
            self.moment = ""
        return self.image.size(name)


@pytest.mark.parametrize("moment", ["", *MOMENTS])
def test_rename_race_while_criu_runs_changes_nothing(victim, secret, moment):
    """What was opened before is what comes back, whatever stands there by then."""

    def swap():
        for name in ("read", "append", "write", "map"):
            replace(victim.home / "docs" / name, secret)
        for folder in ("work", "gone", "watched", "run"):
            shutil.rmtree(victim.home / folder)
            replace(victim.home / folder, Path("/root"))

    before = sorted(Path("/root").iterdir())
    race = Racing(victim.image, moment, swap)
    try:
        world = victim.restore(image=race, prepare=race.begin)
    except RestoreFailed:
        # CRIU reads some of them only sometimes; refused is as good as harmless.
        assert victim.places.made[-1].living == ()
    else:
        assert world("reads.read()").strip() == "own read"
        assert world("bytes(mapped[:7])") == b"own map"
        world("appends.write('x'); appends.flush(); writes.write('x'); writes.flush()")
    assert sorted(Path("/root").iterdir()) == before


FOOLED = """#!/bin/bash
for word in "$@"; do
    case "$word" in
    fd\\[*)
        number=${{word#fd[}}
        number=${{number%%]*}}
        case "$(/usr/bin/readlink /proc/self/fd/$number)" in
        */docs/{name}) eval "exec $number<>{other}" ;;
        esac ;;
    esac
done
exec {loader} "$@"
"""


@pytest.mark.parametrize("name", OPEN)
def test_criu_that_was_fooled_is_noticed_before_the_tree_goes_on(victim, secret, name):
    """A CRIU that takes another file than the one it was given."""
    true = victim.engine.criu
    loader = victim.home.parent / "fooled"
    loader.write_text(FOOLED.format(name=name, other=secret, loader=true.loader))
    loader.chmod(0o755)
    victim.engine.criu = dataclasses.replace(true, loader=loader)
    try:
        refuse(victim, "file_swapped")
    finally:
        victim.engine.criu = true
