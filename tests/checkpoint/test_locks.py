"""Locks on files that somebody else has taken by the time a session comes back."""

import fcntl
import os
import struct

import pytest

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason


def lock_all(fd: int) -> None:
    """Lock the file as a whole (flock), at once or not at all."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_range(fd: int) -> None:
    """Lock bytes 3 and 4 for the open file, at once or not at all."""
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 3, 2, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)


#: How the session locks, and how another program.
WAYS = {
    "flock": ("fcntl.flock(fd, 2)", lock_all),
    "shared": ("fcntl.flock(fd, 1)", lock_all),
    "posix": ("fcntl.lockf(fd, 2, 3, 2)", lock_range),
    "ofd": ("fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', 1, 0, 3, 2, 0))", lock_range),
}


@pytest.mark.parametrize("way", WAYS)
def test_return_to_a_lock_that_another_has_is_refused_until_it_is_free(
    places, engine, tmp_path, way
):
    name = tmp_path / "locked"
    name.write_text("contents")
    own, others = WAYS[way]
    world = places.world()
    world("import fcntl, os, struct")
    world(f"fd = os.open({str(name)!r}, os.O_RDWR); {own}")
    saved = engine.save(world.place, stopped=())

    other = os.open(name, os.O_RDWR)
    try:
        others(other)
        with pytest.raises(RestoreFailed, match="is locked by another") as failed:
            saved.restore(places.hold())
        assert failed.value.reason is Reason.FILE_LOCKED
    finally:
        os.close(other)

    place = saved.back(places.hold())
    assert world.at(place)("os.read(fd, 8)") == b"contents"
    with name.open("r+") as later, pytest.raises(BlockingIOError):
        others(later.fileno())
