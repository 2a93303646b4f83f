"""Parts of a store: together they are the whole, and none is read twice."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.format.layout import Subset
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.verification import Verification
from simulation.doubles.memory_backend import MemoryBackend
from tests.support.manual_clock import ManualClock


@given(st.text(min_size=1), st.integers(1, 999))
def test_every_pack_is_in_exactly_one_part(pack, of):
    parts = [Subset(number, of) for number in range(1, of + 1)]
    assert sum(part.has(pack) for part in parts) == 1


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_a_subset_is_read_as_it_is_written(number, of):
    part = Subset(min(number, of), max(number, of))
    assert Subset.parse(str(part)) == part


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_all_parts_together_read_every_block_once(parts):
    repository = Repository(
        MemoryBackend(),
        clock=ManualClock(),
        keys=KeyRing({"k": bytes(32)}),
        pack_bytes=1 << 18,
    )
    data = os.urandom(2 << 20)
    for generation in (1, 2):
        writer = repository.begin(
            id=f"c{generation}",
            key=SessionKey("ann"),
            incarnation="i",
            generation=generation,
        )
        writer.add("memory", data + os.urandom(4096 * generation))
        writer.commit(steps=[], frozen_seconds=0.0)
    passes = [Verification(repository, Subset(n + 1, parts)) for n in range(parts)]
    for one in passes:
        for checkpoint in repository.ids():
            assert one.check(checkpoint) == []
    whole = sum(one.bytes for one in passes)
    # The second generation shares its blocks with the first; without parts each is read
    # for both.
    twice = 2 if parts == 1 else 1
    assert whole == pytest.approx(twice * len(data), rel=0.02)
    assert sum(one.bytes > 0 for one in passes) > parts / 2
