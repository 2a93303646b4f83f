"""A word about a checkpoint stands beside it, in every store."""

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import Aside, GoneOn, Mark, SessionKey
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.faulty_backend import Around
from tests.support.manual_clock import ManualClock

ASIDE, FOR_EVER = Aside(until=1234.5), Aside(until=None)
GONE_ON = GoneOn(incarnation="i2", since=1234.5)


class Counted(Around):
    def __init__(self, backend):
        super().__init__(backend)
        self.calls = []

    def list(self, prefix):
        self.calls.append(f"list {prefix}")
        return self.inner.list(prefix)

    def read(self, name, offset, length):
        self.calls.append(f"read {name}")
        return self.inner.read(name, offset, length)


@pytest.fixture
def store(backend):
    return opened(backend)


def opened(backend):
    return Repository(backend, clock=ManualClock(), keys=KEYS)


def saved(store, checkpoint="c1", generation=1):
    key = SessionKey("ann")
    writer = store.begin(id=checkpoint, key=key, incarnation="i", generation=generation)
    writer.add("memory", checkpoint.encode() * 1000)
    return writer.commit()


def asides(store):
    return {info.id: info.aside for info in store.list()}


def marks(backend):
    return [entry.name for entry in backend.list(layout.MARKS)]


def lay(store, aside, term=1, word=1, checkpoint="c1"):
    store.mark(checkpoint, Mark(aside=aside), MarkNumber(term, word))


def test_word_is_in_the_list_of_everybody_until_a_later_one(backend, store):
    saved(store)
    saved(store, "c2", 2)
    assert asides(store) == {"c1": None, "c2": None}
    lay(store, ASIDE)
    assert asides(store) == asides(opened(backend)) == {"c1": ASIDE, "c2": None}
    lay(store, FOR_EVER, word=2)
    assert asides(store) == {"c1": FOR_EVER, "c2": None}
    lay(store, None, term=2)
    assert asides(store) == asides(opened(backend)) == {"c1": None, "c2": None}


def test_return_is_in_the_list_until_a_later_word(backend, store):
    """As any other word: what it was left as before does not count, nor after."""
    saved(store)

    def said():
        assert store.list() == opened(backend).list()
        return store.list()[0].mark

    lay(store, ASIDE)
    store.mark("c1", Mark(gone_on=GONE_ON), MarkNumber(1, 2))
    assert said() == Mark(gone_on=GONE_ON)
    store.mark("c1", Mark(gone_on=GONE_ON), MarkNumber(1, 2))
    lay(store, FOR_EVER, word=3)
    assert said() == Mark(aside=FOR_EVER)
    with pytest.raises(Refused):
        store.mark("c1", Mark(gone_on=GONE_ON), MarkNumber(1, 2))
    store.mark("c1", Mark(), MarkNumber(1, 4))
    assert said() == Mark()
    assert len(marks(backend)) == 4


def test_list_tells_which_word_is_the_later_one(backend, store):
    saved(store)
    saved(store, "c2", 2)
    saved(store, "c3", 3)
    lay(store, ASIDE, term=2, word=7)
    lay(store, ASIDE, term=2, word=8, checkpoint="c2")
    lay(store, None, term=3, word=1)
    words = {info.id: info.word for info in opened(backend).list()}
    assert words == {"c1": (3, 1), "c2": (2, 8), "c3": (0, 0)}


def test_name_counts_in_place_of_the_manifests_and_its_word_is_the_one_before(
    backend, store
):
    key = SessionKey("ann")
    writer = store.begin(id="c1", key=key, incarnation="i", generation=1)
    writer.add("memory", b"x" * 1000)
    writer.commit(goes_on=True, name="first")
    assert [info.name for info in store.list()] == ["first"]
    store.mark("c1", Mark(name="second", adds_to=(0, 0)), MarkNumber(1, 1))
    store.mark("c1", Mark(name="third", aside=ASIDE), MarkNumber(1, 2))
    store.mark("c1", Mark(name="", aside=ASIDE, adds_to=(1, 2)), MarkNumber(1, 3))
    (info,) = opened(backend).list()
    assert (info.name, info.aside, info.word) == ("", ASIDE, (1, 2))


def test_words_of_two_agents_that_do_not_see_each_other_are_in_order(backend, store):
    """The later one is published first; the earlier one has not seen it."""
    saved(store)
    lay(store, None, word=5)
    blind = opened(Blind(backend))
    lay(blind, ASIDE, word=4)
    assert len(marks(backend)) == 2
    assert asides(opened(backend)) == {"c1": None}


class Blind(Around):
    """An object store whose lists of marks come late."""

    def list(self, prefix):
        found = self.inner.list(prefix)
        return [] if prefix.startswith(layout.MARKS) else found


def test_list_costs_one_request_more_however_many_are_aside(backend, store):
    for number in range(1, 5):
        saved(store, f"c{number}", number)
        lay(store, ASIDE, checkpoint=f"c{number}")
    counted = Counted(backend)
    again = opened(counted)
    first = again.list()
    counted.calls.clear()
    assert again.list() == first
    assert counted.calls == ["list manifests/", "list marks/"]


def test_word_goes_with_its_checkpoint(backend, store):
    saved(store)
    lay(store, ASIDE)
    store.delete("c1")
    assert marks(backend) == []


def test_word_about_what_is_not_committed_is_refused_ignored_and_swept(backend, store):
    saved(store)
    lay(store, ASIDE)
    (name,) = marks(backend)
    backend.publish(name.replace("c1", "c2"), backend.read(name, 0, 4096))
    with pytest.raises(NotFound):
        lay(store, ASIDE, checkpoint="c2")
    assert asides(store) == {"c1": ASIDE}
    assert store.sweep().removed == ["c2"]
    assert marks(backend) == [name]


def test_sweep_removes_all_words_but_the_last(backend, store):
    saved(store)
    for word, aside in enumerate([ASIDE, None, FOR_EVER]):
        lay(store, aside, word=word)
    store.sweep()
    assert marks(backend) == [layout.mark("c1", MarkNumber(1, 2))]
    assert asides(opened(backend)) == {"c1": FOR_EVER}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:8] + bytes(16) + data[24:],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"GRSMARK\x02" + data[8:],
    ],
    ids=["flipped", "other salt", "truncated", "empty", "of a newer format"],
)
def test_damaged_word_counts_as_none_is_found_and_gives_way(backend, store, spoil):
    saved(store)
    lay(store, ASIDE)
    (name,) = marks(backend)
    data = backend.read(name, 0, 4096)
    backend.delete(name)
    backend.publish(name, spoil(data))
    store = opened(backend)
    assert asides(store) == {"c1": None}
    (damage,) = store.verify("c1")
    assert (damage.checkpoint, damage.object) == ("c1", name)
    lay(store, ASIDE)
    assert asides(store) == {"c1": ASIDE}
    assert store.verify("c1") == []


def test_word_that_was_moved_is_none(backend, store):
    """To another checkpoint of the same session, or to a higher number."""
    saved(store)
    saved(store, "c2", 2)
    lay(store, ASIDE)
    lay(store, None, word=2)
    old, _ = marks(backend)
    data = backend.read(old, 0, 4096)
    backend.publish(layout.mark("c2", MarkNumber(1, 1)), data)
    replayed = layout.mark("c1", MarkNumber(9, 9))
    backend.publish(replayed, data)
    store = opened(backend)
    assert asides(store) == {"c1": None, "c2": None}
    lay(store, FOR_EVER, word=3)
    assert asides(store) == {"c1": FOR_EVER, "c2": None}
    assert replayed not in marks(backend)
