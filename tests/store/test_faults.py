"""A backend that fails, is slow or lies: an error in words, and all or nothing."""

import itertools
import os
import threading

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.support.faulty_backend import Around
from tests.support.manual_clock import ManualClock

RANDOM = os.urandom(700_000)


class BackendThatFailsAt(MemoryBackend):
    """Its n-th call fails, and every later one too when it is broken for good."""

    def __init__(self, fails_at: int, *, for_good: bool) -> None:
        super().__init__()
        self.calls = 0
        self.fails_at = fails_at
        self.for_good = for_good

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at or (
            self.for_good and self.calls > self.fails_at > 0
        ):
            raise StoreError(Reason.STORE_FAILED, why="the backend has a fault")

    def create(self, name):
        self.count()
        return WriterThatMayFail(self, super().create(name))

    def publish(self, name, data):
        # It stands, and yet the call fails: the last sync is what went wrong.
        super().publish(name, data)
        self.count()

    def read(self, name, offset, length):
        self.count()
        return super().read(name, offset, length)

    def length(self, name):
        self.count()
        return super().length(name)

    def list(self, prefix):
        self.count()
        return super().list(prefix)

    def delete(self, name):
        self.count()
        super().delete(name)


class WriterThatMayFail:
    def __init__(self, backend, writer):
        self.backend, self.writer = backend, writer

    def write(self, data):
        self.backend.count()
        self.writer.write(data)

    def read_back(self, offset, buffer):
        return self.writer.read_back(offset, buffer)

    def finish(self):
        self.backend.count()
        self.writer.finish()

    def abandon(self):
        self.writer.abandon()


class BackendThatIsSlowToPublish(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.publishing = threading.Event()
        self.go_on = threading.Event()

    def publish(self, name, data):
        if name.startswith("manifests/"):
            self.publishing.set()
            assert self.go_on.wait(30)
        super().publish(name, data)


class BackendThatNeverSyncs(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.ended = threading.Event()

    def create(self, name):
        writer = super().create(name)
        writer.finish = lambda: self.ended.wait(30)
        return writer


def begin(repository, name="c1"):
    return repository.begin(id=name, key=SessionKey("u"), incarnation="i", generation=1)


def write_one(repository):
    writer = begin(repository)
    try:
        writer.add("pages.img", RANDOM)
        writer.add("zero", bytes(300_000))
        return writer.commit()
    except ReclaimError:
        try:
            writer.abort()
        except ReclaimError:
            writer.abort()
        raise


@pytest.mark.parametrize("for_good", [False, True])
def test_backend_that_fails_at_any_call_leaves_all_or_nothing(for_good):
    whole = BackendThatFailsAt(0, for_good=False)
    write_one(Repository(whole, clock=ManualClock(), keys=KEYS, pack_bytes=300_000))
    assert whole.calls > 15
    # The very last call removes the intent, which may stay.
    for fails_at in range(1, whole.calls):
        backend = BackendThatFailsAt(fails_at, for_good=for_good)
        repository = Repository(
            backend, clock=ManualClock(), keys=KEYS, pack_bytes=300_000
        )
        with pytest.raises(ReclaimError) as caught:
            write_one(repository)
        assert isinstance(caught.value, StoreError)
        backend.fails_at = 0
        if for_good:
            # Nobody could clean up: the next start does.
            repository = Repository(backend, clock=ManualClock(), keys=KEYS)
            for info in repository.list():
                assert repository.open(info.id).read("pages.img") == RANDOM
            repository.delete("c1")
            repository.sweep()
        assert backend.objects == {}
        assert repository.list() == []
        assert write_one(repository).id == "c1"


def test_backend_that_never_syncs_ends_the_commit_in_time():
    backend = BackendThatNeverSyncs()
    repository = Repository(backend, clock=ManualClock(), keys=KEYS)
    writer = begin(repository)
    writer.add("pages.img", RANDOM)
    with pytest.raises(StoreError) as caught:
        writer.commit(timeout=0.05)
    backend.ended.set()
    assert caught.value.reason is Reason.TIMED_OUT
    assert repository.list() == []
    assert backend.objects == {}


def test_abort_that_comes_too_late_waits_and_tells():
    backend = BackendThatIsSlowToPublish()
    repository = Repository(backend, clock=ManualClock(), keys=KEYS)
    writer = begin(repository)
    writer.add("pages.img", RANDOM)
    infos, gone = [], []
    commit = threading.Thread(target=lambda: infos.append(writer.commit()))
    abort = threading.Thread(target=lambda: gone.append(writer.abort()))
    commit.start()
    assert backend.publishing.wait(30)
    abort.start()
    backend.go_on.set()
    commit.join(30)
    abort.join(30)
    assert gone == [False]
    assert repository.open(infos[0].id).read("pages.img") == RANDOM


def test_error_of_the_store_while_looking_is_not_missing():
    backend = BackendThatFailsAt(0, for_good=True)
    repository = Repository(backend, clock=ManualClock(), keys=KEYS)
    write_one(repository)
    assert repository.info("c1").id == "c1"  # remembered, and yet
    backend.calls, backend.fails_at = 0, 1
    for look in (
        repository.list,
        lambda: repository.info("c1"),
        lambda: repository.open("c1"),
        lambda: repository.exists("never"),
    ):
        with pytest.raises(StoreError) as caught:
            look()
        assert caught.value.reason is Reason.STORE_FAILED
        assert not isinstance(caught.value, NotFound)


class BackendThatIsAway(Around):
    """Every call fails while it is ``away``."""

    away = False

    def __getattr__(self, name):
        def call(*args):
            if self.away:
                raise Unavailable("it does not answer")
            return getattr(self.inner, name)(*args)

        return call


def test_what_an_outage_has_left_can_be_deleted_after_it(clock):
    kept = MemoryBackend()
    backend = BackendThatIsAway(kept)
    store = Repository(backend, clock=clock, keys=KEYS)
    writer = store.begin(id="c1", key=SessionKey("u"), incarnation="i", generation=1)
    writer.add("a", RANDOM)
    backend.away = True
    for work in (writer.commit, writer.abort, lambda: store.delete("c1")):
        with pytest.raises(Unavailable):
            work()
    backend.away = False
    store.delete("c1")
    assert kept.objects == {}
    assert writer.abort()


def test_session_begins_to_be_saved_while_a_sweep_hangs(clock):
    """A store that hangs must not keep a suspend that does not need it."""
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(MemoryBackend):
        def list(self, prefix):
            if threading.current_thread().name == "sweep":
                hangs.set()
                goes_on.wait(20)
            return super().list(prefix)

    store = Repository(Hangs(), clock=clock, keys=KEYS)
    sweep = threading.Thread(target=store.sweep, name="sweep")
    sweep.start()
    assert hangs.wait(20)
    try:
        writer = store.begin(
            id="c1", key=SessionKey("u"), incarnation="i", generation=1
        )
        writer.add("pages", b"x" * 5000)
        writer.commit()
    finally:
        goes_on.set()
        sweep.join(20)
    assert store.open("c1").verify() == []


@pytest.mark.parametrize("block", [0, 2])
def test_file_that_holds_something_else_is_found_before_the_commit(
    tmp_path, clock, monkeypatch, block
):
    """A bit that the memory or the file system turns; nobody else would look."""
    backend = FolderBackend(tmp_path / "store")
    create = backend.create

    def create_and_damage(name):
        writer = create(name)
        write = writer.write
        blocks = itertools.count()

        def write_else(data):
            damaged = bytearray(data)
            damaged[len(damaged) // 2] ^= next(blocks) == block
            write(damaged)

        if name.endswith("/00000000"):
            monkeypatch.setattr(writer, "write", write_else)
        return writer

    monkeypatch.setattr(backend, "create", create_and_damage)
    store = Repository(backend, clock=clock, keys=KEYS)
    writer = store.begin(id="c1", key=SessionKey("u"), incarnation="i", generation=1)
    with pytest.raises(StoreError, match="reads back differently"):
        writer.add("pages", RANDOM * 4)
    with pytest.raises(StoreError):
        writer.commit()
    assert store.list() == []


def test_pack_that_no_key_opens_is_found_before_the_commit(
    tmp_path, clock, monkeypatch
):
    """A mistake of ours: what stands in the file is what was written."""
    seal_into = crypto.Sealer.seal_into

    def seal_for_another_place(sealer, number, plain, bound, out):
        seal_into(sealer, number + 1, plain, bound, out)

    monkeypatch.setattr(crypto.Sealer, "seal_into", seal_for_another_place)
    backend = FolderBackend(tmp_path / "store")
    store = Repository(backend, clock=clock, keys=KEYS)
    writer = store.begin(id="c1", key=SessionKey("u"), incarnation="i", generation=1)
    with pytest.raises(StoreError, match="reads back differently"):
        writer.add("pages", RANDOM)
