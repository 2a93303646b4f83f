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


def test_pages_in_a_damaged_pack_are_stored_again_and_told(store, backend, caplog):
    save(store, 1)
    turn_bit(backend, PACK, 300_000)  # behind the store's back
    info = save(store, 2)
    assert PACK in caplog.text
    assert store.open("c2").verify() == []
    assert store.open("c2").read("pages") == PAGES
    # Only what stood in the damaged block.
    assert 200_000 < info.stored_bytes < 400_000
    assert store.open("c2").info.deduplicated_bytes > 800_000
    store.delete("c1")
    assert save(store, 3).deduplicated_bytes > 1_190_000
    assert store.open("c3").read("pages") == PAGES
