"""A store with little room: what is refused at once, what is tried, what it leaves."""

import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.store_room import StoreRoom
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


def codes(room: StoreRoom, incarnation: str, most: int) -> list[str]:
    return [found.code for found in room.findings(incarnation, most)]


@pytest.fixture
def free():
    return [100 * GB]


@pytest.fixture
def room(free):
    return StoreRoom(lambda: free[0])


def test_more_memory_than_room_may_be_tried_by_one(room):
    assert codes(room, "a", 110 * GB) == []
    room.claim(operation(), "a", 110 * GB)


def test_store_without_any_room_is_refused(room, free):
    free[0] = 1000
    found = list(room.findings("a", 1))
    assert [one.code for one in found] == ["store_full"]
    assert found[0].retryable


def test_object_store_has_no_limit(room, free):
    room.claim(operation(), "a", 110 * GB)
    room.ran_out("b", 50 * GB, 40 * GB)
    free[0] = None
    assert codes(room, "b", 110 * GB) == []


def test_second_capture_must_fit_beside_the_first(room):
    first, taken = operation(), [0]
    room.claim(first, "a", 110 * GB, lambda: taken[0])
    assert codes(room, "b", 1 * GB) == ["store_full"]
    with pytest.raises(Refused) as caught:
        room.claim(operation(), "b", 1 * GB)
    assert caught.value.reason is Reason.STORE_FULL
    taken[0] = 30 * GB
    assert codes(room, "b", 20 * GB) == []
    assert codes(room, "b", 21 * GB) == ["store_full"]
    first.end()
    assert codes(room, "b", 110 * GB) == []


def test_capture_that_was_refused_claims_nothing(room):
    first = operation()
    room.claim(first, "a", 110 * GB)
    with pytest.raises(Refused):
        room.claim(operation(), "b", 50 * GB)
    first.end()
    assert codes(room, "c", 110 * GB) == []


def test_session_that_ran_out_of_room_is_not_stopped_again_for_nothing(room, free):
    room.ran_out("a", 150 * GB, 99 * GB)
    assert codes(room, "a", 150 * GB) == ["store_full"]
    assert codes(room, "b", 150 * GB) == []
    assert codes(room, "a", 100 * GB) == []  # its user has freed memory
    free[0] = 120 * GB
    assert codes(room, "a", 150 * GB) == []


def test_room_that_others_had_taken_counts_again_when_it_is_back(room):
    room.ran_out("a", 50 * GB, 10 * GB)
    assert codes(room, "a", 50 * GB) == []


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
