"""A node's folder and the store behind it: killed at any step, nothing is lost."""

import os
import threading

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, Unavailable, exists
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.backends.write_back import (
    CommitMeans,
    WriteBackCache,
)
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from simulation.doubles.memory_backend import MemoryBackend
from tests.store_backends.doubles import (
    Died,
    DiesAt,
    Remote,
    SmallRepository,
    Unreachable,
)
from tests.support.agent import wait_for

ONE = {"a/0": b"x" * 1000, "a/1": b"y" * 500, "a/index": b"i" * 10}
#: The second generation needs a pack of the first.
TWO = {"b/0": b"z" * 300, "b/index": b"j" * 10, "a/0": None}


class World:
    """Two tiers that outlive the processes that work on them."""

    def __init__(self, means=CommitMeans.LOCAL) -> None:
        self.node, self.store = MemoryBackend(), MemoryBackend()
        self.remote = Remote(self.store)
        self.means = means
        self.mortal = {"calls": 0, "dies_at": 0}

    def start(self, dies_at=0):
        """A process: its tiers, its repository, its upload."""
        self.mortal = {"calls": 0, "dies_at": dies_at}
        tiers = WriteBackCache(
            DiesAt(self.node, self.mortal),
            DiesAt(self.remote, self.mortal),
            self.means,
        )
        repository = SmallRepository(tiers)
        return tiers, repository, Upload(tiers, repository)

    def is_whole_in_store(self, checkpoint):
        store = SmallRepository(self.store)
        try:
            needs = store.objects(checkpoint)
        except Exception:
            return False
        return all(self.store.length(name) == length for name, length in needs)


@pytest.fixture
def world():
    return World()


def test_local_commit_stands_on_the_node_and_then_in_the_store(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    assert not world.is_whole_in_store("a")
    assert upload.due() == ["a"]
    assert upload.round()
    assert world.is_whole_in_store("a")
    assert upload.due() == []
    assert world.store.list(layout.INTENTS) == []
    assert world.node.list(layout.INTENTS) == []


def test_remote_commit_stands_in_the_store_first():
    world = World(CommitMeans.REMOTE)
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    assert world.is_whole_in_store("a")
    assert upload.due() == []
    repository.commit("b", TWO, created=1.0)
    assert world.is_whole_in_store("b")
    assert world.remote.sent.count("packs/a/0") == 1
    assert world.remote.broken == []
    assert world.store.list(layout.INTENTS) == []


def test_remote_commit_after_local_ones_brings_what_it_needs(world):
    world.start()[1].commit("a", ONE)
    world.means = CommitMeans.REMOTE
    world.start()[1].commit("b", TWO, created=1.0)
    assert world.is_whole_in_store("b")
    assert world.start()[2].round()
    assert world.is_whole_in_store("a")
    assert world.remote.broken == []


@pytest.mark.parametrize("means", CommitMeans)
def test_process_killed_at_any_call_leaves_all_or_nothing(means):
    clean = World(means)
    two_lives(clean, 0, [])
    calls = clean.mortal["calls"]
    assert calls > 40
    for dies_at in range(1, calls + 1):
        world = World(means)
        told = []
        with pytest.raises(Died):
            two_lives(world, dies_at, told)
        finished = set(world.store.objects)
        world.remote.sent.clear()
        _, repository, upload = world.start()
        listed = [info.id for info in repository.list()]
        assert set(told) <= set(listed)
        for name in listed:
            assert len(repository.read(name)) == {"a": 1510, "b": 1310}[name]
        assert upload.round()
        assert world.remote.broken == []
        for name in listed:
            assert world.is_whole_in_store(name)
        assert finished.isdisjoint(world.remote.sent)


def two_lives(world, dies_at, told):
    """Two generations, each committed and uploaded, unless the process dies."""
    _, repository, upload = world.start(dies_at)
    for name, packs in (("a", ONE), ("b", TWO)):
        repository.commit(name, packs, created=float(name == "b"))
        told.append(name)
        upload.round()


@pytest.mark.parametrize("means", CommitMeans)
def test_delete_killed_at_any_call_is_repeated_and_ends(means):
    for dies_at in range(1, 60):
        world = World(means)
        _, repository, upload = world.start()
        repository.commit("a", ONE)
        upload.round()
        _, repository, upload = world.start(dies_at)
        try:
            repository.delete("a")
        except Died:
            pass
        else:
            assert world.node.list(layout.MANIFESTS) == []
            break
        _, repository, upload = world.start()
        upload.round()
        if repository.list():
            assert len(repository.read("a")) == 1510
            repository.delete("a")
        assert world.store.list(layout.MANIFESTS) == []
    else:
        pytest.fail("a delete has never ended")


def test_checkpoint_deleted_while_it_is_uploaded_does_not_come_back(world):
    tiers, repository, upload = world.start()
    repository.commit("a", ONE)
    create = world.remote.create

    def create_and_delete(name):
        if name == "packs/a/1":
            repository.delete("a")
        return create(name)

    world.remote.create = create_and_delete
    upload.round()
    assert repository.list() == []
    assert world.store.list(layout.MANIFESTS) == []
    assert world.store.list(layout.INTENTS) == []
    assert not exists(tiers, layout.manifest("a"))


def test_node_whose_folder_is_gone_deletes_nothing_in_the_store(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    upload.round()
    world.node.objects.clear()
    _, repository, upload = world.start()
    assert upload.round()
    assert evict(upload._cache, repository, 0) == []
    assert len(repository.read("a")) == 1510


def test_read_falls_back_to_the_store_object_by_object(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    upload.round()
    del world.node.objects["packs/a/1"]
    assert len(repository.read("a")) == 1510
    buffer = bytearray(500)
    tiers = repository.backend
    assert tiers.read_into("packs/a/1", 0, memoryview(buffer)) == 500
    assert bytes(buffer) == ONE["a/1"]
    with pytest.raises(ObjectMissing):
        tiers.length("packs/never")


def test_disk_that_fails_is_covered_by_the_store(world):
    class DiskThatFails(MemoryBackend):
        def read(self, name, offset, length):
            raise StoreError(Reason.STORE_FAILED, why="input/output error")

    _, repository, upload = world.start()
    repository.commit("a", ONE)
    upload.round()
    tiers = WriteBackCache(DiskThatFails(), world.store, CommitMeans.LOCAL)
    assert tiers.read("packs/a/0", 0, 3) == b"xxx"
    with pytest.raises(StoreError, match="input/output error"):
        tiers.read("packs/never", 0, 3)


def test_store_that_does_not_answer_is_unknown_never_missing(world):
    tiers = WriteBackCache(world.node, Unreachable(), CommitMeans.LOCAL)
    with pytest.raises(Unavailable):
        tiers.length(layout.manifest("a"))
    with pytest.raises(Unavailable):
        tiers.list(layout.MANIFESTS)


def test_eviction_takes_the_oldest_that_is_whole_in_the_store(world):
    tiers, repository, upload = world.start()
    repository.commit("a", ONE)
    upload.round()
    repository.commit("b", TWO, created=1.0)
    repository.commit("c", {"c/0": b"c" * 400}, created=2.0)
    assert evict(tiers, repository, 10_000) == []
    # b and c are not uploaded: only a may go, and b keeps the pack that it needs.
    assert evict(tiers, repository, 100) == ["a"]
    assert sorted(e.name for e in world.node.list(layout.PACKS)) == [
        "packs/a/0",
        "packs/b/0",
        "packs/b/index",
        "packs/c/0",
    ]
    assert upload.round()
    assert evict(tiers, repository, 500) == ["b"]
    assert [e.name for e in world.node.list(layout.PACKS)] == ["packs/c/0"]
    for name, size in (("a", 1510), ("b", 1310), ("c", 400)):
        assert len(repository.read(name)) == size
    assert upload.due() == []


def test_eviction_killed_at_any_call_loses_nothing(world):
    for dies_at in range(1, 200):
        world = World()
        _, repository, upload = world.start()
        repository.commit("a", ONE)
        repository.commit("b", TWO, created=1.0)
        upload.round()
        tiers, repository, upload = world.start(dies_at)
        try:
            evict(tiers, repository, 0)
        except Died:
            ended = False
        else:
            ended = True
        tiers, repository, upload = world.start()
        assert upload.round()
        assert [len(repository.read(name)) for name in "ab"] == [1510, 1310]
        evict(tiers, repository, 0)
        assert world.node.objects == {}
        if ended:
            return
    pytest.fail("an eviction has never ended")


def test_upload_in_the_background_is_woken_by_a_commit(tmp_path, s3, bucket):
    """With a folder, a real S3 server and a real thread."""
    remote = open_backend(
        spec_of(
            f"s3://{bucket}/p", options=s3.options, options_file=str(s3.options_file)
        )
    )
    tiers = WriteBackCache(FolderBackend(tmp_path / "node"), remote, CommitMeans.LOCAL)
    repository = SmallRepository(tiers)
    data = os.urandom(6 * 1024 * 1024)
    repository.commit("a", {"a/0": data, "a/index": b"i"})
    rounds = threading.Event()
    upload = Upload(tiers, repository, after=rounds.set)
    upload.start()
    try:
        wait_for(rounds.is_set)
        assert upload.due() == []
        repository.commit("b", {"b/0": b"second"})  # wakes it
        wait_for(lambda: upload.due() == [])
    finally:
        upload.stop()
    assert remote.read("packs/a/0", 0, len(data)) == data
    elsewhere = SmallRepository(open_backend(tiers.spec()["remote"]))
    assert elsewhere.read("b") == b"second"


def test_upload_survives_an_outage_and_says_so(world, caplog):
    """Whatever the store answers, the thread goes on and comes back to it."""
    answers = iter([Unavailable("it is away"), RuntimeError("a bug"), None])
    now = [next(answers)]

    def call(work):
        if now[0] is not None:
            raise now[0]
        return work()

    tiers = WriteBackCache(
        world.node, BackendProxy(world.store, call), CommitMeans.LOCAL
    )
    here = SmallRepository(world.node)
    here.commit("a", ONE)
    rounds = []

    def after():
        rounds.append(len(caplog.records))

    upload = Upload(tiers, here, after=after, pause=0.01)
    upload.start()
    try:
        wait_for(lambda: "it is away" in caplog.text)
        now[0] = next(answers)
        wait_for(lambda: "a bug" in caplog.text)
        now[0] = next(answers)
        wait_for(lambda: rounds)
    finally:
        upload.stop()
    assert world.is_whole_in_store("a")


def test_upload_that_is_stopped_goes_on_where_it_was(world):
    _, repository, upload = world.start()
    repository.commit("a", {f"a/{n}": b"x" * 100 for n in range(12)})
    create = world.remote.create

    def create_and_stop(name):
        if len(world.remote.sent) == 5:
            upload.stop()
        return create(name)

    world.remote.create = create_and_stop
    assert not upload.round()
    assert not world.is_whole_in_store("a")
    sent = list(world.remote.sent)
    world.remote.create = create
    assert world.start()[2].round()
    assert world.is_whole_in_store("a")
    done = [name for name in sent if world.remote.sent.count(name) == 1]
    assert len(done) >= 5


def test_checkpoint_deleted_in_the_wrong_moment_does_not_end_the_uploads(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    repository.commit("b", {"b/0": b"second"}, created=1.0)
    intent = repository.intent

    def intent_of_what_is_gone(checkpoint):
        if checkpoint == "a":
            repository.delete("a")
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint="a")
        return intent(checkpoint)

    repository.intent = intent_of_what_is_gone
    assert upload.round()
    assert world.is_whole_in_store("b")


def test_upload_goes_on_after_an_error_that_nobody_expected(world):
    tiers, repository, _ = world.start()
    repository.commit("a", ONE)
    calls = []

    def fails_once():
        calls.append(1)
        if len(calls) == 1:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint="a")
        if len(calls) == 2:
            raise RuntimeError("a fault of ours")

    upload = Upload(tiers, repository, after=fails_once, pause=0.01)
    upload.start()
    try:
        wait_for(lambda: len(calls) == 3)
    finally:
        upload.stop()


def test_eviction_beside_a_deletion_goes_on(world):
    tiers, repository, upload = world.start()
    repository.commit("a", ONE)
    repository.commit("b", {"b/0": b"second"}, created=1.0)
    upload.round()
    objects, infos = repository.objects, repository.list()

    def objects_of_what_is_left(checkpoint):
        if checkpoint == "a":
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint="a")
        return objects(checkpoint)

    repository.objects = objects_of_what_is_left
    repository.list = lambda: infos
    assert evict(tiers, repository, 0) == ["b"]


class Outage(MemoryBackend):
    """A store that refuses to replace anything while it is ``down``."""

    down = True

    def replace(self, name, data):
        if self.down:
            raise Unavailable("it does not answer")
        super().replace(name, data)


def test_replace_that_failed_in_the_store_leaves_the_old_one_to_be_found(world):
    store = Outage()
    tiers = WriteBackCache(world.node, store, CommitMeans.REMOTE)
    tiers.publish("manifests/a", b"old")
    with pytest.raises(Unavailable):
        tiers.replace("manifests/a", b"new")
    assert tiers.read("manifests/a", 0, 10) == b"old"
    store.down = False
    tiers.replace("manifests/a", b"new")
    assert world.node.objects == store.objects == {"manifests/a": b"new"}
    with pytest.raises(ObjectMissing):
        tiers.replace("manifests/b", b"new")


def test_manifest_replaced_while_it_is_uploaded_is_the_new_one_in_the_store(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    data = bytes(world.node.objects["manifests/a"]) + b" "
    publish = world.remote.publish

    def publish_and_replace(name, *given, **more):
        publish(name, *given, **more)
        if name == "manifests/a":
            world.node.replace(name, data)

    world.remote.publish = publish_and_replace
    assert upload.round()
    assert world.store.objects["manifests/a"] == data


def test_pack_that_a_sweep_takes_during_the_upload_is_sent_again(world):
    _, repository, upload = world.start()
    repository.commit("a", ONE)
    listed = world.remote.list

    def sweep_and_list(prefix):
        if len(world.remote.sent) == len(ONE):
            world.store.delete("packs/a/0")
        return listed(prefix)

    world.remote.list = sweep_and_list
    assert not upload.round()
    world.remote.list = listed
    assert upload.due() == ["a"]
    assert upload.round()
    assert world.is_whole_in_store("a")
    assert world.remote.broken == []
