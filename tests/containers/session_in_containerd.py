"""A session moves between containers as containerd itself makes them.

Run by ``test_containerd``.
"""

import sys

import pytest

from tests.support.agent import wait_for
from tests.support.containerd import tasks as make_tasks

tasks = pytest.fixture(make_tasks)

#: Counts in a file of the root; remembers one in memory, and one that is no more.
PROGRAM = """
import os, time
os.remove("/etc/issue")
shm = open("/dev/shm/mine", "w+"); shm.write("in memory"); shm.flush()
gone = open("/srv/gone", "w+"); gone.write("deleted "); os.remove("/srv/gone")
count = open("/srv/count", "w"); number = 0
while True:
    number += 1
    gone.seek(0); shm.seek(0)
    count.seek(0)
    count.write(f"{number} {gone.read()}{shm.read()} {os.path.exists('/etc/issue')}")
    count.flush()
    time.sleep(0.02)
"""


def test_session_moves_between_containers_of_containerd(agent, tasks):
    assert "cgroups_denied" not in agent.get("/readyz").text
    place = tasks("start", sys.executable, "-I", "-S", "-c", PROGRAM)
    wait_for(lambda: place.read("/srv/count"))
    for number in (1, 2):
        checkpoint = f"cp-{number}"
        captured = place.call(agent, "capture", checkpoint=checkpoint)
        assert captured[-1].get("checkpoint"), captured[-1]
        before = int(place.read("/srv/count").split()[0])
        released = place.order(agent, "release", {"checkpoint": checkpoint})
        assert released.json()["state"] == "gone"
        place.delete()

        place = tasks("hold")
        assert place.read("/etc/issue") == "hello"
        restored = place.call(agent, "restore", checkpoint=checkpoint)

        assert restored[-1].get("tree"), restored[-1]
        tree = place.seen(agent)
        assert (tree["pod"], tree["container"]) == (place.uid, place.id)
        wait_for(lambda: int(place.read("/srv/count").split()[0]) > before)  # noqa: B023
        assert place.read("/srv/count").partition(" ")[2] == "deleted in memory False"
        assert place.read("/dev/shm/mine") == "in memory"
