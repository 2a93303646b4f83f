"""Private file systems come back as they were, and nothing ever leaves the folder."""

import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.archive import reader, writer
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import mounts


@contextmanager
def opened(path: Path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pack(path: Path, merged: Path | None = None) -> tuple[bytes, tuple[str, ...]]:
    out = bytearray()
    with opened(path) as folder, opened(merged or path) as whole:
        notes = writer.pack(folder, out.extend, merged=whole if merged else None)
    return bytes(out), notes


def unpack(data: bytes, path: Path, *, step: int = 10_007, **options):
    buffers = (memoryview(data)[at : at + step] for at in range(0, len(data), step))
    with opened(path) as folder:
        return reader.unpack(buffers, folder, **options)


def picture(path: Path) -> dict:
    """Everything about a tree that must come back."""
    found = {}
    for one in [path, *sorted(path.rglob("*"))]:
        status = one.lstat()
        content = None
        if one.is_symlink():
            content = str(one.readlink())
        elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
            content = one.read_bytes()
        attributes = (
            {}
            if one.is_symlink()
            else {name: os.getxattr(one, name) for name in os.listxattr(one)}
        )
        found[str(one.relative_to(path))] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_size if not one.is_dir() else 0,
            status.st_nlink if not one.is_dir() else 0,
            content,
            attributes,
        )
    return found


@pytest.fixture
def source(tmp_path) -> Path:
    top = tmp_path / "source"
    deep = top / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"hello")
    os.link(deep / "file", top / "again")
    (top / "link").symlink_to("/etc/passwd")
    os.mkfifo(top / "fifo", 0o640)
    (top / "empty").write_bytes(b"")
    (top / os.fsdecode(b"\xff odd\n")).write_bytes(b"x")
    (top / "large").write_bytes(os.urandom(3_000_001))
    (top / ("long" * 60)).write_text("long name")
    with (top / "sparse").open("wb") as file:
        file.seek(5 << 30)
        file.write(b"end")
        file.truncate(10 << 30)
    os.setxattr(deep / "file", "user.note", b"\0=\n\xff")
    os.chown(top / "large", 1234, 4321)
    (top / "large").chmod(0o4755)
    os.utime(top / "empty", ns=(1, 1_234_567_890_123_456_789))
    os.utime(deep, ns=(5, -1_500_000_000))
    (top / "a").chmod(0o1777)
    os.utime(top, ns=(7, 7))
    return top


def test_pack_unpack_everything_comes_back(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    data, notes = pack(source)
    assert len(data) < 4_000_000  # the hole is not in the stream
    assert notes == unpack(data, target) == ()
    assert picture(target) == picture(source)
    assert (target / "sparse").stat().st_blocks < 100
    with (target / "sparse").open("rb") as file:
        file.seek(5 << 30)
        assert file.read(5) == b"end\0\0"


def test_file_in_very_many_pieces_stays_sparse(tmp_path):
    """A page in every 64 KiB: 16 MiB of data in a gibibyte."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    with (before / "sparse").open("wb") as file:
        for number in range(6000):
            file.seek(number << 16)
            file.write(b"x" * 4096)
    data, _ = pack(before)
    assert len(data) < 26_000_000
    unpack(data, after)
    there = (after / "sparse").stat()
    assert there.st_blocks <= (before / "sparse").stat().st_blocks + 64
    command = ["cmp", str(before / "sparse"), str(after / "sparse")]
    assert subprocess.run(command, check=False).returncode == 0


def test_file_in_too_many_pieces_is_taken_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_MAX_EXTENTS", 2)
    path = tmp_path / "sparse"
    with path.open("w+b") as file:
        for number in range(3):
            file.seek(number << 16)
            file.write(b"x" * 4096)
        file.flush()
        assert writer.extents(file, file.tell()) is None
        file.truncate(1 << 17)
        assert len(writer.extents(file, 1 << 17)) == 2


@pytest.mark.parametrize("clear", [False, True])
def test_unpack_repeated_gives_the_same(source, tmp_path, clear):
    target = tmp_path / "target"
    target.mkdir()
    data, _ = pack(source)
    unpack(data, target)
    (target / "a" / "b" / "file").write_text("an earlier attempt")
    if clear:
        (target / "left" / "over").mkdir(parents=True)
        (target / "left" / "over" / "file").touch()
    unpack(data, target, clear=clear)
    assert picture(target) == picture(source)


def test_unpack_other_kind_in_the_way_is_replaced(source, tmp_path):
    target = tmp_path / "target"
    (target / "fifo" / "folder").mkdir(parents=True)
    (target / "a").symlink_to("/etc")
    data, _ = pack(source)
    unpack(data, target)
    assert picture(target) == picture(source)


def test_pack_socket_and_device_are_left_out_with_a_note(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(top / "sock"))
        os.mknod(top / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        data, notes = pack(top)
    assert notes == ("The device null was left out.", "The socket sock was left out.")
    target = tmp_path / "target"
    target.mkdir()
    unpack(data, target)
    assert list(target.iterdir()) == []


def test_pack_error_of_the_writer_comes_through(source):
    def write(data):
        raise StoreError(Reason.STORE_FULL)

    with opened(source) as folder, pytest.raises(StoreError):
        writer.pack(folder, write)


def test_pack_other_mount_below_is_left_out(tmp_path, tmpfs):
    (tmpfs / "secret").write_text("not ours")
    data, _ = pack(tmpfs.parent)
    assert b"secret" not in data
    assert tmpfs.name.encode() not in data


@pytest.fixture
def tmpfs(tmp_path):
    path = tmp_path / "top" / "mounted"
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def test_unpack_under_another_mount_is_left_out_with_a_note(tmp_path, tmpfs):
    source = tmp_path / "source"
    (source / "mounted").mkdir(parents=True)
    (source / "mounted" / "file").write_text("x")
    (source / "plain").write_text("y")
    data, _ = pack(source)
    notes = unpack(data, tmpfs.parent)
    assert len(notes) == 2
    assert list(tmpfs.iterdir()) == []
    assert (tmpfs.parent / "plain").read_text() == "y"


def test_unpack_clears_beside_another_mount(tmp_path, tmpfs):
    """A folder and a file are mounted below; what an earlier attempt left is not."""
    top = tmpfs.parent
    (tmpfs / "kept").write_text("theirs")
    deep = top / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "mounted").write_text("")
    (deep / "left").write_text("earlier")
    (top / "link").symlink_to("/etc")
    subprocess.run(["mount", "--bind", tmpfs / "kept", deep / "mounted"], check=True)
    source = tmp_path / "source"
    (source / "mounted").mkdir(parents=True)
    (source / "plain").write_text("y")
    data, _ = pack(source)
    try:
        for _ in range(2):
            unpack(data, top, clear=True)
            assert (tmpfs / "kept").read_text() == "theirs"
            assert (top / "plain").read_text() == "y"
            names = {one.name for one in top.iterdir()}
            assert names == {"a", "mounted", "plain"}
            assert [one.name for one in deep.iterdir()] == ["mounted"]
    finally:
        subprocess.run(["umount", deep / "mounted"], check=True)


@contextmanager
def overlay(folder: Path, lower: Path, more: str = "redirect_dir=off"):
    """A real overlay: yields the merged folder and the upper one."""
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for one in (upper, work, merged):
        one.mkdir(parents=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work},{more}"
    subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True
    )
    try:
        yield merged, upper
    finally:
        subprocess.run(["umount", merged], check=True)


def test_pack_unpack_overlay_changes_come_back_in_a_fresh_container(tmp_path):
    lower = tmp_path / "lower"
    for name in ("kept", "removed", "emptied", "gone"):
        (lower / name).mkdir(parents=True)
        (lower / name / "file").write_text(f"{name} in the image")
        (lower / name / "other").write_text("other")
    with overlay(tmp_path / "old", lower) as (merged, upper):
        (merged / "removed" / "file").unlink()
        (merged / "kept" / "file").write_text("changed")
        (merged / "new" / "deep").mkdir(parents=True)
        (merged / "new" / "deep" / "file").write_text("new")
        for name in ("emptied", "gone"):
            subprocess.run(["rm", "-r", merged / name], check=True)
        (merged / "emptied").mkdir()
        (merged / "emptied" / "mine").write_text("mine")
        (merged / "gone").write_text("a file now")
        data, _ = pack(upper, merged)
        before = picture(merged)
    with overlay(tmp_path / "new", lower) as (merged, _):
        for _ in range(2):  # a second time: the first restore failed later on
            assert unpack(data, merged, overlay=True) == ()
            after = picture(merged)
            # A folder's time of change is set; the numbers of links are overlay's.
            assert after == before
        assert (merged / "emptied").is_dir()
        assert sorted(p.name for p in (merged / "emptied").iterdir()) == ["mine"]


def test_pack_overlay_that_keeps_names_only_takes_contents_from_the_image(tmp_path):
    """As CRI-O mounts its containers."""
    lower, more = tmp_path / "lower", "redirect_dir=on,metacopy=on"
    (lower / "folder" / "deep").mkdir(parents=True)
    (lower / "folder" / "deep" / "file").write_text("in the image")
    (lower / "folder" / "removed").write_text("in the image")
    (lower / "taken").mkdir()
    (lower / "taken" / "hidden").write_text("under the new name")
    (lower / "tool").write_text("in the image")
    os.link(lower / "tool", lower / "same tool")
    with overlay(tmp_path / "old", lower, more) as (merged, upper):
        (merged / "tool").chmod(0o751)
        (merged / "folder" / "removed").unlink()
        (merged / "folder" / "added").write_text("new")
        (merged / "folder" / "deep" / "file").chmod(0o640)
        (merged / "taken").rename(merged / "aside")
        (merged / "folder").rename(merged / "taken")
        assert "trusted.overlay.metacopy" in os.listxattr(upper / "tool")
        assert "trusted.overlay.redirect" in os.listxattr(upper / "taken")
        data, _ = pack(upper, merged)
        before = set(picture(merged))
        texts = {p.name: p.read_text() for p in merged.rglob("*") if p.is_file()}
    with overlay(tmp_path / "new", lower, more) as (merged, _):
        for _ in range(2):  # a second time: the first restore failed later on
            assert unpack(data, merged, overlay=True) == ()
            assert set(picture(merged)) == before
            found = {p.name: p.read_text() for p in merged.rglob("*") if p.is_file()}
            assert found == texts
            assert (merged / "tool").stat().st_mode & 0o777 == 0o751
            deep = merged / "taken" / "deep" / "file"
            assert deep.stat().st_mode & 0o777 == 0o640


def test_open_mount_of_another_namespace_is_packed_and_filled(tmp_path):
    """What the agent does: a session's /dev/shm, through /proc/<pid>/root."""
    script = (
        "mount -t tmpfs -o mode=1777 shm /dev/shm && umask 0 && {} &&"
        "echo up && read x;"
        "cat /dev/shm/sem.mine"
    )

    def session(command: str):
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script.format(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    with session("echo -n value > /dev/shm/sem.mine") as old, session("true") as new:
        streams = []
        for process in (old, new):
            assert process.stdout.readline() == b"up\n"
            here, host = mounts.read_mounts(process.pid), mounts.read_mounts("self")
            (mount,) = mounts.private_tmpfs(here, host)
            assert mount.target == Path("/dev/shm")
            folder = writer.open_mount(process.pid, mount)
            if process is old:
                writer.pack(folder, streams.append)
            else:
                reader.unpack(streams, folder, clear=True)
            os.close(folder)
        assert old.communicate(b"\n")[0] == b"value"
        assert new.communicate(b"\n")[0] == b"value"


def test_unpack_leaves_mounts_below_where_they_are(tmp_path):
    """The agent is in another mount namespace, where the kernel takes such names away.

    Only where a mount is of one's own namespace does the kernel refuse (EBUSY); of any
    other one it takes the mount away together with its place.
    """
    script = (
        "mount -t tmpfs -o mode=1777 shm /dev/shm && cd /dev/shm &&"
        "mkdir -p deep/data old/older && touch secret plain old/older/file &&"
        "mount -t tmpfs data deep/data && echo inner > deep/data/file &&"
        "mount --bind deep/data/file secret && echo up && read x;"
        "cat secret deep/data/file plain; echo *"
    )
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for name in ("plain", "secret"):  # when it was saved, the latter was no mount
        (source / name).write_text("of the archive\n")
    data, _ = pack(source)
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout.readline() == "up\n"
        for _ in range(2):
            notes = unpack(data, Path(f"/proc/{session.pid}/root/dev/shm"), clear=True)
            assert notes == ("secret lies under a mount and was left out.",)
        shown = session.communicate("\n")[0].splitlines()
    assert shown == ["inner", "inner", "of the archive", "deep plain secret"]


def test_open_mount_that_is_another_one_is_refused(tmp_path):
    mount = mounts.Mount("0:99999", "/", tmp_path, "tmpfs", frozenset(), frozenset())
    with pytest.raises(Refused):
        writer.open_mount(os.getpid(), mount)


TABLE = """\
22 27 0:21 / /proc rw - proc proc rw
23 27 0:22 / /dev rw - tmpfs tmpfs rw
25 23 0:23 / /dev/shm rw - tmpfs tmpfs rw
26 25 0:30 / /dev/shm rw,nosuid - tmpfs shm rw
27 1 0:9 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u\\040p
28 27 0:31 / /ro ro - tmpfs tmpfs rw
29 27 0:32 / /shared rw - tmpfs tmpfs rw
30 27 0:33 / /tmp/my\\040space rw shared:3 master:1 - tmpfs tmpfs rw
31 22 0:34 / /proc/acpi rw - tmpfs tmpfs rw
32 27 0:35 /part /part rw - tmpfs tmpfs rw
33 27 8:1 / /home rw - ext4 /dev/sda1 rw
34 27 0:40 / /covered/deep rw - tmpfs tmpfs rw
35 34 0:41 / /covered/deep/deeper rw - tmpfs tmpfs rw
36 27 8:2 / /covered rw - ext4 /dev/sda2 rw
nonsense
"""


def test_private_tmpfs_only_visible_writable_ones_of_its_own():
    session = mounts.parse_mounts(TABLE)
    host = mounts.parse_mounts("29 1 0:32 / /run/x rw - tmpfs tmpfs rw\n")
    found = mounts.private_tmpfs(session, host)
    assert [(m.device, str(m.target)) for m in found] == [
        ("0:30", "/dev/shm"),
        ("0:33", "/tmp/my space"),
    ]


def test_root_overlay_its_folders_are_known():
    root = mounts.root_overlay(mounts.parse_mounts(TABLE))
    assert root.option("upperdir") == "/u p"
    assert mounts.root_overlay(mounts.parse_mounts("")) is None


# --- hostile streams -----------------------------------------------------------------


def stream(*entries: tarfile.TarInfo, data: bytes = b"", end: bool = True) -> bytes:
    out = io.BytesIO()
    with tarfile.TarFile(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in entries:
            tar.addfile(one, io.BytesIO(data[: one.size]))
        if end:
            last = tarfile.TarInfo("end")
            last.pax_headers = {"RECLAIM.end": "1"}
            tar.addfile(last)
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.type = kind
    for field, value in fields.items():
        setattr(one, field, value)
    return one


@pytest.mark.parametrize(
    "entries",
    [
        [info("/etc/x")],
        [info("../x")],
        [info("a/../../x")],
        [info("a//x")],
        [info("./x")],
        [info("")],
        [info("x", tarfile.CHRTYPE, devmajor=1, devminor=3)],
        [info("x", tarfile.BLKTYPE, devmajor=8)],
        [info("x", tarfile.CHRTYPE)],
        [info("x", tarfile.LNKTYPE, linkname="../secret")],
        [info("x", tarfile.LNKTYPE, linkname="/etc/passwd")],
        [info("x", pax_headers={"mtime": "yesterday"})],
        [info("x", pax_headers={"RECLAIM.extents": "5,0:5"})],
        [info("x", pax_headers={"RECLAIM.extents": "-5"})],
        [info("x", size=5, pax_headers={"RECLAIM.extents": "9,6:5"})],
        [info("x", size=5, pax_headers={"RECLAIM.extents": "9,-1:5"})],
        [info("x", pax_headers={"RECLAIM.extents": "zero"})],
        [info("x", pax_headers={"LIBARCHIVE.xattr.user.a": "not base64!"})],
        [info("x", pax_headers={"RECLAIM.extents": str(1 << 50)})],
    ],
)
def test_unpack_hostile_entry_is_refused_and_nothing_leaves(tmp_path, entries):
    (tmp_path / "secret").write_text("secret")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(RestoreFailed) as caught:
        unpack(stream(*entries, data=b"12345"), target)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "target"]


@pytest.mark.parametrize("already", [False, True])
def test_unpack_through_a_symbolic_link_fails_and_nothing_leaves(tmp_path, already):
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    entries = [info("a", tarfile.SYMTYPE, linkname=str(outside)), info("a/x", size=3)]
    if already:
        (target / "a").symlink_to(outside)
        entries.pop(0)
    with pytest.raises(RestoreFailed):
        unpack(stream(*entries, data=b"123"), target)
    assert list(outside.iterdir()) == []


def test_unpack_over_a_symbolic_link_replaces_the_link(tmp_path):
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.write_text("outside")
    target.mkdir()
    (target / "a").symlink_to(outside)
    unpack(stream(info("a", size=3), data=b"123"), target)
    assert outside.read_text() == "outside"
    assert (target / "a").read_bytes() == b"123"
    assert not (target / "a").is_symlink()


@pytest.mark.parametrize(
    ("name", "most"), [("_MOST_BYTES", 1500), ("_MOST_ENTRIES", 1)]
)
def test_unpack_larger_than_allowed_is_refused(tmp_path, monkeypatch, name, most):
    monkeypatch.setattr(reader, name, most)
    data = stream(info("a", size=1000), info("b", size=1000), data=b"x" * 1000)
    with pytest.raises(RestoreFailed, match="larger than allowed"):
        unpack(data, tmp_path)


def test_unpack_stream_cut_anywhere_is_refused(source, tmp_path):
    (source / "large").unlink()
    (source / "sparse").unlink()
    data, _ = pack(source)
    target = tmp_path / "target"
    target.mkdir()
    end = data.rindex(b"RECLAIM.end")
    for length in [0, 1, 511, *range(512, end, 1536), end - 1]:
        with pytest.raises(RestoreFailed) as caught:
            unpack(data[:length], target)
        assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_unpack_flipped_bytes_never_leave_the_folder(tmp_path, data):
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    raw = bytearray(
        stream(
            info("a", tarfile.DIRTYPE, mode=0o755),
            info("a/b", size=3, pax_headers={"mtime": "1.5"}),
            info("c", tarfile.SYMTYPE, linkname="../.."),
            data=b"123",
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(RestoreFailed):
        unpack(bytes(raw), target)
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


def test_pack_large_file_takes_constant_memory(tmp_path):
    """A gigabyte of data through a process that may not have that much."""
    code = f"""
import os, resource
from jupyterhub_gpu_reclaim.checkpoint.archive import writer as archive
with open({str(tmp_path / "large")!r}, "wb") as file:
    file.truncate(1 << 29)
    os.posix_fallocate(file.fileno(), 0, 1 << 29)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = os.open({str(tmp_path)!r}, os.O_RDONLY)
count = 0
def write(data):
    global count
    count += len(data)
archive.pack(folder, write)
assert count > 1 << 29, count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 32_000  # kilobytes
