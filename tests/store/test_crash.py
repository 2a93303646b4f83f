"""A writer that is killed leaves a committed checkpoint or none at all."""

import os
import random
import subprocess
import sys
import time

import pytest

from jupyterhub_gpu_reclaim.clock import SystemClock
from jupyterhub_gpu_reclaim.store.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository

# Writes c1, c2, … and kills itself before the n-th call of its backend, if told to.
WRITER = """
import os, signal, sys
from pathlib import Path
from jupyterhub_gpu_reclaim.clock import SystemClock
from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.store import folder
from jupyterhub_gpu_reclaim.store.repository import Repository

root, count, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

class SystemThatDies:
    # The system under the folder backend: every call that changes a disk counts.
    calls = 0
    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in ("open", "write", "fsync", "close", "link"):
            return found
        def call(*args, **kwargs):
            SystemThatDies.calls += 1
            if SystemThatDies.calls == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found(*args, **kwargs)
        return call

folder.os = SystemThatDies()
backend = folder.FolderBackend(root)
repository = Repository(backend, clock=SystemClock(), pack_bytes=300_000)
key = SessionKey("u")
plain = os.urandom(400_000) + b"kernel " * 50_000
for number in range(1, count + 1):
    writer = repository.begin(
        id=f"c{number}", key=key, incarnation="i", generation=number
    )
    with writer.file("pages.img") as file:
        for at in range(0, len(plain), 65_536):
            file.write(plain[at:at + 65_536])
    writer.add("plain", plain)
    print("committing", flush=True)
    writer.commit()
    print(f"committed c{number}", flush=True)
print("calls", SystemThatDies.calls, flush=True)
"""


def writer(root, count, dies_at=0):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(count), str(dies_at)],
        stdout=subprocess.PIPE,
        text=True,
    )


def judge(root, told):
    """Every checkpoint that is listed is whole; every one that was told is listed."""
    repository = Repository(FolderBackend(root), clock=SystemClock())
    listed = [info.id for info in repository.list()]
    for name in listed:
        checkpoint = repository.open(name)
        assert checkpoint.read("pages.img") == checkpoint.read("plain")
    assert set(told) <= set(listed)
    repository.sweep()
    left = {p.parent.name for p in (root / "packs").rglob("*") if p.is_file()}
    assert left == set(listed)
    assert [p for p in (root / "tmp").rglob("*") if p.is_file()] == []
    return listed


def told_by(out):
    return [
        line.removeprefix("committed ")
        for line in out.splitlines()
        if line.startswith("committed ")
    ]


def test_writer_killed_before_every_system_call_leaves_all_or_nothing(tmp_path):
    out = writer(tmp_path / "whole", 1).communicate(timeout=60)[0]
    assert judge(tmp_path / "whole", told_by(out)) == ["c1"]
    calls = int(out.split()[-1])
    assert calls > 20
    outcomes = set()
    for dies_at in range(1, calls + 1):
        root = tmp_path / str(dies_at)
        process = writer(root, 1, dies_at)
        out = process.communicate(timeout=60)[0]
        assert process.returncode == -9
        outcomes.add(tuple(judge(root, told_by(out))))
    assert outcomes == {(), ("c1",)}


@pytest.mark.parametrize("seed", range(12))
def test_writer_killed_at_random_leaves_all_or_nothing(tmp_path, seed):
    process = writer(tmp_path / "store", 1000)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == "committing\n"
    time.sleep(random.Random(seed).uniform(0, 0.15))
    os.kill(process.pid, 9)
    rest = process.communicate(timeout=60)[0]
    judge(tmp_path / "store", told_by(rest))
