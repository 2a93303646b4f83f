"""A store with two sessions, and the command that looks after it."""

import json
import os

import msgspec
import pytest

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common.models import SessionKey, Step
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.keys import load_keys, new_key_line
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.support.manual_clock import ManualClock

ADA, BOB = SessionKey("ada", "lab"), SessionKey("b[bold]ob")
SAME = os.urandom(2_000_000)


class Store:
    def __init__(self, folder) -> None:
        self.root = folder / "store"
        self.key_file = folder / "master.key"
        self.key_file.write_text(new_key_line("first"))
        self.key_file.chmod(0o600)
        self.clock = ManualClock()

    @property
    def repository(self):
        keys = load_keys(file=self.key_file)
        return Repository(FolderBackend(self.root), clock=self.clock, keys=keys)

    def save(self, checkpoint, key, generation, files):
        writer = self.repository.begin(
            id=checkpoint, key=key, incarnation="i1", generation=generation
        )
        for name, data in files.items():
            writer.add(name, data)
        self.clock.advance(3600)
        step = Step(step="dump", title="Saving the memory", state="done", seconds=1.5)
        return writer.commit(steps=[step], frozen_seconds=2.0)

    def settings(self, at=None, key_file=None):
        return [
            f"--AgentApp.store_url={at or self.root}",
            f"--AgentApp.master_key_file={key_file or self.key_file}",
        ]

    def contents(self, checkpoint):
        found = self.repository.open(checkpoint)
        return {name: found.read(name) for name in found.names()}

    def damage(self, name, at=1000):
        path = self.root / name
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= 1
        path.write_bytes(data)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    files = {"criu/pages-1.img": SAME + os.urandom(100_000), "identity.json": b"{}"}
    store.save("ada-1", ADA, 1, files)
    store.save("ada-2", ADA, 2, {**files, "more": os.urandom(5000)})
    store.save("bob-1", BOB, 1, {"criu/pages-1.img": os.urandom(300_000)})
    return store


@pytest.fixture
def run(store, capsys):
    """Run an action on that store: its exit code, output and error output."""

    def run(*line, key_file=None, at=None):
        code = main(["store", *map(str, line), *store.settings(at, key_file)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def run_json(run):
    def run_json(*line, **more):
        code, out, _ = run(*line, "--json", **more)
        return code, json.loads(out)

    return run_json


@pytest.fixture
def info_of():
    """What ``ls --json`` prints of one, by its id."""

    def info_of(rows, checkpoint):
        return next(
            msgspec.json.decode(msgspec.json.encode(row["info"]))
            for row in rows
            if row["id"] == checkpoint
        )

    return info_of
