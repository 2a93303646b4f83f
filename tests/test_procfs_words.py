"""Environment and command line of a program that may not let itself be read."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux import procfs


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A ``/proc`` with one process, 7, whose files a test makes."""
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    shown = Path("/proc/self/stat").read_text()
    (tmp_path / "7" / "stat").write_text(shown)
    return tmp_path


def readers() -> set[threading.Thread]:
    """Threads that read words; other threads of this process come and go."""
    return {t for t in threading.enumerate() if t.daemon and "_run" in t.name}


def test_words_of_a_program_are_what_it_was_started_with():
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"A": "b", "C": "d e"},
    ) as program:
        program.stdout.readline()
        assert {b"A=b", b"C=d e"} <= set(procfs.words(program.pid, "environ"))
        assert procfs.words(program.pid, "cmdline")[1:3] == [b"-I", b"-S"]
        program.communicate(b"\n")


def test_words_that_never_come_end_in_time_and_are_awaited_once(proc):
    before = readers()
    os.mkfifo(proc / "7" / "environ")
    with pytest.raises(TimeoutError):
        procfs.words(7, "environ", seconds=0.05)
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            procfs.words(7, "environ", seconds=1.0)
    assert len(readers() - before) == 1
    assert time.monotonic() - begun < 10
    (proc / "7" / "environ").write_bytes(b"A=b\0")  # the reader is let go


def test_words_that_come_late_are_read_anew(proc):
    before = readers()
    os.mkfifo(proc / "7" / "environ")
    with pytest.raises(TimeoutError):
        procfs.words(7, "environ", seconds=0.05)
    hung = readers() - before
    (proc / "7" / "environ").write_bytes(b"A=b\0")
    for thread in hung:
        thread.join(60)
    (proc / "7" / "environ").unlink()
    (proc / "7" / "environ").write_bytes(b"A=b\0C=d\0")
    assert procfs.words(7, "environ") == [b"A=b", b"C=d"]


def test_words_without_end_are_refused(proc):
    (proc / "7" / "environ").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="more than"):
        procfs.words(7, "environ")


def test_words_of_a_program_that_has_ended_are_an_os_error(proc):
    with pytest.raises(FileNotFoundError):
        procfs.words(8, "environ")
