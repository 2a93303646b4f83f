"""A writer that is killed leaves a committed checkpoint or none at all."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock


def writer(root, mode):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.writer_that_dies", str(root), mode],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def judge(root, told):
    """Every checkpoint that is listed is whole; every one that was told is listed."""
    tomorrow = ManualClock(time.time() + 25 * 3600)
    repository = Repository(FolderBackend(root), clock=tomorrow, keys=KEYS)
    listed = [info.id for info in repository.list()]
    for name in listed:
        checkpoint = repository.open(name)
        assert checkpoint.read("pages.img") == checkpoint.read("plain")
    assert set(told) <= set(listed)
    repository.sweep()
    for name in listed:
        assert repository.open(name).verify() == []
    left = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    needed = {e.name for name in listed for e in repository.objects(name)}
    assert left == needed | {f"manifests/{name}" for name in listed}
    return listed


def told_by(out):
    return [
        line.removeprefix("committed ")
        for line in out.splitlines()
        if line.startswith("committed ")
    ]


def test_writer_killed_before_every_system_call_leaves_all_or_nothing(tmp_path):
    out = writer(tmp_path, "everywhere").communicate(timeout=120)[0]
    calls = int(out.split()[-1])
    assert calls > 30
    outcomes = set()
    for dies_at in range(calls + 1):
        told = told_by((tmp_path / f"{dies_at}.out").read_text())
        outcomes.add(tuple(judge(tmp_path / str(dies_at), ["c1", *told])))
    assert outcomes == {("c1",), ("c1", "c2")}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["alone", "workers"])
@pytest.mark.parametrize("seed", range(4))
def test_writer_killed_at_random_leaves_all_or_nothing(tmp_path, seed, mode):
    process = writer(tmp_path / "store", mode)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == "committing\n"
    time.sleep(random.Random(seed).uniform(0, 0.3))
    os.kill(process.pid, 9)
    rest = process.communicate(timeout=60)[0]
    judge(tmp_path / "store", told_by(rest))
