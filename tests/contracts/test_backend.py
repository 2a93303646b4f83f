"""What every backend must do, run on every backend."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    Backend,
    Entry,
    ObjectExists,
    ObjectMissing,
)
from jupyterhub_gpu_reclaim.store.backends.address import open_backend


def write(backend: Backend, name: str, *parts: bytes) -> None:
    writer = backend.create(name)
    for part in parts:
        writer.write(part)
    writer.finish()
    writer.abandon()


def test_create_of_parts_reads_back_as_one(backend):
    write(backend, "packs/a/0", b"one", b"", b"two")
    assert backend.read("packs/a/0", 0, 100) == b"onetwo"
    assert backend.length("packs/a/0") == 6


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_write_of_any_buffer_kind_takes_all(backend, kind):
    write(backend, "packs/a/0", kind(b"abc"))
    assert backend.read("packs/a/0", 0, 3) == b"abc"


def test_write_of_reused_buffer_keeps_what_was_there(backend):
    buffer = bytearray(b"first")
    writer = backend.create("packs/a/0")
    writer.write(buffer)
    buffer[:] = b"other"
    writer.finish()
    assert backend.read("packs/a/0", 0, 5) == b"first"


def test_object_is_not_seen_before_it_is_finished(backend):
    writer = backend.create("packs/a/0")
    writer.write(b"half")
    assert backend.list("packs/") == []
    with pytest.raises(ObjectMissing):
        backend.length("packs/a/0")
    writer.finish()
    assert backend.list("packs/") == [Entry("packs/a/0", 4)]
    assert backend.list("tmp/") == []


def test_create_of_existing_name_is_refused(backend):
    write(backend, "packs/a/0", b"x")
    with pytest.raises(ObjectExists):
        backend.create("packs/a/0")
    assert backend.read("packs/a/0", 0, 9) == b"x"


def test_publish_of_existing_name_is_refused(backend):
    backend.publish("manifests/a.json", b"old")
    with pytest.raises(ObjectExists) as caught:
        backend.publish("manifests/a.json", b"new")
    assert caught.value.reason is Reason.STORE_FAILED
    assert backend.read("manifests/a.json", 0, 9) == b"old"


def test_publish_by_many_at_once_stands_once(backend):
    def won(number: int) -> bool:
        try:
            backend.publish("manifests/a.json", b"%d" % number * 50_000)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        outcomes = [*threads.map(won, range(4))]
    assert outcomes.count(True) == 1
    data = backend.read("manifests/a.json", 0, 100_000)
    assert data == b"%d" % outcomes.index(True) * 50_000


def test_replace_of_what_stands_takes_its_place(backend):
    backend.publish("manifests/a.json", b"old one")
    backend.replace("manifests/a.json", b"new")
    assert backend.read("manifests/a.json", 0, 9) == b"new"
    assert backend.list("tmp/") == []


def test_replace_of_nothing_is_object_missing(backend):
    with pytest.raises(ObjectMissing):
        backend.replace("manifests/a.json", b"new")
    assert backend.list("manifests/") == []


@pytest.mark.parametrize(
    ("offset", "length", "found"),
    [(0, 4, b"0123"), (3, 4, b"3456"), (8, 4, b"89"), (10, 4, b""), (50, 1, b"")],
)
def test_read_of_range_ends_at_the_end(backend, offset, length, found):
    write(backend, "packs/a/0", b"0123456789")
    assert backend.read("packs/a/0", offset, length) == found
    buffer = bytearray(b"......")
    view = memoryview(buffer)[:length]
    assert backend.read_into("packs/a/0", offset, view) == len(found)
    assert bytes(buffer) == found + b"......"[len(found) :]


def test_missing_object_is_object_missing(backend):
    with pytest.raises(ObjectMissing):
        backend.read("packs/a/0", 0, 1)
    with pytest.raises(ObjectMissing):
        backend.read_into("packs/a/0", 0, memoryview(bytearray(1)))
    with pytest.raises(ObjectMissing):
        backend.length("manifests/a.json")


def test_list_of_prefix_is_sorted_and_confined(backend):
    for name in ("packs/b/0", "packs/a/1", "packs/a/0", "packs/ab/0"):
        write(backend, name, b"xy")
    assert backend.list("packs/a/") == [Entry("packs/a/0", 2), Entry("packs/a/1", 2)]
    assert [entry.name for entry in backend.list("packs/")] == [
        "packs/a/0",
        "packs/a/1",
        "packs/ab/0",
        "packs/b/0",
    ]


def test_delete_twice_is_idempotent(backend):
    write(backend, "packs/a/0", b"x")
    backend.delete("packs/a/0")
    backend.delete("packs/a/0")
    assert backend.list("packs/") == []
    write(backend, "packs/a/0", b"again")
    assert backend.read("packs/a/0", 0, 9) == b"again"


def test_delete_under_a_writer_does_not_break_it(backend):
    writer = backend.create("packs/a/0")
    backend.delete("packs/a/0")
    writer.write(b"late")
    writer.abandon()
    assert backend.list("packs/") == []


def test_writers_of_several_threads_do_not_mix(backend):
    def fill(number: int) -> None:
        write(backend, f"packs/a/{number}", *[bytes([number]) * 1000] * 50)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill, range(8)))
    for number in range(8):
        data = backend.read(f"packs/a/{number}", 0, 100_000)
        assert data == bytes([number]) * 50_000


def test_room_is_known_or_none(backend):
    free = backend.free_bytes()
    assert free is None or free > 0


def test_spec_opens_the_same_elsewhere(backend):
    write(backend, "packs/a/0", b"x")
    spec = backend.spec()
    if spec["kind"] == "memory":
        return  # in this process only
    assert open_backend(spec).read("packs/a/0", 0, 9) == b"x"


def test_large_object_of_odd_writes_reads_back_anywhere(backend):
    data = os.urandom(12 * 1024 * 1024 + 5)
    parts = [data[at : at + 1_000_003] for at in range(0, len(data), 1_000_003)]
    write(backend, "packs/a/0", *parts)
    assert backend.length("packs/a/0") == len(data)
    for offset in (0, 5 * 1024 * 1024 - 3, len(data) - 10):
        assert backend.read("packs/a/0", offset, 20) == data[offset : offset + 20]
    buffer = bytearray(len(data))
    assert backend.read_into("packs/a/0", 0, memoryview(buffer)) == len(data)
    assert buffer == data


def test_large_object_that_is_abandoned_leaves_at_most_remains(backend):
    writer = backend.create("packs/a/0")
    writer.write(bytes(11 * 1024 * 1024))
    writer.abandon()
    writer.abandon()
    backend.delete("packs/a/0")
    assert backend.list("packs/") == []
