"""A disk that is full: said in words, and nothing is left behind."""

import contextlib
import os

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock


@pytest.fixture
def repository(small_disk):
    return Repository(FolderBackend(small_disk), clock=ManualClock(), keys=KEYS)


RESERVE = 150_000
BLOCK = 8192


def left(disk):
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def begin(repository, name):
    return repository.begin(id=name, key=SessionKey("u"), incarnation="i", generation=1)


def test_full_disk_while_writing_is_store_full_and_abort_makes_room(repository):
    before = repository.free_bytes()
    writer = begin(repository, "c1")
    with pytest.raises(StoreError) as caught:
        writer.add("pages.img", os.urandom(6_000_000))
    assert caught.value.reason is Reason.STORE_FULL
    assert caught.value.retryable
    assert "more needed" in caught.value.message
    assert writer.abort()
    assert repository.free_bytes() >= before - 65_536
    small = begin(repository, "c2")
    small.add("pages.img", os.urandom(1_000_000))
    small.commit()
    assert [info.id for info in repository.list()] == ["c2"]


def test_full_disk_at_commit_is_store_full_and_leaves_nothing(repository, small_disk):
    writer = begin(repository, "c1")
    writer.add("pages.img", os.urandom(1_000_000))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65_536)):
            pass
    with pytest.raises(StoreError) as caught:
        writer.commit()
    assert caught.value.reason is Reason.STORE_FULL
    assert repository.list() == []
    assert [p for p in small_disk.rglob("*") if p.is_file()] == [filler]
    filler.unlink()
    again = begin(repository, "c1")
    again.add("pages.img", b"1")
    assert again.commit().id == "c1"


def fill(writers):
    """Let them write in turns, until one is refused; the error."""
    while True:
        for writer in writers:
            try:
                writer.write(os.urandom(BLOCK))
            except StoreError as error:
                return error


def test_writers_leave_the_reserve_to_others(small_disk):
    backend = FolderBackend(small_disk, reserve=RESERVE)
    writers = [backend.create(f"packs/c/{number:08x}") for number in range(16)]
    error = fill(writers)
    assert error.reason is Reason.STORE_FULL
    assert RESERVE <= left(small_disk) < RESERVE + 16 * BLOCK
    assert backend.free_bytes() == left(small_disk) - RESERVE
    for writer in writers:
        writer.abandon()


def test_what_frees_room_may_use_the_reserve(small_disk):
    backend = FolderBackend(small_disk, reserve=RESERVE)
    pack = backend.create("packs/c/00000000")
    fill([pack])
    backend.publish("removing/c", bytes(BLOCK * 2))
    backend.replace("removing/c", bytes(BLOCK * 2))
    assert left(small_disk) < RESERVE
    pack.abandon()


def test_reserve_is_never_more_than_a_twentieth(small_disk):
    most = FolderBackend(small_disk).free_bytes()
    kept = most - FolderBackend(small_disk, reserve=10**12).free_bytes()
    assert 0 < kept <= 4 * 2**20 // 20


def test_file_system_that_does_not_tell_its_size_has_no_limit(tmp_path, monkeypatch):
    told = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    backend = FolderBackend(tmp_path / "store", reserve=RESERVE)
    assert backend.free_bytes() is None
    writer = backend.create("packs/c/00000000")
    writer.write(bytes(BLOCK))
    writer.finish()
    assert backend.length("packs/c/00000000") == BLOCK
