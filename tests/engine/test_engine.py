"""The engine's own door: a tree is saved, ended and comes back, without a Hub."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim import engine
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter
from tests.checkpoint.conftest import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "engine.md"
#: Writes a number again and again, and keeps a file open that it appends to.
COUNTS = """
import itertools, os, sys, time
log = open("log", "a")
for number in itertools.count():
    open("new", "w").write(f"{number} {os.getpid()}")
    os.replace("new", "counted")
    print(number, file=log, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _criu(criu, monkeypatch):
    """The one that the tests have."""
    monkeypatch.setattr("jupyterhub_gpu_reclaim.checkpoint.criu.binary.FOLDER", criu)


@pytest.fixture
def criu():
    if os.geteuid() != 0:
        pytest.skip("needs root: CRIU enters namespaces")
    folder = Path(os.environ.get("GPU_RECLAIM_CRIU", ""))
    if not (folder / "criu").is_file():
        pytest.skip("needs CRIU: jupyterhub-gpu-reclaim criu install")
    return folder


@pytest.fixture
def store(tmp_path):
    return engine.open_store(tmp_path / "store", tmp_path / "keys" / "master.key")


@pytest.fixture
def trees():
    made: list[engine.Tree] = []
    yield made
    for tree in made:
        engine.end(tree)


@pytest.fixture
def tree(trees, tmp_path):
    made = engine.start([sys.executable, "-c", COUNTS], cwd=str(tmp_path))
    trees.append(made)
    wait_for((tmp_path / "counted").exists)
    return made


def counted(folder: Path) -> tuple[int, int]:
    number, pid = (folder / "counted").read_text().split()
    return int(number), int(pid)


def stands(tree: engine.Tree) -> bool:
    there = processes.snapshot(tree.init_pid, tree.init_start).processes
    return bool(there) and all(one.stopped for one in there)


def test_tree_is_saved_ended_and_comes_back_twice(tree, trees, store, tmp_path):
    first = engine.capture(tree, store, "first")
    assert stands(tree)
    before = counted(tmp_path)
    engine.end(tree)
    with pytest.raises(NotFound):
        processes.snapshot(tree.init_pid, tree.init_start)
    back = engine.restore(store, "first")
    trees.append(back)
    wait_for(lambda: counted(tmp_path)[0] > before[0] + 10)
    assert counted(tmp_path)[1] == before[1]

    second = engine.capture(back, store, "second", generation=2)
    assert second.stored_bytes < first.stored_bytes / 4
    engine.end(back)
    trees.append(engine.restore(store, "second"))
    at = counted(tmp_path)[0]
    wait_for(lambda: counted(tmp_path)[0] > at + 10)
    numbers = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert numbers == list(range(len(numbers)))


def test_what_cannot_be_saved_is_told_and_goes_on(trees, store, tmp_path):
    """A socket whose other end nobody of the tree has."""
    code = tmp_path / "program.py"
    code.write_text(f"import socket\ns = socket.socket(socket.AF_VSOCK)\n{COUNTS}")
    made = engine.start([sys.executable, str(code)], cwd=str(tmp_path))
    trees.append(made)
    wait_for((tmp_path / "counted").exists)
    (found,) = engine.findings(made)
    with pytest.raises(engine.Refused) as refused:
        engine.capture(made, store, "first")
    assert (refused.value.reason.value, str(refused.value)) == (
        found.code,
        f"{found.code}: {found.message}",
    )
    assert store.list() == []
    at = counted(tmp_path)[0]
    wait_for(lambda: counted(tmp_path)[0] > at + 10)


def test_tree_that_was_saved_goes_on_when_it_is_thawed_or_the_store_refuses_it(
    tree, store, tmp_path
):
    engine.capture(tree, store, "first")
    engine.thaw(tree)
    at = counted(tmp_path)[0]
    wait_for(lambda: counted(tmp_path)[0] > at + 10)
    with pytest.raises(engine.StoreError):
        engine.capture(tree, store, "first", generation=2)
    at = counted(tmp_path)[0]
    wait_for(lambda: counted(tmp_path)[0] > at + 10)


def test_file_that_has_changed_is_named_and_nothing_comes_back(tree, store, tmp_path):
    engine.capture(tree, store, "first")
    engine.end(tree)
    (tmp_path / "log").unlink()
    with pytest.raises(engine.RestoreFailed) as failed:
        engine.restore(store, "first")
    assert failed.value.reason is Reason.FILE_MISSING
    assert "log" in failed.value.message


def test_checkpoint_that_is_none_is_refused(store):
    with pytest.raises(NotFound):
        engine.restore(store, "nothing")
    key = SessionKey("ada")
    writer = store.begin(id="other", key=key, incarnation="i", generation=1)
    writer.add("tree.json", b"{}")
    writer.commit()
    with pytest.raises(engine.RestoreFailed) as failed:
        engine.restore(store, "other")
    assert failed.value.reason is Reason.CHECKPOINT_DAMAGED


def test_program_that_is_not_there_is_told(trees):
    made = engine.start(["/nowhere"])
    trees.append(made)
    with pytest.raises(NotFound):
        wait_for(lambda: processes.snapshot(made.init_pid, made.init_start) is None)


def test_the_pages_example_works_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("saved ")


def test_tree_goes_on_though_what_was_written_cannot_be_removed(
    tree, store, tmp_path, monkeypatch
):
    def hinders(*_args, **_more):
        raise engine.StoreError(Reason.STORE_FAILED, why="it hangs")

    monkeypatch.setattr(CheckpointWriter, "commit", hinders)
    monkeypatch.setattr(CheckpointWriter, "abort", hinders)
    with pytest.raises(engine.StoreError):
        engine.capture(tree, store, "first")
    at = counted(tmp_path)[0]
    wait_for(lambda: counted(tmp_path)[0] > at + 10)
