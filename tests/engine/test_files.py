"""Files that changed while a session was away: harmless, or refused by name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.engine import files, images
from jupyterhub_gpu_reclaim.engine.contents import digest
from jupyterhub_gpu_reclaim.engine.files import Opened
from jupyterhub_gpu_reclaim.engine.restore import proceed
from jupyterhub_gpu_reclaim.errors import Refused, RestoreFailed

ROOT = Path("/proc/self/root")


class Holder:
    """A process that holds files open, as told, and its fingerprints."""

    def __init__(self, code: str) -> None:
        program = textwrap.dedent(code) + "\nprint('up', flush=True)\ninput()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self.process.stdout.readline() != b"up\n":
            self.close()
            pytest.fail("the holder has failed")
        pid = self.process.pid
        self.opened = files.fingerprint(pid, [pid])

    def one(self, path: Path) -> Opened:
        (found,) = [o for o in self.opened if o.path == os.fsencode(path)]
        return found

    def compare(self) -> files.Comparison:
        return files.compare(self.opened, ROOT)

    def codes(self) -> list[str]:
        return [finding.code for finding in self.compare().findings]

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def hold():
    made = []

    def make(code: str) -> Holder:
        made.append(Holder(code))
        return made[-1]

    yield make
    for holder in made:
        holder.close()


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    return path


def test_compare_nothing_changed_finds_nothing(hold, path):
    holder = hold(f"f = open({str(path)!r}, 'r+b'); f.seek(7)")
    assert holder.compare() == ([], frozenset())
    one = holder.one(path)
    assert (first.reg.size, list(first.reg.build_id)) == (5, [1])
    assert not first.reg.HasField("mode")
    assert not second.reg.HasField("size")
    assert not first.reg.HasField("mode")
    assert not second.reg.HasField("mode")
    assert not second.reg.build_id


def test_digest_header_that_lies_is_hashed_instead(tmp_path):
    path = tmp_path / "liar"
    path.write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 200)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert digest(descriptor).startswith("blake3:")
    finally:
        os.close(descriptor)


PROGRAM = """
import os, sys, time
log = open({log!r}, "a")
os.chdir({folder!r})
read = open({read!r})
print("up", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
log.write("mine\\n"); log.flush()
print("read", repr(read.read()), flush=True)
"""


def test_drop_checks_session_with_grown_files_comes_back(places, engine, tmp_path):
    """CRIU itself refuses them; with the checks dropped it takes them."""
    log, read, go = tmp_path / "log", tmp_path / "read", tmp_path / "go"
    folder = tmp_path / "folder"
    folder.mkdir()
    log.write_text("")
    read.write_text("first ")
    program = PROGRAM.format(
        log=str(log), read=str(read), go=str(go), folder=str(folder)
    )
    place = places.start(sys.executable, "-c", program)
    place.read_until("up\n")
    pids = [process.pid for process in place.tree.processes]
    image = engine.image()
    result = engine.dump(place, image.sink)
    opened = files.fingerprint(place.init_pid, pids)
    place.kill()
    log.write_text("somebody's\n")
    read.write_text("first second")
    log.chmod(0o600)
    folder.chmod(0o700)
    place = places.hold()
    with pytest.raises(RestoreFailed):
        engine.restore(place, image.source, result)
    place.kill()
    place = places.hold()
    compared = files.compare(opened, Path(f"/proc/{place.init_pid}/root"))
    assert compared == ([], frozenset({bytes(log), bytes(read)}))
    image["files.img"] = files.drop_checks(image["files.img"], compared.drop)
    proceed(engine.restore(place, image.source, result), result.stopped)
    go.touch()
    place.read_until("read 'first second'\n")
    assert log.read_text() == "somebody's\nmine\n"
