"""The real repository on a real object store and on two tiers, with real workers."""

import os
import threading

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
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
    """As the agent does: the pages through a pipe that workers share."""
    writer = repository.begin(
        id=checkpoint, key=KEY, incarnation="i", generation=generation
    )
    writer.add("identity.json", b"{}")
    with writer.file("criu/pages-1.img") as file:
        out, into = os.pipe()
        feeder = threading.Thread(target=feed, args=(into, pages))
        feeder.start()
        file.take_pipe(out)
        os.close(out)
        feeder.join(30)
    return writer.commit(timeout=60)


def feed(into, pages):
    view = memoryview(pages)
    while view:
        view = view[os.write(into, view) :]
    os.close(into)


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
    assert again.verify("two") == []
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


@pytest.mark.parametrize("means", CommitMeans)
def test_generations_on_two_tiers_are_uploaded_evicted_and_read(
    remote_spec, tmp_path, pool, means
):
    tiers = WriteBackCache(
        FolderBackend(tmp_path / "node"), open_backend(remote_spec), means
    )
    repository = Repository(tiers, clock=ManualClock(), keys=KEYS, pool=pool)
    upload = Upload(tiers, repository)
    save(repository, "one", 1, PAGES)
    save(repository, "two", 2, CHANGED)
    assert upload.due() == ([] if means is CommitMeans.REMOTE else ["one", "two"])
    assert upload.round()
    assert tiers.remote.list("writing/") == tiers.local.list("writing/") == []
    elsewhere = Repository(
        open_backend(remote_spec), clock=ManualClock(), keys=KEYS, pool=pool
    )
    assert elsewhere.verify("two") == []
    assert evict(tiers, repository, 0) == ["one", "two"]
    assert tiers.local.list("packs/") == []
    # The next generation builds on what only the store has, if it goes there at once.
    third = save(repository, "three", 3, CHANGED + bytes(4096))
    assert (third.stored_bytes < 100_000) is (means is CommitMeans.REMOTE)
    assert repository.open("three").read("criu/pages-1.img") == CHANGED + bytes(4096)
    assert upload.round()
    repository.delete("one")
    repository.delete("two")
    assert elsewhere.verify("three") == []
    repository.delete("three")
    for backend in (tiers.local, tiers.remote):
        assert backend.list("packs/") == backend.list("manifests/") == []


def test_sweep_of_another_node_keeps_what_is_being_uploaded(remote_spec, tmp_path):
    clock = ManualClock()
    remote = open_backend(remote_spec)
    tiers = WriteBackCache(FolderBackend(tmp_path / "node"), remote, CommitMeans.LOCAL)
    repository = Repository(tiers, clock=clock, keys=KEYS)
    elsewhere = Repository(open_backend(remote_spec), clock=clock, keys=KEYS)
    writer = repository.begin(id="one", key=KEY, incarnation="i", generation=1)
    writer.add("pages", PAGES)
    writer.commit()
    create = remote.create

    def create_and_sweep(name):
        assert elsewhere.sweep().removed == []
        return create(name)

    remote.create = create_and_sweep
    assert Upload(tiers, repository).round()
    assert elsewhere.verify("one") == []


def test_remote_commit_without_the_store_is_no_commit(tmp_path, s3, bucket):
    spec = spec_of(
        f"s3://{bucket}/p",
        options={**s3.options, "endpoint": "http://127.0.0.1:1"},
        options_file=str(s3.options_file),
        patience=0.1,
    )
    tiers = WriteBackCache(
        FolderBackend(tmp_path / "node"), open_backend(spec), CommitMeans.REMOTE
    )
    repository = Repository(tiers, clock=ManualClock(), keys=KEYS)
    with pytest.raises(StoreError) as caught:
        repository.begin(id="one", key=KEY, incarnation="i", generation=1)
    assert caught.value.reason is Reason.STORE_UNREACHABLE
    assert tiers.local.list("manifests/") == []
