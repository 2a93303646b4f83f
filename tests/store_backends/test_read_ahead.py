"""Reading ahead: the same bytes, with fewer requests."""

import os
import random
import threading

from jupyterhub_gpu_reclaim.store.backends.proxies import WINDOW_BYTES, ReadAhead
from simulation.doubles.memory_backend import MemoryBackend

DATA = os.urandom(3 * WINDOW_BYTES + 12_345)


class CountsReads(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.reads = 0
        for name in "ab":
            self.objects[f"packs/{name}"] = bytearray(DATA)

    def read(self, name, offset, length):
        self.reads += 1
        return super().read(name, offset, length)


def test_blocks_in_a_row_take_a_request_for_each_window():
    backend = CountsReads()
    ahead = ReadAhead(backend)
    at, step = 0, 262_160
    while at < len(DATA):
        assert ahead.read("packs/a", at, step) == DATA[at : at + step]
        at += step
    assert backend.reads <= 1 + 4 + len(DATA) // WINDOW_BYTES


def test_reads_here_and_there_ask_for_no_more_than_they_need():
    backend = CountsReads()
    ahead = ReadAhead(backend)
    for at in (5_000_000, 100, 9_000_000):
        assert ahead.read("packs/a", at, 10) == DATA[at : at + 10]
    assert backend.reads == 3


def test_any_order_of_reads_by_many_threads_gives_the_bytes_that_stand_there():
    ahead = ReadAhead(CountsReads())
    wrong = []

    def read(seed):
        chosen = random.Random(seed)
        at = 0
        for _ in range(200):
            name = chosen.choice(["packs/a", "packs/b"])
            length = chosen.choice([1, 4096, 262_160, WINDOW_BYTES])
            if chosen.random() < 0.3:
                at = chosen.randrange(len(DATA) + 10)
            buffer = memoryview(bytearray(length))
            count = ahead.read_into(name, at, buffer)
            if bytes(buffer[:count]) != DATA[at : at + length]:
                wrong.append((name, at, length))
            at += count

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
