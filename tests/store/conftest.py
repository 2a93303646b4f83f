"""A repository on a folder, and a session to write into it."""

import pytest

from jupyterhub_gpu_reclaim.clock import ManualClock
from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.store.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def repository(root, clock):
    return Repository(FolderBackend(root), clock=clock)


@pytest.fixture
def begin(repository):
    def begin(checkpoint="c1", generation=1):
        return repository.begin(
            id=checkpoint,
            key=SessionKey("ada", "lab"),
            incarnation="i1",
            generation=generation,
        )

    return begin
