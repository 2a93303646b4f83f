"""What every store must do, run on the real one and on the simulation's."""

import random
from pathlib import Path
from typing import Any

import pytest

from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import Aside, GoneOn, Mark, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.store import RepositoryInMemory, StoreInMemory
from simulation.loop import Program
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock

ANN = SessionKey("ann")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["real", "simulated"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Any:
    if request.param == "real":
        return Repository(FolderBackend(tmp_path / "store"), clock=clock, keys=KEYS)
    told = {"committed": lambda *_: None, "deleted": lambda *_: None}
    in_memory = StoreInMemory(random.Random(1), **told)
    return RepositoryInMemory(in_memory, Program("agent"), clock)


def begin(store: Any, checkpoint: str = "c1", **more: Any) -> Any:
    facts = {"key": ANN, "incarnation": "i1", "generation": 1, **more}
    return store.begin(id=checkpoint, **facts)


def saved(store: Any, checkpoint: str = "c1", **more: Any) -> Any:
    writer = begin(store, checkpoint, **more)
    writer.add("memory", b"what it knows")
    return writer.commit()


def refusal(*work: Any) -> ReclaimError:
    with pytest.raises(ReclaimError) as caught:
        work[0](*work[1:])
    return caught.value


def test_checkpoint_is_not_there_before_its_commit_and_whole_after_it(store, clock):
    writer = begin(store, generation=3, parent="c0")
    with writer.file("dump/pages") as file:
        file.write(b"12345")
        file.write(b"678")
    writer.add("world", b"{}")
    assert not store.exists("c1")
    assert store.list() == []
    assert refusal(store.open, "c1").reason is Reason.CHECKPOINT_MISSING

    clock.advance(5)
    info = writer.commit(frozen_seconds=1.5)

    assert (info.id, info.key, info.incarnation) == ("c1", ANN, "i1")
    assert (info.generation, info.parent) == (3, "c0")
    assert (info.logical_bytes, info.frozen_seconds) == (10, 1.5)
    assert info.created == clock.now()
    assert store.exists("c1")
    assert store.info("c1") == info
    assert store.list() == [info]
    reader = store.open("c1")
    assert reader.info == info
    assert sorted(reader.names()) == ["dump/pages", "world"]
    assert reader.size("dump/pages") == 8
    assert b"".join(bytes(part) for part in reader.stream("dump/pages")) == b"12345678"
    assert bytes(reader.read("world")) == b"{}"
    assert "world" in reader
    assert "other" not in reader


def test_checkpoints_are_listed_in_the_order_of_their_commits(store, clock):
    for checkpoint in ("c3", "c1", "c2"):
        saved(store, checkpoint)
        clock.advance(1)
    assert [info.id for info in store.list()] == ["c3", "c1", "c2"]


def test_commit_repeated_says_the_same(store):
    writer = begin(store)
    assert writer.commit() == writer.commit()


def test_committed_checkpoint_takes_no_more_files(store):
    writer = begin(store)
    writer.commit()
    assert refusal(writer.add, "late", b"").reason is Reason.CHECKPOINT_EXISTS
    assert list(store.open("c1").names()) == []


def test_aborted_checkpoint_never_exists_and_its_name_may_be_used_again(store):
    writer = begin(store)
    writer.add("memory", b"half of it")
    assert writer.abort()
    assert writer.abort(), "once more changes nothing"
    assert refusal(writer.commit).reason is Reason.CANCELLED
    assert refusal(writer.add, "late", b"").reason is Reason.CANCELLED
    assert not store.exists("c1")
    saved(store)


def test_abort_after_the_commit_says_that_it_stands(store):
    writer = begin(store)
    writer.commit()
    assert not writer.abort()
    assert store.exists("c1")


def test_file_that_was_not_written_to_its_end_bars_the_commit(store):
    writer = begin(store)

    def write_half() -> None:
        with writer.file("memory") as file:
            file.write(b"half of it")
            raise OSError("the process is gone")

    with pytest.raises(OSError, match="gone"):
        write_half()
    assert isinstance(refusal(writer.commit), StoreError)
    assert not store.exists("c1")


def test_file_of_a_name_that_is_there_or_may_not_be_is_refused(store):
    writer = begin(store)
    writer.add("memory", b"")
    for name in ("memory", "../memory", ""):
        assert isinstance(refusal(writer.file, name), BadRequest)


def test_name_of_a_checkpoint_is_used_once(store):
    writer = begin(store)
    second = refusal(lambda: begin(store))
    assert isinstance(second, Refused)
    assert second.reason is Reason.OPERATION_IN_FLIGHT
    writer.commit()
    assert refusal(lambda: begin(store)).reason is Reason.CHECKPOINT_EXISTS


def test_delete_removes_it_and_is_idempotent(store):
    saved(store)
    saved(store, "c2", generation=2)
    store.delete("c1")
    store.delete("c1")
    store.delete("never-there")
    assert [info.id for info in store.list()] == ["c2"]
    assert bytes(store.open("c2").read("memory")) == b"what it knows"
    missing = refusal(store.info, "c1")
    assert isinstance(missing, NotFound)
    assert missing.reason is Reason.CHECKPOINT_MISSING


def test_delete_of_what_is_being_written_is_refused(store):
    writer = begin(store)
    assert refusal(store.delete, "c1").reason is Reason.OPERATION_IN_FLIGHT
    writer.commit()
    store.delete("c1")
    assert not store.exists("c1")


def test_sweep_touches_neither_what_stands_nor_what_is_written(store):
    saved(store)
    writer = begin(store, "c2", generation=2)
    writer.add("memory", b"more")
    store.sweep()
    writer.commit()
    store.sweep()
    assert [info.id for info in store.list()] == ["c1", "c2"]
    assert bytes(store.open("c2").read("memory")) == b"more"


def test_file_that_a_checkpoint_lacks_is_an_error_of_the_store(store):
    saved(store)
    reader = store.open("c1")
    for look in (reader.size, reader.read):
        assert isinstance(refusal(look, "other"), StoreError)


def test_name_of_a_save_point_is_listed(store):
    writer = begin(store)
    writer.add("memory", b"what it knows")
    committed = writer.commit(goes_on=True, name="before Monday")
    assert [info.name for info in [committed, *store.list()]] == ["before Monday"] * 2


def test_of_two_words_about_a_checkpoint_the_higher_one_counts(store):
    saved(store)
    left = Mark(aside=Aside(until=5.0))
    back = Mark(gone_on=GoneOn(incarnation="i2", since=5.0))
    for _ in range(2):
        store.mark("c1", left, MarkNumber(2, 2))
    assert refusal(store.mark, "c1", Mark(), MarkNumber(2, 1)).facts["obeyed"] == 2
    assert [(info.mark, info.word) for info in store.list()] == [(left, (2, 2))]
    store.mark("c1", back, MarkNumber(3, 0))
    assert [info.mark for info in store.list()] == [back]
    store.mark("c1", Mark(), MarkNumber(3, 1))
    assert [info.mark for info in store.list()] == [Mark()]
    missing = refusal(store.mark, "c2", Mark(), MarkNumber(9, 9))
    assert missing.reason is Reason.CHECKPOINT_MISSING
