"""Two copies, one of them damaged: the other is read, and the damaged one is mended."""

import os

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.support.faulty_backend import turn_bit
from tests.support.manual_clock import ManualClock

PAGES = os.urandom(1_200_000)
PACK, INDEX, MANIFEST = "packs/c1/00000000", "packs/c1/index", "manifests/c1"
#: Places of a pack that lie in different blocks.
EARLY, LATE = 10_000, 900_000


class Node:
    """A node's folder, and a store behind it."""

    def __init__(self, path, clock, means=CommitMeans.LOCAL) -> None:
        self.clock = clock
        self.folder = FolderBackend(path / "node")
        self.store = MemoryBackend()
        self.tiers = WriteBackCache(self.folder, self.store, means)
        self.repository = self.on(self.tiers)
        self.upload = Upload(self.tiers, self.repository)

    def on(self, backend):
        """One that has read nothing yet."""
        return Repository(backend, clock=self.clock, keys=KEYS)

    def save(self, number=1, pages=PAGES):
        writer = self.repository.begin(
            id=f"c{number}", key=SessionKey("ada"), incarnation="i", generation=number
        )
        writer.add("pages", pages)
        return writer.commit()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def node(tmp_path, clock):
    made = Node(tmp_path, clock)
    made.save()
    return made


@pytest.fixture
def uploaded(node):
    assert node.upload.round()
    return node


@pytest.mark.parametrize("name", [PACK, INDEX, MANIFEST])
@pytest.mark.parametrize("at", [0, 11, -1], ids=["first", "early", "last"])
def test_damaged_copy_on_the_node_is_covered_by_the_store_and_mended(
    uploaded, name, at
):
    turn_bit(uploaded.folder, name, at)
    assert uploaded.on(uploaded.tiers).open("c1").read("pages") == PAGES
    alone = uploaded.on(uploaded.folder)
    assert alone.open("c1").read("pages") == PAGES
    assert alone.verify("c1") == []


@pytest.mark.parametrize("name", [PACK, INDEX, MANIFEST])
def test_copy_on_the_node_that_is_cut_is_covered_by_the_store(uploaded, name, tmp_path):
    path = tmp_path / "node" / name
    os.truncate(path, path.stat().st_size // 2)
    assert uploaded.on(uploaded.tiers).open("c1").read("pages") == PAGES
    assert uploaded.on(uploaded.folder).open("c1").read("pages") == PAGES


def test_copies_that_are_both_damaged_in_other_places_make_a_whole(uploaded):
    turn_bit(uploaded.folder, PACK, EARLY)
    turn_bit(uploaded.store, PACK, LATE)
    assert uploaded.on(uploaded.tiers).open("c1").read("pages") == PAGES


def test_copies_that_are_both_damaged_in_one_place_are_damaged(uploaded):
    turn_bit(uploaded.folder, PACK, EARLY)
    turn_bit(uploaded.store, PACK, EARLY)
    with pytest.raises(StoreError) as caught:
        uploaded.on(uploaded.tiers).open("c1").read("pages")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert evict(uploaded.tiers, uploaded.repository, 0) == []


@pytest.mark.parametrize("name", [PACK, INDEX, MANIFEST])
def test_damage_beside_a_store_that_does_not_answer_may_be_none(uploaded, name):
    class Away(BackendProxy):
        def read(self, *_):
            raise Unavailable("it does not answer")

    turn_bit(uploaded.folder, name, 11)
    tiers = WriteBackCache(uploaded.folder, Away(uploaded.store), CommitMeans.LOCAL)
    with pytest.raises(StoreError) as caught:
        uploaded.on(tiers).open("c1").read("pages")
    assert caught.value.reason is Reason.STORE_UNREACHABLE
    assert caught.value.retryable


@pytest.mark.parametrize("name", [PACK, INDEX, MANIFEST])
def test_damaged_copy_is_not_uploaded(node, name):
    turn_bit(node.folder, name, 11)
    with pytest.raises(StoreError) as caught:
        node.upload.upload("c1")
    assert caught.value.reason in (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING)
    assert node.store.list("manifests/") == []
    assert node.store.list("packs/") == []


@pytest.mark.parametrize("name", [PACK, INDEX, MANIFEST])
def test_copy_in_the_store_is_read_and_mended_before_the_other_is_dropped(
    uploaded, name
):
    uploaded.save(2, PAGES[:500_000])
    assert uploaded.upload.round()
    turn_bit(uploaded.store, name, 11)
    assert evict(uploaded.tiers, uploaded.repository, 0) == ["c1", "c2"]
    assert uploaded.folder.list("packs/") == []
    elsewhere = uploaded.on(uploaded.store)
    assert elsewhere.open("c1").read("pages") == PAGES
    assert elsewhere.verify("c2") == []


def test_mending_the_store_keeps_what_only_the_store_has(uploaded):
    """The copy on the node is damaged in another place."""
    turn_bit(uploaded.store, PACK, EARLY)
    turn_bit(uploaded.folder, PACK, LATE)
    assert evict(uploaded.tiers, uploaded.repository, 0) == ["c1"]
    assert uploaded.on(uploaded.store).open("c1").read("pages") == PAGES


def test_copy_in_the_store_that_cannot_be_mended_keeps_the_one_on_the_node(
    uploaded, monkeypatch, caplog
):
    def refuse(*_):
        raise StoreError(Reason.STORE_DENIED, why="it may not be written over")

    monkeypatch.setattr(uploaded.store, "replace", refuse)
    turn_bit(uploaded.store, PACK, EARLY)
    assert evict(uploaded.tiers, uploaded.repository, 0) == []
    assert "written over" in caplog.text
    assert uploaded.on(uploaded.folder).verify("c1") == []


def test_store_that_keeps_something_else_than_what_was_sent_is_found_out(node):
    class TurnsBits(MemoryBackend):
        def place(self, name, data):
            data[len(data) // 2] ^= 1
            super().place(name, data)

    node.tiers.remote = TurnsBits()
    with pytest.raises(StoreError, match="reads back differently"):
        node.upload.upload("c1")
    assert node.tiers.remote.list("manifests/") == []
    assert node.tiers.remote.list("packs/") == []


def test_commit_that_means_the_store_looks_into_the_store(tmp_path, clock):
    """The folder's copy is whole, and lost with the node."""
    node = Node(tmp_path, clock, CommitMeans.REMOTE)
    node.save()
    turn_bit(node.store, PACK, EARLY)
    assert 200_000 < node.save(2).stored_bytes < 400_000
    assert node.on(node.store).verify("c2") == []
    node.folder.delete(PACK)
    assert node.save(3).stored_bytes < 20_000
    assert node.on(node.store).verify("c3") == []


def test_key_is_changed_of_a_manifest_that_is_damaged_on_the_node(uploaded):
    turn_bit(uploaded.folder, MANIFEST, -1)
    assert uploaded.on(uploaded.tiers).rekey() == 0
    assert uploaded.on(uploaded.folder).verify("c1") == []


def test_copy_that_cannot_be_mended_is_not_read_each_time_that_room_is_needed(uploaded):
    turn_bit(uploaded.folder, PACK, EARLY)
    turn_bit(uploaded.store, PACK, EARLY)
    assert evict(uploaded.tiers, uploaded.repository, 0) == []
    read, asked = uploaded.store.read, []

    def count(name, offset, length):
        asked.append(name)
        return read(name, offset, length)

    uploaded.store.read = count
    assert evict(uploaded.tiers, uploaded.repository, 0) == []
    assert PACK not in asked
