"""A repository on a folder, and a session to write into it."""

import ctypes
import os

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock

libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def repository(root, clock):
    return Repository(FolderBackend(root), clock=clock, keys=KEYS)


@pytest.fixture
def backend():
    return MemoryBackend()


@pytest.fixture
def store(backend, clock):
    return Repository(backend, clock=clock, keys=KEYS, pack_bytes=1 << 20)


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


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    done = libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, b"size=4m,mode=700")
    if done != 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    yield path
    assert libc.umount2(str(path).encode(), 2) == 0
