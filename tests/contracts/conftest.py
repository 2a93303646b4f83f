"""The backends that have to keep the contract."""

import itertools

import pytest

from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from simulation.doubles.memory_backend import MemoryBackend
from tests.support.object_store import served

BACKENDS = ["folder", "memory", "s3"]
_numbers = itertools.count()


s3 = pytest.fixture(scope="session")(served)


@pytest.fixture
def spec_of_s3(s3):
    url = s3.bucket(f"contract-{next(_numbers)}")
    return spec_of(
        url, options=s3.options, options_file=str(s3.options_file), patience=5.0
    )


@pytest.fixture(params=BACKENDS)
def backend(request, tmp_path):
    match request.param:
        case "folder":
            return FolderBackend(tmp_path / "store")
        case "memory":
            return MemoryBackend()
    return open_backend(request.getfixturevalue("spec_of_s3"))
