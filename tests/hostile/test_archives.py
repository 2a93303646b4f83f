"""What a user leaves in a private file system, or makes of its archive, stays there."""

import os
import stat
import tarfile

import pytest

from jupyterhub_gpu_reclaim.checkpoint.archive import reader, writer
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed, RolledBack
from tests.checkpoint.test_archive import info, opened, pack, stream, unpack

SECRET = "not for you"


@pytest.mark.parametrize(
    "fields",
    [
        {"pax_headers": {"mtime": "1" * 30}},
        {"pax_headers": {"mtime": "9" * 5000}},
        {"pax_headers": {"mtime": "1e308"}},
        {"uid": 2**70},
        {"gid": 2**40},
        {"pax_headers": {"size": "-5"}},
        {"pax_headers": {"RECLAIM.extents": f"{2**70},0:0"}},
    ],
)
def test_number_that_cannot_be_is_a_damaged_archive(tmp_path, fields):
    with pytest.raises(RestoreFailed) as refused, opened(tmp_path) as folder:
        reader.unpack([stream(info("file", **fields))], folder)
    assert refused.value.reason.value == "checkpoint_damaged"


@pytest.fixture
def outside(tmp_path):
    """What must never be read, changed or removed."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    before = (folder / "secret").stat()
    yield folder
    after = (folder / "secret").stat()
    assert (folder / "secret").read_text() == SECRET
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert (after.st_mode, after.st_uid, after.st_nlink, after.st_mtime_ns) == (
        before.st_mode,
        before.st_uid,
        before.st_nlink,
        before.st_mtime_ns,
    )


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_hard_link_through_a_link_is_refused(place, outside):
    (place / "way").symlink_to(outside)
    entry = info("stolen", tarfile.LNKTYPE, linkname="way/secret")
    with pytest.raises(RestoreFailed):
        unpack(stream(entry), place)


def test_hard_link_to_a_link_links_the_link(place, outside):
    link = info("way", tarfile.SYMTYPE, linkname=str(outside / "secret"))
    unpack(stream(link, info("second", tarfile.LNKTYPE, linkname="way")), place)
    assert (place / "second").is_symlink()


def test_mode_of_a_link_does_not_reach_its_target(place, outside):
    link = info("way", tarfile.SYMTYPE, linkname=str(outside / "secret"), mode=0o777)
    unpack(stream(link), place)


def test_clearing_does_not_follow_links(place, outside):
    (place / "way").symlink_to(outside)
    (place / "deep").mkdir()
    (place / "deep" / "way").symlink_to(outside)
    unpack(stream(), place, clear=True)
    assert list(place.iterdir()) == []


def test_whiteout_removes_the_link_and_not_its_target(place, outside):
    (place / "way").symlink_to(outside / "secret")
    unpack(stream(info("way", tarfile.CHRTYPE)), place, overlay=True)
    assert list(place.iterdir()) == []


def test_set_uid_bit_of_a_users_file_is_that_users(tmp_path, place):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tool").write_bytes(b"#!/bin/sh\n")
    os.chown(source / "tool", 54321, 54321)
    (source / "tool").chmod(0o6755)
    data, _ = pack(source)
    unpack(data, place)
    status = (place / "tool").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (54321, 0o6755)


def test_more_files_than_allowed_end_the_archive_before_they_are_listed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writer, "MAX_ENTRIES", 100)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(101):
        (source / str(number)).touch()
    with pytest.raises(RolledBack, match="capture_failed"):
        pack(source)


def test_fifo_and_socket_in_the_way_do_not_block(tmp_path, place):
    os.mkfifo(place / "a")
    unpack(stream(info("a", size=1), data=b"x"), place)
    assert (place / "a").read_bytes() == b"x"
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "fifo")
    data, _ = pack(source)
    with opened(place) as folder:
        reader.unpack([data], folder)
    assert stat.S_ISFIFO((place / "fifo").stat().st_mode)
