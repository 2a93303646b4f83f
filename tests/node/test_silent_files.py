"""A session's file lies on a file system that stops answering: that is said at once."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux.far_files import FarWaits
from tests.support.agent import goes_on, wait_for
from tests.support.fuse import FLUSH, LOOKUP, READ, FuseServer

pytestmark = pytest.mark.shares_an_agent()

#: Seconds: five, on a busy machine. Who is not looked for waits half an hour.
IN_TIME = 30.0

#: It counts, and has a file open there; of how, the first argument tells.
HOLDER = """
import mmap, os, sys, time
path, how = sys.argv[1:]
held = os.open(path, os.O_RDONLY if how == "mapped" else os.O_RDWR)
if how == "mapped":
    held = mmap.mmap(held, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.fixture
def far():
    """Made before the session, which has a mount table of its own."""
    made = []

    def make(mute: int = 0) -> FuseServer:
        made.append(FuseServer(Path(tempfile.mkdtemp(prefix="far-")), mute))
        if not made[-1].here:
            pytest.skip("no FUSE here")
        return made[-1]

    yield make
    for each in made:
        each.end()
        each.folder.rmdir()


def holder(places, far, how="open"):
    words = (sys.executable, "-I", "-S", "-c", HOLDER, str(far.file), how)
    place = places("start", *words, env={})
    wait_for(lambda: place.output.stat().st_size)
    return place


def refused(agent, place, checkpoint="cp-1"):
    """The failure of a capture, which must come in time; the session goes on."""
    begun = time.monotonic()
    last = agent.capture(place, checkpoint)[-1]
    seconds = time.monotonic() - begun
    print(seconds, last)
    failure = last if "code" in last else last["failure"]
    assert seconds < IN_TIME
    assert goes_on(place)
    return failure


def test_a_session_with_a_file_there_is_refused_by_name_within_five_seconds(
    agent, places, far
):
    server = far()
    place = holder(places, server)
    server.stop()
    failure = refused(agent, place)
    assert failure["code"] == "files_silent", failure
    assert str(server.folder) in failure["message"]
    assert "process 302 (python" in failure["message"]
    # Nobody is sent there a second time while the first one hangs.
    server.go_on()
    agent.captured(place, "cp-2", 2)


@pytest.mark.parametrize(
    ("kind", "how"), [(LOOKUP, "open"), (FLUSH, "open"), (READ, "mapped")]
)
def test_one_that_falls_silent_while_the_session_is_saved_is_named_too(
    agent, places, far, kind, how
):
    server = far(kind)
    place = holder(places, server, how)
    server.fall_mute()  # our own question, for its status, is answered
    begun = time.monotonic()
    last = agent.capture(place, "cp-1")[-1]
    assert time.monotonic() - begun < IN_TIME
    assert last["failure"]["code"] == "files_silent", last
    assert str(server.folder) in last["failure"]["message"]
    server.end()  # what it has taken and not answered cannot be ended before
    assert goes_on(place)


def test_of_a_session_that_has_ended_nothing_is_said(places, far):
    place = holder(places, far())
    tree = place.tree.init
    there = FarWaits(tree.pid, tree.start_time)
    assert there.exist
    assert there.facts()["name"].startswith("python")
    place.kill()
    assert there.facts() == {}  # while CRIU still waits there
    assert not FarWaits(tree.pid, tree.start_time).exist
