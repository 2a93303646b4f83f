"""The copy of a save point takes no more memory than there was granted."""

import os
from contextlib import contextmanager

import numpy as np
import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.staging import PIECE, Staging
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory


class Machine:
    """Grants memory until there is none; counts what was taken."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.granted = 0

    def grant(self, count, take):
        if count > self.free:
            raise Refused(Reason.NOT_ENOUGH_MEMORY, where="here", needed="", free="")
        self.free -= count
        self.granted += count
        return take()


class StoreInMemory:
    def __init__(self) -> None:
        self.files = {}

    @contextmanager
    def file(self, name):
        self.files[name] = b""
        self._name = name
        yield self

    def write(self, data):
        self.files[self._name] += bytes(data)


def written(staged, data: bytes) -> None:
    for at in range(0, len(data), 1 << 20):
        staged.write(data[at : at + (1 << 20)])


def read(staged, data: bytes) -> None:
    plain = np.frombuffer(data, np.uint8)
    areas = np.array([(plain.ctypes.data, len(data))], np.int64)[: len(data)]
    staged.take_memory(ProcessMemory(os.getpid(), areas))


@pytest.mark.parametrize("way", [written, read])
def test_what_is_beyond_the_memory_that_is_there_is_refused(way):
    machine = Machine(free=0)
    staging = Staging(2 * PIECE, machine.grant)
    with pytest.raises(Refused), staging.file("pages") as file:
        way(file, bytes(4 * PIECE))
    assert staging.logical_bytes <= 3 * PIECE
    assert not machine.granted


@pytest.mark.parametrize("length", [0, 1, PIECE, 5 * PIECE + 1])
@pytest.mark.parametrize("way", [written, read])
def test_what_is_granted_is_kept_whole(way, length):
    machine, store = Machine(free=1 << 30), StoreInMemory()
    staging = Staging(2 * PIECE, machine.grant)
    data = os.urandom(length)
    with staging.file("pages") as file:
        way(file, data)
    staging.deliver(store.file, Cancel())
    assert store.files == {"pages": data}
    assert bool(machine.granted) == (length > 2 * PIECE)
