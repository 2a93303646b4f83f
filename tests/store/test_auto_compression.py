"""``auto``: compressed where that is the shorter way, and where room is short."""

from __future__ import annotations

import math
import os
import resource
import time

import numpy as np

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.compression import (
    Compression,
    Kind,
    pack,
    probe,
)
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend
from tests.store.doubles import KEYS

#: Shrinks to a half, slowly.
NUMBERS = (np.arange(4 << 20) * 1.5).tobytes()
BLOCK = memoryview(NUMBERS)[: 256 << 10]


def test_block_is_compressed_when_writing_costs_more():
    assert pack(BLOCK, Compression.AUTO, math.inf)[0] is Kind.LZ4
    assert pack(BLOCK, Compression.AUTO, 1e-3)[0] is Kind.LZ4
    assert pack(BLOCK, Compression.AUTO, 0.0) == (Kind.RAW, BLOCK)


def test_cost_of_writing_is_nothing_to_the_other_settings():
    assert pack(BLOCK, Compression.LZ4, 0.0)[0] is Kind.LZ4
    assert pack(BLOCK, Compression.NONE, math.inf)[0] is Kind.RAW


def test_sample_tells_what_it_saved():
    sample = probe(BLOCK)
    assert 0 < sample.saved < 4096
    assert sample.seconds > 0
    assert probe(memoryview(os.urandom(256 << 10))) is None


class SlowWriter:
    """Takes 20 MB in a second, as a slow volume does."""

    def __init__(self, writer) -> None:
        self._writer = writer

    def write(self, data) -> None:
        time.sleep(len(data) / 20e6)
        self._writer.write(data)

    def __getattr__(self, name):
        return getattr(self._writer, name)


class SlowBackend(MemoryBackend):
    def create(self, name):
        return SlowWriter(super().create(name))

    def free_bytes(self):
        return 1 << 40


class SlowToSettle(FolderBackend):
    """Takes what is written at once, and long to make it durable."""

    def create(self, name):
        writer = super().create(name)
        finish = writer.finish

        def slowly() -> None:
            time.sleep(0.3)
            finish()

        writer.finish = slowly
        return writer


def stored(backend, clock, *, expected=0, pack_bytes=64 << 20) -> float:
    """The share of the numbers that is written."""
    store = Repository(
        backend,
        clock=clock,
        keys=KEYS,
        compression=Compression.AUTO,
        pack_bytes=pack_bytes,
    )
    writer = store.begin(
        id="c1",
        key=SessionKey("u"),
        incarnation="i",
        generation=1,
        expected_bytes=expected,
    )
    writer.add("pages", NUMBERS)
    info = writer.commit()
    assert store.open("c1").read("pages") == NUMBERS
    return info.stored_bytes / len(NUMBERS)


def test_fast_store_with_room_is_spared_the_compression(clock, root):
    assert stored(FolderBackend(root), clock) > 0.8


def test_slow_store_is_sent_less(clock):
    assert stored(SlowBackend(), clock) < 0.7


def test_disk_that_does_not_keep_up_is_sent_less(clock, root):
    assert stored(SlowToSettle(root), clock, pack_bytes=1 << 20) < 0.8


def test_clock_that_stands_at_first_does_not_hide_a_slow_store(clock, monkeypatch):
    """As where the kernel counts processor time in ticks."""
    measured = resource.getrusage
    stands = iter([measured(resource.RUSAGE_THREAD)] * 16)
    monkeypatch.setattr(
        resource, "getrusage", lambda who: next(stands, None) or measured(who)
    )
    assert stored(SlowBackend(), clock) < 0.8


def test_room_that_is_short_is_spared(clock, root):
    assert stored(FolderBackend(root), clock, expected=1 << 50) < 0.7


def test_store_that_cannot_tell_its_room_is_sent_less(clock):
    assert MemoryBackend().free_bytes() is None
    assert stored(MemoryBackend(), clock) < 0.7
