"""What a failure of CRIU's says of the next attempt."""

import os
import signal
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed, RolledBack
from tests.checkpoint.conftest import Image

#: A process that shares its memory with its parent: CRIU has no image for that.
SHARES_MEMORY = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
stack = mmap.mmap(-1, 1 << 20)
top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + (1 << 20) - 64
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
assert libc.clone(pause, ctypes.c_void_p(top), 0x100 | 17, None) > 0
"""
#: 1 ms of each 10 on a processor: CRIU saves that, and cannot give it back.
HAS_DEADLINE = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
wish = struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 1000000, 10000000, 10000000)
assert libc.syscall(314, 0, wish, 0) == 0
"""


def test_capture_that_can_never_succeed_does_not_ask_for_another(places, engine):
    world = places.world()
    world(SHARES_MEMORY)
    with pytest.raises(RolledBack, match="capture_failed") as caught:
        engine.dump(world.place, engine.image().sink)
    assert not caught.value.retryable


def test_capture_that_was_called_off_by_its_store_may_be_tried_again(places, engine):
    world = places.world()

    def sink(name):
        raise OSError(5, "no store")

    with pytest.raises(RolledBack, match="suspended: no store") as caught:
        engine.dump(world.place, sink)
    assert caught.value.retryable


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86")
def test_return_that_can_never_succeed_does_not_ask_for_another(places, engine):
    world = places.world()
    world(HAS_DEADLINE)
    saved = engine.save(world.place)
    with pytest.raises(RestoreFailed, match="Inconsistent sched params") as caught:
        saved.restore(places.hold())
    assert not caught.value.retryable


def test_end_of_criu_in_the_middle_is_told_as_such(places, engine):
    """It was ``internal``: the stream that breaks off then is not the cause."""
    world = places.world()
    saved = engine.save(world.place)
    helpers = []

    class Deadly(Image):
        def stream(self, name, skip=()):
            if name.startswith("pages-") and helpers:
                for pid in children(helpers.pop()):
                    os.kill(pid, signal.SIGKILL)
            return super().stream(name, skip)

    saved.image = Deadly(saved.image)
    with pytest.raises(RestoreFailed, match="restore_failed") as caught:
        saved.restore(places.hold(), prepare=helpers.append)
    assert "CRIU was ended by SIGKILL" in caught.value.message
    assert caught.value.retryable


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
