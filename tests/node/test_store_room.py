"""A store with little room: what is refused at once, what is tried, what it leaves."""

import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.store_room import StoreNeed, StoreRoom
from tests.support.agent import running_agent, wait_for

GB = 10**9
MB = 10**6
STORE_MB = 60

#: Zeros that are in memory, and as much chance.
PROGRAM = """
import os, sys, time
zeros = bytearray({zeros})
for page in range(0, len(zeros), 4096):
    zeros[page] = 0
chance = os.urandom({chance})
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


def operation() -> Operation:
    return Operation("capture", SessionKey("ann"), "cp")


def codes(room: StoreRoom, most: int) -> list[str]:
    return [found.code for found in room.findings(StoreNeed(most))]


@pytest.fixture
def free():
    return [100 * GB]


@pytest.fixture
def room(free):
    return StoreRoom(lambda: free[0])


def test_more_memory_than_room_may_be_tried_by_one(room):
    assert codes(room, 110 * GB) == []
    room.promise(operation(), StoreNeed(110 * GB))


def test_store_without_any_room_is_refused(room, free):
    free[0] = 1000
    found = list(room.findings(StoreNeed(1)))
    assert [one.code for one in found] == ["store_full"]
    assert found[0].retryable


def test_object_store_has_no_limit(room, free):
    room.promise(operation(), StoreNeed(110 * GB))
    free[0] = None
    assert codes(room, 110 * GB) == []


def test_second_capture_must_fit_beside_the_first(room):
    first, taken = operation(), [0]
    room.promise(first, StoreNeed(110 * GB, lambda: taken[0]))
    assert codes(room, 1 * GB) == ["store_full"]
    with pytest.raises(Refused) as caught:
        room.promise(operation(), StoreNeed(1 * GB))
    assert caught.value.reason is Reason.STORE_FULL
    taken[0] = 30 * GB
    assert codes(room, 20 * GB) == []
    assert codes(room, 21 * GB) == ["store_full"]
    first.end()
    assert codes(room, 110 * GB) == []


def test_capture_that_was_refused_claims_nothing(room):
    first = operation()
    room.promise(first, StoreNeed(110 * GB))
    with pytest.raises(Refused):
        room.promise(operation(), StoreNeed(50 * GB))
    first.end()
    assert codes(room, 110 * GB) == []


@pytest.fixture
def small_agent(folder):
    store = folder / "store"
    store.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", f"size={STORE_MB}m,mode=0700", "tmpfs", str(store)]
    subprocess.run(["mount", *options], check=True)
    try:
        with running_agent(folder) as made:
            yield made
            for one in made.get("/v1/checkpoints").json():
                made.post(f"/v1/checkpoints/{one['id']}/discard")
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


@pytest.fixture
def session(places):
    def make(*, zeros: int = 0, chance: int = 0):
        program = PROGRAM.format(zeros=zeros, chance=chance)
        place = places("start", sys.executable, "-I", "-S", "-c", program, env={})
        wait_for(lambda: place.output.stat().st_size)
        return place

    return make


def test_pool_of_zeros_larger_than_the_store_is_saved(small_agent, session):
    place = session(zeros=400 * MB)
    captured = small_agent.capture(place, "cp")
    info = captured[-1]["checkpoint"]
    assert info["logical_bytes"] > 400 * MB
    assert info["stored_bytes"] < 20 * MB
