import os
import random
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS

RANDOM = os.urandom(700_001)


def files_under(root):
    return sorted(p for p in root.rglob("*") if p.is_file())


def commit_one(begin, checkpoint="c1", **contents):
    writer = begin(checkpoint)
    for name, data in (contents or {"pages.img": RANDOM}).items():
        writer.add(name, data)
    return writer.commit()


# --- writing and reading -------------------------------------------------------------


class FarBackend(MemoryBackend):
    reads = 0

    def spec(self):
        return {"kind": "objects"}

    def read_into(self, name, offset, buffer):
        self.reads += 1
        return super().read_into(name, offset, buffer)


def test_far_store_is_asked_once_for_many_blocks(clock):
    backend = FarBackend()
    repository = Repository(backend, clock=clock, keys=KEYS)
    writer = repository.begin(
        id="c1", key=SessionKey("u"), incarnation="i", generation=1
    )
    plain = os.urandom(16 << 20)
    writer.add("pages.img", plain)
    writer.commit()
    checkpoint, backend.reads = repository.open("c1"), 0
    assert b"".join(checkpoint.stream("pages.img")) == plain
    assert backend.reads <= 6
    assert checkpoint.verify() == []
    assert backend.reads <= 11


def test_writer_with_many_threads_and_odd_buffers_keeps_every_byte(root, clock):
    repository = Repository(
        FolderBackend(root), clock=clock, keys=KEYS, pack_bytes=1_000_000
    )
    writer = repository.begin(
        id="c1", key=SessionKey("u"), incarnation="i", generation=1
    )
    source = random.Random(7)
    plain = {
        f"pages-{n}.img": RANDOM[n:] * 3 + bytes(300_000) + b"ab" * 200_000
        for n in range(6)
    }
    sizes = [source.choice((1, 13, 4096, 65536, 300_000)) for _ in range(4000)]

    def fill(name, data):
        view, at = memoryview(data), 0
        with writer.file(name) as file:
            for size in sizes:
                file.write(view[at : at + size])
                at += size
            file.write(view[at:])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(fill, plain, plain.values()))
    assert writer.logical_bytes == sum(map(len, plain.values()))
    writer.commit()
    assert len(files_under(root / "packs")) > 6
    checkpoint = repository.open("c1")
    for name, data in plain.items():
        assert checkpoint.read(name) == data


def test_stream_gives_chunks_not_the_whole(repository, begin):
    commit_one(begin)
    sizes = [len(part) for part in repository.open("c1").stream("pages.img")]
    assert sizes == [262_144, 262_144, len(RANDOM) - 2 * 262_144]


def test_next_generation_of_many_copies_is_read_in_order(backend, store, monkeypatch):
    plain = os.urandom(4 << 20)
    for generation in (1, 2):
        writer = store.begin(
            id=f"c{generation}",
            key=SessionKey("u"),
            incarnation="i",
            generation=generation,
        )
        for number in range(20):  # as processes that were forked
            writer.add(f"pages-{number}.img", plain)
        writer.commit()
    checkpoint, reads = store.open("c2"), []
    read = backend.read_into
    monkeypatch.setattr(
        backend, "read_into", lambda *asked: reads.append(asked) or read(*asked)
    )
    assert checkpoint.read("pages-7.img") == plain
    assert len(reads) <= 20


def test_checkpoint_read_by_several_threads_is_right(repository, begin):
    commit_one(begin, a=RANDOM, b=RANDOM[::-1])
    checkpoint = repository.open("c1")
    with ThreadPoolExecutor(6) as threads:
        found = [*threads.map(checkpoint.read, "ab" * 3)]
    assert found == [RANDOM, RANDOM[::-1]] * 3


def test_zero_memory_is_hardly_stored(begin):
    info = commit_one(begin, pages=bytes(50_000_000))
    assert info.logical_bytes == 50_000_000
    assert info.stored_bytes < 10_000


def test_folder_and_files_are_closed_to_others(root, begin):
    commit_one(begin)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files_under(root)}
    folders = {
        stat.S_IMODE(path.stat().st_mode)
        for path in (root, *root.rglob("*"))
        if path.is_dir()
    }
    assert modes == {0o600}
    assert folders == {0o700}


# --- the commit law ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\n", "-a", "x" * 129])
def test_begin_of_dangerous_id_is_bad_request(begin, repository, name):
    with pytest.raises(BadRequest):
        begin(name)
    with pytest.raises(NotFound):
        repository.info(name)
    assert not repository.exists(name)
    repository.delete(name)


def test_abort_beside_writing_threads_leaves_nothing(root, begin):
    writer = begin()
    begun = threading.Barrier(5, timeout=30)
    ended = []

    def fill(number):
        file = writer.file(f"{number}")
        begun.wait()
        try:
            for _ in range(5000):
                file.write(RANDOM)
        except StoreError as error:
            ended.append(error.reason)

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    writer.abort()
    for thread in threads:
        thread.join(60)
    assert ended == [Reason.CANCELLED] * 4
    assert files_under(root) == []


# --- list, delete, sweep -------------------------------------------------------------


def test_list_and_info_read_each_manifest_once(clock):
    class BackendThatCounts(MemoryBackend):
        manifests = 0

        def read(self, name, offset, length):
            self.manifests += name.startswith("manifests/")
            return super().read(name, offset, length)

    backend = BackendThatCounts()
    repository = Repository(backend, clock=clock, keys=KEYS)
    for name in ("a", "b"):
        repository.begin(
            id=name, key=SessionKey("u"), incarnation="i", generation=1
        ).commit()
    first = repository.list()
    seen = backend.manifests
    assert repository.list() == first == [repository.info("a"), repository.info("b")]
    assert backend.manifests == seen
    repository.delete("a")
    assert repository.list() == first[1:]
    with pytest.raises(NotFound):
        repository.info("a")


def test_info_of_a_checkpoint_written_anew_is_the_new_one(begin, repository):
    old = commit_one(begin)
    assert repository.info("c1") == old
    repository.delete("c1")
    new = commit_one(begin, "c1", small=b"1")
    assert repository.info("c1") == new != old
    assert repository.list() == [new]


def test_info_of_a_lost_manifest_is_missing_although_it_was_read(
    begin, repository, root
):
    commit_one(begin)
    assert repository.info("c1").id == "c1"
    (root / "manifests" / "c1").unlink()
    with pytest.raises(NotFound):
        repository.info("c1")
    assert repository.list() == []


def test_list_leaves_out_a_damaged_manifest_but_exists_tells(
    begin, repository, root, caplog
):
    commit_one(begin, "good")
    commit_one(begin, "bad", pages=os.urandom(50_000))
    (root / "manifests" / "bad").write_bytes(b"{}")
    assert [info.id for info in repository.list()] == ["good"]
    assert "bad" in caplog.text
    assert repository.exists("bad")
    with pytest.raises(StoreError):
        repository.info("bad")
    repository.sweep()
    assert (root / "packs" / "bad" / "00000000").exists()
    repository.delete("bad")
    assert not repository.exists("bad")


def test_sweep_removes_only_what_nobody_writes(begin, repository, root, clock):
    commit_one(begin, "committed")
    begin("live").add("a", os.urandom(700_001))
    for name in ("dead", "fresh"):
        other = Repository(FolderBackend(root), clock=clock, keys=KEYS)
        other.begin(id=name, key=SessionKey("u"), incarnation="i", generation=1).add(
            "a", RANDOM
        )
        clock.advance(13 * 3600)
    (root / "tmp" / "manifests!half~1").write_bytes(b"{")
    result = repository.sweep()
    assert result.removed == ["dead", "half"]
    assert len(RANDOM) - 300_000 < result.freed_bytes < len(RANDOM) + 1000
    assert [p.name for p in (root / "packs").iterdir()] == ["committed"]
    left = " ".join(p.name for p in (root / "tmp").iterdir())
    assert all(name in left for name in ("fresh", "live"))
    assert "dead" not in left
    assert repository.sweep().removed == []


def test_begin_over_remains_starts_clean(begin, repository, root, clock):
    dead = Repository(FolderBackend(root), clock=clock, keys=KEYS)
    dead.begin(id="c1", key=SessionKey("u"), incarnation="i", generation=1).add(
        "old", RANDOM
    )
    commit_one(begin, "c1", new=b"1")
    assert repository.open("c1").names() == ["new"]


# --- the folder ----------------------------------------------------------------------


@pytest.mark.parametrize("inside", [(), ("lost+found",), ("manifests", "tmp")])
def test_folder_open_to_others_is_closed(tmp_path, inside):
    root = tmp_path / "store"
    for name in ("", *inside):
        (root / name).mkdir()
    root.chmod(0o755)
    FolderBackend(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_folder_of_something_else_is_refused_and_left_open(tmp_path):
    """As ``/var`` is, named by mistake."""
    (tmp_path / "tmp").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="holds something else"):
        FolderBackend(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another's folder")
def test_folder_of_another_user_is_refused(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    os.chown(root, 1234, 1234)
    with pytest.raises(StoreError, match="belongs to user id 1234"):
        FolderBackend(root)


def test_folder_that_is_a_file_is_a_sentence(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError) as caught:
        FolderBackend(tmp_path / "store")
    assert caught.value.reason is Reason.STORE_FAILED
