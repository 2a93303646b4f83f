"""The spawner's pointer: doubt never reads as nothing."""

import json

import pytest

from jupyterhub_gpu_reclaim.hub.spawner.state import Location, Pointer, PointerPhase

#: As version 1 writes it; never edit.
V1 = (
    '{"version": 1, "phase": "suspended", "incarnation": "3f2a", "checkpoint": "c7",'
    ' "token_id": 12, "port": 40123,'
    ' "place": {"pid": 4711, "start": 99, "boot": "b"}}'
)


def test_pointer_of_version_1_is_read():
    pointer = Pointer.from_state(json.loads(V1))
    assert pointer == Pointer(
        phase=PointerPhase.SUSPENDED,
        incarnation="3f2a",
        checkpoint="c7",
        token_id=12,
        port=40123,
        location=Location(pid=4711, start=99, boot="b"),
    )
    assert Pointer.from_state(json.loads(json.dumps(pointer.to_state()))) == pointer


@pytest.mark.parametrize(
    "state",
    [{"phase": "novel"}, {"port": "x"}, [1], "text", {"place": None}, {"version": 2}],
)
def test_pointer_that_cannot_be_read_is_unknown_and_precious(state):
    pointer = Pointer.from_state(state)
    assert pointer.phase is PointerPhase.UNKNOWN
    assert pointer.precious


@pytest.mark.parametrize("state", [None, {}])
def test_no_pointer_is_nothing(state):
    assert Pointer.from_state(state) == Pointer()
    assert not Pointer().precious


def test_running_session_with_an_old_checkpoint_is_not_suspended():
    pointer = Pointer(phase=PointerPhase.RUNNING, checkpoint="c1")
    assert not pointer.suspended
    assert not pointer.precious
