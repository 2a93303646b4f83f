"""What a new generation references was read and opened during its own capture.

On every backend: a pack of the last generation is not what was written any more, and
the next generation is whole nevertheless, or is not committed.
"""

import os

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.faulty_backend import turn_bit
from tests.support.manual_clock import ManualClock

#: Several blocks, of which one is damaged.
PAGES = os.urandom(1_200_000)
PACK = "packs/c1/00000000"


@pytest.fixture
def store(backend):
    return Repository(backend, clock=ManualClock(), keys=KEYS)


def save(store, number, pages=PAGES):
    writer = store.begin(
        id=f"c{number}", key=SessionKey("ann"), incarnation="i", generation=number
    )
    writer.add("pages", pages)
    return writer.commit()


def damage(backend):
    """Behind the store's back."""
    turn_bit(backend, PACK, 300_000)


def test_pages_in_a_damaged_pack_are_stored_again(store, backend):
    save(store, 1)
    damage(backend)
    info = save(store, 2)
    assert store.verify("c2") == []
    assert store.open("c2").read("pages") == PAGES
    # Only what stood in the damaged block.
    assert 200_000 < info.stored_bytes < 400_000
    assert store.open("c2").info.deduplicated_bytes > 800_000
    store.delete("c1")
    assert save(store, 3).deduplicated_bytes > 1_190_000
    assert store.open("c3").read("pages") == PAGES


def test_damage_is_told_with_the_name_of_the_pack(store, backend, caplog):
    save(store, 1)
    damage(backend)
    save(store, 2)
    assert PACK in caplog.text


def test_whole_pack_is_referenced_and_nothing_is_stored_again(store, caplog):
    save(store, 1)
    assert save(store, 2).stored_bytes < 20_000
    assert not caplog.records
