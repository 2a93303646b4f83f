"""Sessions with mounts below a private folder come back, with real CRIU."""

import sys

import pytest

from tests.support import agent as support

#: Keeps a file in its private folder open, and counts.
KEEPER = """
import sys, time
kept = open("/dev/shm/kept", "w+")
kept.write("mine"); kept.flush()
while open("/dev/shm/kept").read() == "mine":
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    "mounts",
    [
        "mkdir /dev/shm/data && mount -t tmpfs data /dev/shm/data &&",
        # As ``ip netns exec`` does it: nothing of /sys/fs/cgroup is to be seen.
        "mount -t sysfs sysfs /sys &&",
    ],
    ids=["a mount below", "no control groups"],
)
def test_session_comes_back_beside_mounts(agent, places, monkeypatch, mounts):
    monkeypatch.setattr(
        support, "MOUNTS", support.MOUNTS.replace("exec ", mounts + "\nexec ")
    )
    place = places("start", sys.executable, "-I", "-S", "-c", KEEPER, env={})
    support.wait_for(lambda: place.output.stat().st_size)
    agent.suspend(place, "cp")
    holding = agent.come_back(places("hold"), "cp")
    assert support.goes_on(holding)
