"""A session of an image's own user, who may do little, keeps exactly that.

By the engine alone: where root lacks CAP_SYS_RESOURCE the agent refuses such sessions,
and a shim under CRIU stands in for it (tests/checkpoint/test_other_user.py).
"""

import sys

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import cgroups
from tests.checkpoint import test_other_user as other_user
from tests.support.agent import wait_for

criu = other_user.criu

#: Of docker-stacks: jovyan, users.
UID, GID = 1000, 100
PROGRAM = """
import os, sys, time
count = open("/home/ann/count", "w"); number = 0
while True:
    number += 1
    count.seek(0); count.write(f"{number} {os.getuid()} {os.getgid()}"); count.flush()
    time.sleep(0.02)
"""


def test_cycle_of_the_images_user_keeps_what_he_may_do(pods, engine, folder):
    home = folder / "home"
    home.mkdir()
    options = {"home": home, "user": (UID, GID)}
    old = pods("start", sys.executable, "-I", "-S", "-c", PROGRAM, **options)
    count = home / "count"
    wait_for(lambda: count.exists() and count.read_text())
    had = other_user.rights(old)
    for lines in had.values():
        assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in lines
        assert "CapEff:\t0000000000000000" in lines
        assert "CapBnd:\t00000000a80425fb" in lines
        assert "NoNewPrivs:\t1" in lines
        assert "Seccomp:\t2" in lines

    image = engine.image()
    result = engine.dump(old, image.sink)
    before = int(count.read_text().split()[0])
    old.delete()
    new = pods("hold", **options)
    restored = engine.restore(
        new, image, result, prepare=lambda pid: cgroups.join(pid, new.init_pid)
    )
    proceed(restored, result.stopped)

    assert other_user.rights(new) == had
    wait_for(lambda: int(count.read_text().split()[0]) > before)
    assert count.read_text().split()[1:] == [str(UID), str(GID)]
