"""Folders that a session watches: found by their handles, not by a search."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds import watches
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
from jupyterhub_gpu_reclaim.checkpoint.kinds.watches import Watch
from jupyterhub_gpu_reclaim.linux.file_handles import FileHandle

#: Watches a folder and one in it, and says what happens there.
PROGRAM = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
instance = libc.inotify_init1(0)
for folder in sys.argv[1:]:
    assert libc.inotify_add_watch(instance, folder.encode(), 0x100) > 0
print("up", flush=True)
while True:
    event = os.read(instance, 4096)
    number = struct.unpack_from("i", event)[0]
    print("made", number, event[16:].rstrip(b"\\0").decode(), flush=True)
"""
INFO = """pos:\t0
flags:\t02000000
inotify wd:1 ino:16812a sdev:fe00003 mask:fff ignored_mask:0 \
fhandle-bytes:8 fhandle-type:1 f_handle:2a8116006cfe2eee
inotify wd:2 ino:7 sdev:2a mask:fff ignored_mask:0
inotify wd:3 ino:x sdev:2a mask:fff fhandle-type:1 f_handle:zz
"""


@pytest.fixture
def folder():
    """Where CRIU does not search by itself."""
    made = tempfile.mkdtemp(prefix="reclaim-watched-", dir="/var/lib")
    yield Path(made)
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def deep(folder):
    deep = folder / "with a space" / "and ünïcode"
    deep.mkdir(parents=True)
    return deep


def seen(place) -> Session:
    return Session(init_pid=place.init_pid, tree=place.tree)


def test_watches_are_read_from_fdinfo_and_those_without_a_handle_left_out():
    handle = bytes.fromhex("2a8116006cfe2eee")
    (found,) = watches.watches_in(INFO)
    assert found == Watch("254:3", 0x16812A, FileHandle(1, handle))


def test_session_that_watches_folders_anywhere_comes_back_watching(
    places, engine, folder, deep
):
    place = places.start(sys.executable, "-c", PROGRAM, str(folder), str(deep))
    place.read_until("up\n")
    saved = engine.save(place)
    place = saved.back(places.hold())
    (deep / "here").touch()
    place.read_until("made 2 here\n")
    (folder / "there").touch()
    place.read_until("made 1 there\n")


def test_folder_in_tmp_is_given_to_criu_before_the_search(places, tmp_path):
    watched = tmp_path / "zz"
    watched.mkdir()
    place = places.start(sys.executable, "-c", PROGRAM, str(watched))
    place.read_until("up\n")
    assert watches.arguments(seen(place)) == [
        *("--irmap-scan-path", str(watched)),
        *("--irmap-scan-path", "/tmp"),
    ]


def test_folder_that_is_gone_and_too_many_are_left_to_criu(places, folder):
    many = [
        folder / "/".join("a" * (1 + number % 3)) / str(number) for number in range(300)
    ]
    gone = folder / "gone"
    for one in (*many, gone):
        one.mkdir(parents=True)
    place = places.start(sys.executable, "-c", PROGRAM, *map(str, many), str(gone))
    place.read_until("up\n")
    gone.rmdir()
    assert watches.paths(seen(place)) == set(map(str, many))
    words = watches.arguments(seen(place))[1::2]
    assert len(words) == watches.MOST + 1
    assert words[-1] == "/tmp"
    depths = [word.count("/") for word in words[:-1]]
    assert depths == sorted(depths, reverse=True)


OVERLAY = """
import subprocess
subprocess.run(["mount", "-t", "overlay", "overlay", "-o", sys.argv.pop(), "/mnt"])
os.chdir("/mnt")
"""


def test_folder_of_an_image_is_found_among_those_that_programs_usually_watch(
    places, tmp_path
):
    """An overlay, whose handles the kernel does not open again."""
    parts = {name: tmp_path / name for name in ("lowerdir", "upperdir", "workdir")}
    for one in parts.values():
        one.mkdir()
    options = ",".join(f"{name}={one}" for name, one in parts.items())
    program = PROGRAM.replace("libc =", OVERLAY + "libc =")
    place = places.start(sys.executable, "-c", program, ".", "/etc", options)
    place.read_until("up\n")
    assert watches.paths(seen(place)) == {"/mnt", "/etc"}
