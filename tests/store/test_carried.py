"""Files that are taken over from the last generation without being read."""

import os

import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest, RolledBack, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.store.test_generations import PAGE, PLAIN, first_pack, save
from tests.support.faulty_backend import turn_bit


def seen(writer, *names):
    """Those of the files that are whole."""
    return writer.see_whole(names, lambda: None)


def begin(store, number, user="ada"):
    return store.begin(
        id=f"c{number}", key=SessionKey(user), incarnation="i", generation=number
    )


@pytest.mark.parametrize("length", [0, 1, PAGE, 70 * PAGE + 17])
def test_file_under_another_name_beside_new_ones(store, length):
    # Not zeros: those would not be stored.
    taken, zeros = (b"x" + os.urandom(length))[:length], bytes(20 * PAGE)
    save(store, 1, one=taken, zeros=zeros)
    writer = begin(store, 2)
    assert writer.base == "c1"
    writer.add("new", PLAIN[: 3 * PAGE])
    assert seen(writer, "one", "zeros", "others") == {"one", "zeros"}
    assert writer.carry("two", "one") == length
    assert writer.carry("zeros", "zeros") == len(zeros)
    info = writer.commit()
    assert info.logical_bytes == length + len(zeros) + 3 * PAGE
    assert info.deduplicated_bytes == -(-length // PAGE) * PAGE + 3 * PAGE
    assert info.stored_bytes < 5000
    assert store.verify("c2") == []
    store.delete("c1")
    there = store.open("c2")
    assert sorted(there.names()) == ["new", "two", "zeros"]
    assert there.read("two") == taken
    assert there.read("zeros") == zeros
    assert there.read("new") == PLAIN[: 3 * PAGE]


def test_each_of_its_blocks_is_opened_before(backend, store):
    save(store, 1)
    read, asked = backend.read, []
    backend.read = lambda name, at, count: (
        asked.append((name, count)),
        read(name, at, count),
    )[1]
    writer = begin(store, 2)
    assert seen(writer, "pages") == {"pages"}
    opened = sum(count for name, count in asked if name.startswith("packs/c1/0"))
    assert opened >= len(PLAIN)
    del asked[:]
    writer.carry("pages", "pages")
    writer.commit()
    assert not [name for name, _ in asked if name.startswith("packs/c1/0")]
    assert store.open("c2").read("pages") == PLAIN


def test_looking_is_called_off(store):
    save(store, 1)
    writer = begin(store, 2)

    def called_off():
        raise RolledBack(Reason.CANCELLED)

    with pytest.raises(RolledBack):
        writer.see_whole(["pages"], called_off)
    writer.abort()


def test_third_generation_is_built_upon_what_was_taken_over(store):
    save(store, 1)
    writer = begin(store, 2)
    seen(writer, "pages")
    writer.carry("pages", "pages")
    writer.commit()
    assert save(store, 3).stored_bytes < 100_000
    store.delete("c1")
    store.delete("c2")
    assert store.open("c3").read("pages") == PLAIN


def test_what_is_damaged_is_not_whole(backend, store):
    save(store, 1, more=os.urandom(300 * PAGE))
    turn_bit(backend, first_pack(backend), 1000)
    writer = begin(store, 2)
    assert seen(writer, "pages", "more") == {"more"}
    writer.add("pages", PLAIN)
    writer.carry("more", "more")
    writer.commit()
    assert store.verify("c2") == []
    assert store.open("c2").read("pages") == PLAIN


def test_what_was_not_seen_whole_is_not_taken_over(store):
    save(store, 1)
    writer = begin(store, 2)
    writer.carry("pages", "pages")
    with pytest.raises(StoreError) as caught:
        writer.commit()
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert [info.id for info in store.list()] == ["c1"]


def test_what_is_not_there_cannot_be_taken_over(store):
    first = begin(store, 1)
    assert first.base == ""
    with pytest.raises(BadRequest):
        first.carry("pages", "pages")
    first.abort()
    save(store, 1)
    writer = begin(store, 2)
    with pytest.raises(BadRequest):
        writer.carry("pages", "others")
    with pytest.raises(BadRequest):
        writer.carry("../pages", "pages")
    writer.carry("pages", "pages")
    with pytest.raises(BadRequest):
        writer.carry("pages", "pages")
    other = begin(store, 3, user="eve")
    assert other.base == ""
    writer.abort()
    other.abort()
