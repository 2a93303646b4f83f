"""A writer that is killed leaves a committed checkpoint or none at all."""

import sys
import time
from pathlib import Path

from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock
from tests.support.ran import ran


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
    writer = [sys.executable, "-m", "tests.store.writer_that_dies", str(tmp_path)]
    done = ran(writer, cwd=Path(__file__).parents[2], timeout=120)
    out = done.stdout
    calls = int(out.split()[-1])
    assert calls > 30
    outcomes = set()
    for dies_at in range(calls + 1):
        told = told_by((tmp_path / f"{dies_at}.out").read_text())
        outcomes.add(tuple(judge(tmp_path / str(dies_at), ["c1", *told])))
    assert outcomes == {("c1",), ("c1", "c2")}
