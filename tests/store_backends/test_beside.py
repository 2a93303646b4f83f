"""An upload, and other processes that delete and sweep: stepped against each other."""

import threading
from functools import partial

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.catalogue.locks import REFRESH_SECONDS
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock

DAY = 24 * 3600.0
PATIENCE = 20.0


class Process:
    """Its calls of a backend wait for their turn; it is run in a thread.

    Args:
        work: what it does; a ``StoreError`` is an end like any other.
    """

    def __init__(self, work) -> None:
        self._allowed = 0
        self._calls = 0
        self._turn = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def call(self, work):
        with self._turn:
            self._turn.wait_for(lambda: self._calls < self._allowed, PATIENCE)
            self._calls += 1
            self._turn.notify_all()
        return work()

    def go(self, calls):
        """Let it make so many calls more, and wait until it waits again, or ends."""
        if not self._thread.ident:
            self._thread.start()
        with self._turn:
            self._allowed += calls
            self._turn.notify_all()
            self._turn.wait_for(
                lambda: self._ended.is_set() or self._calls >= self._allowed, PATIENCE
            )

    def finish(self):
        self.go(10_000)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self, work):
        try:
            work()
        except StoreError:
            pass
        finally:
            with self._turn:
                self._ended.set()
                self._turn.notify_all()


def _step(process, work):
    return process().call(work)


class World:
    """A node with a checkpoint that is half uploaded, and a store behind it."""

    def __init__(self) -> None:
        self.node, self.store = MemoryBackend(), MemoryBackend()
        self.clock = ManualClock()
        repository = self.repository(self.node)
        writer = repository.begin(
            id="c1", key=SessionKey("u"), incarnation="i", generation=1
        )
        writer.add("pages", b"p" * 5000)
        writer.commit()

    def repository(self, backend):
        return Repository(backend, clock=self.clock, keys=KEYS)

    def tiers(self, process=None):
        backends = [self.node, self.store]
        if process is not None:
            backends = [
                BackendProxy(each, partial(_step, process)) for each in backends
            ]
        return WriteBackCache(*backends, CommitMeans.LOCAL)

    def send_all_but_the_manifest(self):
        """As an upload did that died."""
        for name in list(self.node.objects):
            if name.startswith(layout.PACKS):
                self.store.objects[name] = self.node.objects[name]

    def uploader(self):
        holder = []
        tiers = self.tiers(lambda: holder[0])
        repository = self.repository(tiers)
        upload = Upload(tiers, repository)
        holder.append(Process(lambda: upload.upload("c1")))
        return holder[0]

    def other(self, work, *, on_the_node):
        holder = []
        if on_the_node:
            backend = self.tiers(lambda: holder[0])
        else:
            backend = BackendProxy(self.store, partial(_step, lambda: holder[0]))
        repository = self.repository(backend)
        holder.append(Process(lambda: work(repository)))
        return holder[0]

    def check(self, *, was_deleted):
        """What is listed in the store is whole; what is on the node comes there."""
        here = self.repository(self.node).list()
        for info in self.repository(self.store).list():
            assert self.repository(self.store).verify(info.id) == []
        if was_deleted:
            assert here == self.repository(self.store).list() == []
            return
        assert [info.id for info in here] == ["c1"]
        tiers = self.tiers()
        upload = Upload(tiers, self.repository(tiers))
        assert upload.round()
        assert self.repository(self.store).verify("c1") == []


def delete(repository):
    repository.delete("c1")


def sweep(repository):
    repository.sweep()


def delete_and_sweep(repository):
    repository.delete("c1")
    repository.sweep()


@pytest.mark.parametrize("half_sent", [False, True])
@pytest.mark.parametrize(
    ("work", "on_the_node"),
    [(delete, True), (delete_and_sweep, False), (sweep, False)],
)
def test_upload_beside_others_leaves_no_manifest_without_its_packs(
    work, on_the_node, half_sent
):
    """Each stops the other after any of its calls."""
    turns = [(first, 2) for first in range(26)]
    turns += [(first, second) for first in (0, 2, 5) for second in range(1, 26)]
    turns += [(first, 10_000) for first in range(26)]
    for first, second in turns:
        world = World()
        if half_sent:
            world.send_all_but_the_manifest()
        upload, other = world.uploader(), world.other(work, on_the_node=on_the_node)
        upload.go(first)
        other.go(second)
        upload.finish()
        other.finish()
        world.check(was_deleted=work is delete and on_the_node)


def test_upload_waits_for_a_sweep_that_has_begun():
    """Nothing may be sent that the other is about to take for remains."""
    world = World()
    world.send_all_but_the_manifest()
    other = world.other(sweep, on_the_node=False)
    for _ in range(100):
        other.go(1)
        if world.store.list(layout.DELETION_LOCKS):
            break
    tiers = world.tiers()
    upload = Upload(tiers, world.repository(tiers))
    with pytest.raises(StoreError, match="what is left of c1 is being removed"):
        upload.upload("c1")
    assert not upload.round()
    other.finish()
    assert world.store.list(layout.DELETION_LOCKS) == []
    assert upload.round()
    assert world.repository(world.store).verify("c1") == []


def test_mark_of_a_sweep_that_died_counts_for_an_hour():
    world = World()
    tiers = world.tiers()
    upload = Upload(tiers, world.repository(tiers))
    mark = f"GRREMOVE 1\n{int(world.clock.now())}\n0\n"
    world.store.publish(layout.deletion_lock("c1"), mark.encode())
    assert not upload.round()
    world.clock.advance(3601.0)
    assert upload.round()
    world.repository(world.store).sweep()
    assert world.store.list(layout.DELETION_LOCKS) == []


def test_deletion_on_the_node_in_mid_upload_leaves_nothing_in_the_end():
    world = World()
    upload, other = world.uploader(), world.other(delete, on_the_node=True)
    upload.go(12)
    assert world.store.list(layout.INTENTS)
    other.finish()
    upload.finish()
    assert world.node.objects == world.store.objects == {}


def test_intent_of_an_upload_of_days_stays_fresh():
    world = World()
    now = [0.0]

    class Slow(BackendProxy):
        def create(self, name):
            world.clock.advance(DAY)
            now[0] += DAY
            return super().create(name)

        def length(self, name):
            world.repository(world.store).sweep()
            return super().length(name)

    slow = Slow(world.store, lambda work: work())
    tiers = WriteBackCache(world.node, slow, CommitMeans.LOCAL)
    upload = Upload(tiers, world.repository(tiers), elapsed=lambda: now[0])
    seen = []
    replace = slow.replace

    def replace_and_sweep(name, data):
        replace(name, data)
        seen.append(name)
        assert world.repository(world.store).sweep().removed == []

    slow.replace = replace_and_sweep
    assert REFRESH_SECONDS < DAY
    assert upload.round()
    assert seen == [layout.intent("c1")] * len(seen)
    assert seen
    assert world.repository(world.store).verify("c1") == []
    assert world.store.list(layout.INTENTS) == []
