"""The real repository on a real object store, with real workers."""

import os

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers.pool import Pool
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock
from tests.support.object_store import faulty

KEY = SessionKey("ada", "lab")
PAGES = os.urandom(6_000_000) + bytes(2_000_000)
CHANGED = PAGES[:3_000_000] + os.urandom(40_960) + PAGES[3_040_960:]


@pytest.fixture(scope="module")
def pool():
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture
def remote_spec(s3, bucket):
    return spec_of(
        f"s3://{bucket}/p",
        options=s3.options,
        options_file=str(s3.options_file),
        patience=10.0,
    )


def save(repository, checkpoint, generation, pages):
    """As the agent does: the pages by its workers."""
    writer = repository.begin(
        id=checkpoint, key=KEY, incarnation="i", generation=generation
    )
    writer.add("identity.json", b"{}")
    with writer.file("criu/pages-1.img") as file:
        file.write(pages)
    return writer.commit(timeout=60)


def test_workers_write_into_an_object_store_and_read_from_it(remote_spec, pool):
    repository = Repository(
        open_backend(remote_spec), clock=ManualClock(), keys=KEYS, pool=pool
    )
    save(repository, "one", 1, PAGES)
    info = save(repository, "two", 2, CHANGED)
    assert info.stored_bytes < 200_000
    again = Repository(open_backend(remote_spec), clock=ManualClock(), keys=KEYS)
    assert again.open("two").read("criu/pages-1.img") == CHANGED
    again.delete("one")
    assert again.open("two").verify() == []
    assert again.sweep().removed == []
    again.delete("two")
    backend = open_backend(remote_spec)
    assert [backend.list(p) for p in ("packs/", "manifests/", "writing/")] == [[]] * 3


def test_object_store_with_faults_at_every_third_request_serves_all(s3, bucket, pool):
    numbers = iter(range(10**9))

    def fault(method, path):
        return "503" if next(numbers) % 3 == 2 else ""

    with faulty(s3.endpoint, fault) as endpoint:
        spec = spec_of(
            f"s3://{bucket}/p",
            options={**s3.options, "endpoint": endpoint},
            options_file=str(s3.options_file),
            patience=20.0,
        )
        repository = Repository(
            open_backend(spec), clock=ManualClock(), keys=KEYS, pool=pool
        )
        save(repository, "one", 1, PAGES)
        assert repository.open("one").read("criu/pages-1.img") == PAGES


def test_checkpoint_is_not_begun_while_the_store_does_not_answer(s3, bucket):
    spec = spec_of(
        f"s3://{bucket}/p",
        options={**s3.options, "endpoint": "http://127.0.0.1:1"},
        options_file=str(s3.options_file),
        patience=0.1,
    )
    repository = Repository(open_backend(spec), clock=ManualClock(), keys=KEYS)
    with pytest.raises(StoreError) as caught:
        repository.begin(id="one", key=KEY, incarnation="i", generation=1)
    assert caught.value.reason is Reason.STORE_UNREACHABLE
