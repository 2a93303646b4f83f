"""What CRIU believes because it is root: files and memory that a session can write.

A container's own root (``sudo`` in an image) has no rights outside, but writes where
CRIU looks; a login of the same user beside the session writes into its memory.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.engine import criu as criu_module
from jupyterhub_gpu_reclaim.engine.restore import proceed
from jupyterhub_gpu_reclaim.engine.thaw import thaw


def in_mounts_of(place, command: str) -> str:
    """What that prints, run in the mount namespace of a place."""
    init = str(place.init_pid)
    done = subprocess.run(
        ["nsenter", "-t", init, "-m", "sh", "-c", command],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


OWN_RUN = "mount -t tmpfs -o mode=755 none /run"
#: Long enough for any version, with the marks of none.
STALE = "head -c 65536 /dev/zero > /run/criu.kdat"


def test_criu_neither_reads_nor_writes_in_the_sessions_run(places, engine):
    """CRIU calls an address that stands there as root, in the middle of a restore."""
    world = places.world()
    in_mounts_of(world.place, f"{OWN_RUN} && {STALE}")
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    # One with the wrong marks would have been removed, and made again.
    assert in_mounts_of(world.place, "stat -c %n-%s /run/*") == "/run/criu.kdat-65536\n"
    assert "kdat cache" not in result.log
    world.place.kill()
    place = places.hold()
    in_mounts_of(place, f"{OWN_RUN} && {STALE}")
    restored = engine.restore(place, image, result)
    assert in_mounts_of(place, "stat -c %n-%s /run/*") == "/run/criu.kdat-65536\n"
    assert "kdat cache" not in restored.log
    proceed(restored, result.stopped)
    assert world.at(place)("1 + 1") == 2


def test_criu_that_we_run_has_no_cache_where_a_session_writes(criu):
    data = criu.binary.read_bytes()
    made = criu_module.forgetful(data)
    assert b"criu.kdat" not in made
    assert len(made) == len(data)
    assert criu_module.forgetful(made) == made
