"""Sessions that are saved on the node while the store behind it is away."""

import os

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.store_backends.doubles import Unreachable
from tests.support.manual_clock import ManualClock

PAGES = os.urandom(400_000)


class Node:
    """A node's folder, its clock, and a store that comes and goes."""

    def __init__(self, path) -> None:
        self.folder = FolderBackend(path)
        self.store = MemoryBackend()
        self.clock = ManualClock()

    def start(self, *, away=False):
        remote = Unreachable() if away else self.store
        tiers = WriteBackCache(self.folder, remote, CommitMeans.LOCAL)
        repository = Repository(tiers, clock=self.clock, keys=KEYS, pack_bytes=1 << 17)
        return tiers, repository, Upload(tiers, repository)

    def elsewhere(self):
        return Repository(self.store, clock=self.clock, keys=KEYS)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "node")


def begin(repository, number):
    return repository.begin(
        id=f"c{number}", key=SessionKey("u"), incarnation="i", generation=number
    )


def save(repository, number, data=PAGES):
    writer = begin(repository, number)
    writer.add("pages", data)
    return writer.commit()


def test_suspend_and_resume_work_while_the_store_is_away(node):
    _, repository, _ = node.start(away=True)
    save(repository, 1)
    second = save(repository, 2, PAGES + b"more")
    assert second.stored_bytes < 50_000
    assert repository.open("c2").read("pages") == PAGES + b"more"
    assert repository.info("c2") == second


def test_what_was_saved_in_an_outage_of_days_is_uploaded_whole(node):
    _, repository, _ = node.start(away=True)
    save(repository, 1)
    node.clock.advance(3 * 24 * 3600.0)
    save(repository, 2, PAGES + b"more")
    _, repository, upload = node.start()
    assert upload.due() == ["c1", "c2"]
    assert upload.round()
    assert node.store.list(layout.INTENTS) == []
    for number in (1, 2):
        assert node.elsewhere().verify(f"c{number}") == []


def test_abort_in_an_outage_leaves_nothing(node):
    _, repository, _ = node.start(away=True)
    writer = begin(repository, 1)
    writer.add("pages", PAGES)
    assert writer.abort()
    for prefix in (layout.PACKS, layout.INTENTS, layout.MANIFESTS):
        assert node.folder.list(prefix) == []
    save(repository, 1)


def test_commit_that_fails_at_its_end_is_undone_where_the_upload_has_seen_it(node):
    _tiers, repository, upload = node.start()
    writer = begin(repository, 1)
    writer.add("pages", PAGES)
    read = node.folder.read

    def read_after_the_upload(name, offset, length):
        if name == layout.manifest("c1") and node.folder.list(name.split("/")[0]):
            node.folder.read = read
            assert upload.round()
            assert node.store.list(layout.MANIFESTS)
            raise StoreError(Reason.STORE_FAILED, why="input/output error")
        return read(name, offset, length)

    node.folder.read = read_after_the_upload
    with pytest.raises(StoreError):
        writer.commit()
    assert repository.list() == []
    assert node.store.list(layout.MANIFESTS) == []


def test_packs_that_only_the_store_has_are_not_leaned_upon(node):
    """Another node may delete them before this one has said that it needs them."""
    tiers, repository, upload = node.start()
    save(repository, 1)
    assert upload.round()
    assert evict(tiers, repository, 0) == ["c1"]
    second = save(repository, 2)
    assert second.stored_bytes > len(PAGES)
    node.elsewhere().delete("c1")
    assert repository.verify("c2") == []


def test_eviction_leaves_what_a_writer_leans_upon(node):
    tiers, repository, upload = node.start()
    save(repository, 1)
    assert upload.round()
    writer = begin(repository, 2)
    assert evict(tiers, repository, 0) == ["c1"]
    node.elsewhere().delete("c1")
    writer.add("pages", PAGES)
    assert writer.commit().stored_bytes < 50_000
    assert repository.verify("c2") == []
    assert upload.round()
    assert node.elsewhere().verify("c2") == []


def test_commit_to_the_store_still_needs_it(node):
    tiers = WriteBackCache(node.folder, Unreachable(), CommitMeans.REMOTE)
    repository = Repository(tiers, clock=node.clock, keys=KEYS)
    with pytest.raises(Unavailable):
        begin(repository, 1)
