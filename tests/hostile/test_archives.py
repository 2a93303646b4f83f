"""What a user leaves in a private file system, or makes of its archive, stays there."""

import io
import os
import stat
import tarfile

import pytest

from jupyterhub_gpu_reclaim.checkpoint.archive import reader, writer
from jupyterhub_gpu_reclaim.checkpoint.archive.tarformat import END
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed, RolledBack
from tests.checkpoint.test_archive import opened, pack, unpack

SECRET = "not for you"


def tar(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A stream of those entries with the last one that a whole stream has."""
    out = io.BytesIO()
    with tarfile.TarFile(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        for entry in entries:
            info, data = entry if isinstance(entry, tuple) else (entry, b"")
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
        end = tarfile.TarInfo("end")
        end.pax_headers = {END: "1"}
        file.addfile(end)
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = kind, 0o644
    for field, value in fields.items():
        setattr(made, field, value)
    return made


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
        reader.unpack([tar(info("file", **fields))], folder)
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


@pytest.mark.parametrize("way", ["{}/made", "../outside/made", "a/../../outside/made"])
def test_name_that_leads_out_is_refused(place, outside, way):
    with pytest.raises(RestoreFailed):
        unpack(tar((info(way.format(outside)), b"x")), place)


@pytest.mark.parametrize("target", ["../outside/secret", "{}/secret"])
def test_hard_link_to_what_lies_outside_is_refused(place, outside, target):
    entry = info("stolen", tarfile.LNKTYPE, linkname=target.format(outside))
    with pytest.raises(RestoreFailed):
        unpack(tar(entry), place)
    assert not (place / "stolen").exists()


def test_hard_link_through_a_link_is_refused(place, outside):
    (place / "way").symlink_to(outside)
    entry = info("stolen", tarfile.LNKTYPE, linkname="way/secret")
    with pytest.raises(RestoreFailed):
        unpack(tar(entry), place)


def test_hard_link_to_a_link_links_the_link(place, outside):
    link = info("way", tarfile.SYMTYPE, linkname=str(outside / "secret"))
    unpack(tar(link, info("second", tarfile.LNKTYPE, linkname="way")), place)
    assert (place / "second").is_symlink()


def test_folder_through_a_link_that_the_archive_made_is_refused(place, outside):
    link = info("way", tarfile.SYMTYPE, linkname=str(outside))
    with pytest.raises(RestoreFailed):
        unpack(tar(link, (info("way/made"), b"x")), place)


def test_mode_of_a_link_does_not_reach_its_target(place, outside):
    link = info("way", tarfile.SYMTYPE, linkname=str(outside / "secret"), mode=0o777)
    unpack(tar(link), place)


def test_folder_in_place_of_a_link_replaces_the_link(place, outside):
    (place / "way").symlink_to(outside)
    unpack(tar(info("way", tarfile.DIRTYPE, mode=0o700), (info("way/a"), b"x")), place)
    assert (place / "way" / "a").read_bytes() == b"x"


def test_clearing_does_not_follow_links(place, outside):
    (place / "way").symlink_to(outside)
    (place / "deep").mkdir()
    (place / "deep" / "way").symlink_to(outside)
    unpack(tar(), place, clear=True)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_device_is_never_made(place, kind):
    with pytest.raises(RestoreFailed):
        unpack(tar(info("device", kind, devmajor=1, devminor=1)), place)
    assert list(place.iterdir()) == []


def test_whiteout_removes_the_link_and_not_its_target(place, outside):
    (place / "way").symlink_to(outside / "secret")
    unpack(tar(info("way", tarfile.CHRTYPE)), place, overlay=True)
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


def test_sparse_terabyte_is_packed_as_what_it_holds(tmp_path, place):
    source = tmp_path / "source"
    source.mkdir()
    with (source / "huge").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"the middle")
    data, _ = pack(source)
    assert len(data) < 1 << 20
    unpack(data, place)
    status = (place / "huge").stat()
    assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (1 << 40, True)


def test_size_that_lies_is_refused(place):
    entry = info("huge")
    entry.pax_headers = {"RECLAIM.extents": f"{1 << 60},0:1"}
    with pytest.raises(RestoreFailed):
        unpack(tar((entry, b"x")), place)
    assert not any(path.stat().st_size for path in place.iterdir())


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
    unpack(tar((info("a"), b"x")), place)
    assert (place / "a").read_bytes() == b"x"
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "fifo")
    data, _ = pack(source)
    with opened(place) as folder:
        reader.unpack([data], folder)
    assert stat.S_ISFIFO((place / "fifo").stat().st_mode)
