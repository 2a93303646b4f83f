"""Later generations of a session: what stands already is not written again."""

import os
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.catalogue import locks
from jupyterhub_gpu_reclaim.store.format.index import BLOCKS, ChunkIndex
from jupyterhub_gpu_reclaim.store.format.manifest import PackRef
from jupyterhub_gpu_reclaim.store.packing.base_blocks import Verdict
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.write.commit import BaseCheckpoint, FileEntry, merge
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS
from tests.support.faulty_backend import Around, turn_bit
from tests.support.manual_clock import ManualClock

PAGE = 4096
PLAIN = os.urandom(1000 * PAGE)


def save(store, number, plain=PLAIN, user="ada", **files):
    writer = store.begin(
        id=f"c{number}", key=SessionKey(user), incarnation="i", generation=number
    )
    for name, data in {"pages": plain, **files}.items():
        writer.add(name, data)
    return writer.commit()


def changed(plain, share, seed=1):
    """Some pages of it are others now, and all stand at other addresses."""
    source = random.Random(seed)
    pages = [plain[at : at + PAGE] for at in range(0, len(plain), PAGE)]
    for at in source.sample(range(len(pages)), int(len(pages) * share)):
        pages[at] = source.randbytes(PAGE)
    shift = source.randrange(len(pages))
    return b"".join(pages[shift:] + pages[:shift])


def on_disk(backend):
    return sum(entry.length for entry in backend.list("packs/"))


@pytest.mark.parametrize("seed", range(4))
def test_what_checkpoints_keep_is_what_is_there(backend, store, seed):
    """Whichever of them are deleted, and however much of the last one changes."""
    source, plain, there = random.Random(seed), PLAIN, []
    for number in range(1, 9):
        plain = changed(plain, source.choice([0.0, 0.05, 1.0]), seed=number)
        there.append(save(store, number, plain).id)
        while source.random() < 0.4 and there:
            store.delete(there.pop(source.randrange(len(there))))
        assert kept_bytes(store.list()) == on_disk(backend)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
def test_second_generation_writes_what_has_changed(store, share):
    save(store, 1)
    second = changed(PLAIN, share)
    info = save(store, 2, second)
    assert info.stored_bytes <= 1.1 * share * len(PLAIN) + 0.01 * len(PLAIN)
    assert info.deduplicated_bytes == len(PLAIN) - share * len(PLAIN)
    assert store.open("c2").read("pages") == second


def test_chunks_of_other_sessions_are_never_shared(store):
    one = save(store, 1)
    other = save(store, 2, user="eve")
    assert other.deduplicated_bytes == 0
    assert other.stored_bytes >= len(PLAIN)
    assert abs(one.stored_bytes - other.stored_bytes) < 100


def test_generations_survive_the_deletion_of_those_before(store, backend):
    plain, kept = PLAIN, {}
    for number in range(1, 7):
        save(store, number, plain)
        kept[number] = plain
        plain = changed(plain, 0.1, seed=number)
    for number in range(1, 6):
        store.delete(f"c{number}")
        for later in range(number + 1, 7):
            assert store.open(f"c{later}").read("pages") == kept[later]
        assert store.sweep().removed == []
    assert backend.list("packs/c1/")
    store.delete("c6")
    assert backend.objects == {}


class FailsInTheMiddle(Around):
    """The deletion of a pack fails, as often as it is told to."""

    def __init__(self, backend):
        super().__init__(backend)
        self.failures = 0

    def delete(self, name):
        if name.startswith("packs/") and self.failures:
            self.failures -= 1
            raise Unavailable(f"{name} cannot be deleted")
        self.inner.delete(name)


def test_deletion_that_was_cut_off_frees_all_when_it_is_repeated(backend, clock):
    faulty = FailsInTheMiddle(backend)
    store = Repository(faulty, clock=clock, keys=KEYS, pack_bytes=1 << 20)
    save(store, 1)
    save(store, 2, changed(PLAIN, 0.1))
    store.delete("c1")  # its packs stay: the second generation needs them
    faulty.failures = 1
    with pytest.raises(StoreError):
        store.delete("c2")
    assert not store.exists("c2")
    assert store.delete("c2") > 0.9 * len(PLAIN)
    assert backend.objects == {}


def test_packs_that_are_mostly_dead_are_left_to_die(store, backend):
    save(store, 1)
    few = PLAIN[: 50 * PAGE]
    save(store, 2, few)  # a fifth of the first pack is left …
    info = save(store, 3, few)  # … so the third generation writes it anew
    assert info.stored_bytes >= len(few)
    store.delete("c1")
    store.delete("c2")
    assert backend.list("packs/c1/") == []
    assert store.open("c3").read("pages") == few


def test_begin_of_an_id_whose_packs_are_needed_is_refused(store):
    save(store, 1)
    save(store, 2)
    store.delete("c1")
    with pytest.raises(StoreError) as caught:
        save(store, 1)
    assert caught.value.reason is Reason.CHECKPOINT_EXISTS
    assert store.open("c2").read("pages") == PLAIN


def test_damaged_generation_is_not_built_upon(store, backend, caplog):
    save(store, 1)
    backend.objects["packs/c1/index"][10] ^= 1
    info = save(store, 2)
    assert info.deduplicated_bytes == 0
    assert "not built upon" in caplog.text
    store.delete("c1")
    assert store.open("c2").read("pages") == PLAIN


def test_generation_of_another_chunk_size_keeps_that_of_the_session(backend, clock):
    save(Repository(backend, clock=clock, keys=KEYS, chunk_bytes=65536), 1)
    info = save(Repository(backend, clock=clock, keys=KEYS), 2)
    assert info.deduplicated_bytes >= len(PLAIN) - 65536


def test_large_sessions_get_larger_chunks_and_begin_anew(store):
    sizes = []
    for number, expected in enumerate((0, 30 << 30, 100 << 30, 10 << 30, 9 << 40), 1):
        writer = store.begin(
            id=f"c{number}",
            key=SessionKey("ada"),
            incarnation="i",
            generation=number,
            expected_bytes=expected,
        )
        writer.add("pages", PLAIN)
        info = writer.commit()
        sizes.append((store._catalogue.read(f"c{number}").chunk_bytes, info))
        assert store.open(f"c{number}").read("pages") == PLAIN
    assert [size for size, _ in sizes] == [4096, 4096, 16384, 16384, 262144]
    shared = [info.deduplicated_bytes > 0 for _, info in sizes]
    assert shared == [False, True, False, True, False]


# --- beside others -------------------------------------------------------------------


def test_delete_beside_a_writer_of_another_process_keeps_what_it_references(
    store, backend, clock
):
    save(store, 1)
    other = Repository(backend, clock=clock, keys=KEYS)
    writer = other.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    store.delete("c1")
    assert store.sweep().removed == []
    writer.add("pages", PLAIN)
    assert writer.commit().deduplicated_bytes == len(PLAIN)
    assert store.sweep().removed == []
    assert store.open("c2").read("pages") == PLAIN


def test_packs_that_a_dead_writer_references_go_after_a_day(store, backend, clock):
    save(store, 1)
    other = Repository(backend, clock=clock, keys=KEYS)
    other.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    store.delete("c1")
    assert backend.list("packs/c1/")
    clock.advance(locks.INTENT_FRESH_SECONDS + 1)
    assert store.sweep().removed == ["c1", "c2"]
    assert backend.objects == {}


def test_packs_kept_for_a_capture_that_is_called_off_go_with_it(store, backend):
    save(store, 1)
    writer = store.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    store.delete("c1")
    writer.abort()
    assert backend.objects == {}


@pytest.mark.parametrize("swept_meanwhile", [False, True])
def test_packs_kept_for_a_capture_that_did_not_need_them_go_with_the_next_delete(
    backend, clock, swept_meanwhile
):
    class DeletesBehindTheIntent(Around):
        def publish(self, name, data):
            self.inner.publish(name, data)
            if name == "writing/c2":
                store.delete("c1")

    store = Repository(DeletesBehindTheIntent(backend), clock=clock, keys=KEYS)
    save(store, 1)
    writer = store.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    if swept_meanwhile:  # its intent still names them
        store.delete("c0")
    writer.add("pages", PLAIN)
    assert writer.commit().deduplicated_bytes == 0
    store.delete("c2")
    assert backend.objects == {}


def test_writer_whose_packs_were_taken_does_not_commit(store, backend, clock):
    save(store, 1)
    other = Repository(backend, clock=clock, keys=KEYS)
    writer = other.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    writer.add("pages", PLAIN)
    backend.delete("writing/c2")
    store.delete("c1")
    with pytest.raises(StoreError):
        writer.commit()
    assert store.list() == []


def test_writer_that_took_half_a_day_does_not_commit(store, clock):
    writer = store.begin(id="c1", key=SessionKey("a"), incarnation="i", generation=1)
    writer.add("pages", PLAIN)
    clock.advance(13 * 3600)
    with pytest.raises(StoreError, match="too long"):
        writer.commit()


def test_sweep_while_a_manifest_is_unreadable_keeps_what_it_may_need(
    store, backend, caplog
):
    save(store, 1)
    save(store, 2)
    manifest = bytes(backend.objects["manifests/c2"])
    fresh = Repository(backend, clock=ManualClock(), keys=KEYS)
    backend.objects["manifests/c2"][40] ^= 1
    fresh.delete("c1")
    assert fresh.sweep().removed == []
    assert "cannot be read" in caplog.text
    backend.objects["manifests/c2"][:] = manifest
    assert (
        Repository(backend, clock=ManualClock(), keys=KEYS).open("c2").read("pages")
        == PLAIN
    )


def test_intents_of_nonsense_are_ignored(store, backend):
    other = b'{"checkpoint": "c9", "begun": 1, "references": []}'
    nonsense = (b"", b"\xff", b"[" * 9999, b'{"checkpoint": "w3"}', other)
    for number, data in enumerate(nonsense):
        backend.publish(f"writing/w{number}", data)
    save(store, 1)
    assert store.sweep().removed == ["w0", "w1", "w2", "w3", "w4"]


def test_sweeps_beside_writers_and_deletes_take_nothing_that_is_needed(clock):
    """Two processes: one saves and deletes, the other sweeps all along."""
    backend = MemoryBackend()
    store = Repository(backend, clock=clock, keys=KEYS, pack_bytes=1 << 19)
    sweeper = Repository(backend, clock=clock, keys=KEYS)
    ended, errors = threading.Event(), []

    def sweep():
        while not ended.is_set():
            try:
                sweeper.sweep()
                sweeper.delete("none")
            except ReclaimError as error:
                errors.append(error)

    thread = threading.Thread(target=sweep)
    thread.start()
    plain = PLAIN[: 300 * PAGE]
    for number in range(1, 15):
        save(store, number, plain)
        if number > 1:
            sweeper.delete(f"c{number - 1}")
        assert store.open(f"c{number}").read("pages") == plain
        plain = changed(plain, 0.2, seed=number)
    ended.set()
    thread.join(30)
    assert errors == []
    assert store.open("c14").verify() == []


# --- keys ----------------------------------------------------------------------------


def first_pack(backend, checkpoint="c1"):
    return backend.list(f"packs/{checkpoint}/")[0].name


@pytest.mark.parametrize("fault", ["lost", "cut", "unreadable"])
def test_pack_that_cannot_be_read_is_not_built_upon(backend, store, fault, monkeypatch):
    """It goes while the next generation is being written: its chunks are stored."""
    save(store, 1)
    writer = store.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)
    name = first_pack(backend)
    if fault == "lost":
        backend.delete(name)
    elif fault == "cut":
        del backend.objects[name][100_000:]
    else:
        read = backend.read

        def fail(asked, offset, length):
            if asked == name:
                raise StoreError(Reason.STORE_FAILED, why="input/output error")
            return read(asked, offset, length)

        monkeypatch.setattr(backend, "read", fail)
    writer.add("pages", PLAIN)
    try:
        writer.commit()
    except StoreError:
        # Some of its blocks were whole and are referenced, and now it is cut.
        assert fault == "cut"
        assert not store.exists("c2")
        return
    assert store.open("c2").read("pages") == PLAIN
    assert name not in {entry.name for entry in store.objects("c2")}


def test_store_that_does_not_answer_is_no_damage(backend, store, monkeypatch):
    save(store, 1)
    writer = store.begin(id="c2", key=SessionKey("ada"), incarnation="i", generation=2)

    def away(*_):
        raise Unavailable("it does not answer")

    monkeypatch.setattr(backend, "read", away)
    with pytest.raises(Unavailable):
        writer.add("pages", PLAIN)


def test_block_is_opened_once_however_often_it_is_referenced(backend, store):
    save(store, 1)
    read = backend.read
    asked = []

    def count(name, offset, length):
        asked.append((name, length))
        return read(name, offset, length)

    backend.read = count
    save(store, 2, PLAIN * 3)
    bytes_read = sum(count for name, count in asked if name.startswith("packs/c1/0"))
    assert len(PLAIN) <= bytes_read < 1.5 * len(PLAIN)


def test_damage_of_an_older_origin_is_found_generations_later(backend, store):
    for number in range(1, 4):
        save(store, number)
    store.delete("c1")
    turn_bit(backend, first_pack(backend), 1000)
    save(store, 4)
    assert store.open("c3").verify()
    assert store.open("c4").verify() == []
    assert store.open("c4").read("pages") == PLAIN


def test_store_that_is_far_away_is_asked_for_some_blocks_at_once(backend, store):
    """Whoever takes turns at a file never goes on where it was."""
    save(store, 1)
    read = backend.read
    asked = []

    def count(name, offset, length):
        asked.append(name)
        return read(name, offset, length)

    backend.read = count
    backend.spec = lambda: {"kind": "objects"}
    save(store, 2)
    packs = len(backend.list("packs/c1/")) - 1
    assert sum(name.startswith("packs/c1/0") for name in asked) == packs > 3
    backend.read = read
    turn_bit(backend, first_pack(backend), 300_000)
    assert 200_000 < save(store, 3).stored_bytes < 400_000
    assert store.open("c3").read("pages") == PLAIN


@pytest.mark.parametrize("verdict", Verdict)
def test_block_that_was_not_opened_is_never_committed(verdict):
    """Whatever the pack writers report."""
    ids = np.zeros((1, 2), np.uint64)
    blocks = np.array([(0, 7, 0, PAGE + 16, 1, 1)], BLOCKS)
    base = BaseCheckpoint(
        SimpleNamespace(
            origins=["c1"],
            packs=[PackRef(0, 3, PAGE + 16)],
            pack_name=lambda pack: "packs/c1/3",
        ),
        ChunkIndex([("a", PAGE)], blocks, np.array([1], np.uint32), ids),
    )
    rows, refs = np.array([[0, 0, 1]]), np.array([-1])
    report = Report([], blocks[:0], ids[:0], rows, refs)
    found = np.array([verdict], np.uint8)
    files = [FileEntry("a", PAGE)]
    if verdict is Verdict.WHOLE:
        assert merge(files, PAGE, [report], base, found).origins == ["c1"]
        return
    with pytest.raises(StoreError, match="block 7 of packs/c1/3") as caught:
        merge(files, PAGE, [report], base, found)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
