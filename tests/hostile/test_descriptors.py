"""Who looks at CRIU from inside a session finds no way out of it.

A process of root with CAP_SYS_PTRACE can open ``/proc/<criu>/fd/N/../..``, its root and
its working folder. Looked at here from outside, which sees as much: nothing that a
process of ours holds, while it is in the session's pid namespace, may lie on a mount
that the agent sees.
"""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from tests.hostile import birth_watch

WATCH = Path(birth_watch.__file__)
#: Made by a process of the session that CRIU has stopped (compel's ``MEMFD_FNAME``).
SHARED = "/memfd:CRIUMFD (deleted)"


def strangers(place) -> list[int]:
    """Every process in the session's pid namespace that is not of its tree."""
    inside = birth_watch.namespace(place.init_pid)
    mine = {place.init_pid, *(process.pid for process in place.tree.processes)}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in mine:
            try:
                if birth_watch.namespace(int(entry.name)) == inside:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


class Looks:
    """What could be reached, each time that CRIU has asked for a file."""

    def __init__(self, place) -> None:
        self.place = place
        self.seen: set[int] = set()
        self.ways: list[str] = []
        self.files: list[str] = []
        self._lock = threading.Lock()

    def look(self, name: str) -> None:
        with self._lock:
            self.files.append(name)
            for pid in strangers(self.place):
                try:
                    ways = birth_watch.reachable(pid)
                except OSError:
                    continue
                self.seen.add(pid)
                self.ways += [f"{name}: {way}" for way in ways]


class Watched:
    """Holds the processes that the helper makes; what could be reached from each."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[str] | None = None

    def prepare(self, helper: int) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCH), str(helper)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout.readline() == "ready\n"

    def events(self) -> list[dict]:
        output, _ = self._popen.communicate(timeout=60)
        assert self._popen.returncode == 0
        return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def world(places):
    made = places.world()
    made("child = subprocess.Popen(['sleep', '1000']); data = os.urandom(4 << 20); 1")
    return made


def test_descriptors_while_criu_dumps_and_restores_lead_nowhere(world, places, engine):
    image = engine.image()
    looks = Looks(world.place)

    def sink(name):
        looks.look(name)
        return image.sink(name)

    result = engine.dump(world.place, sink)
    assert looks.seen
    assert "inventory.img" in looks.files
    assert looks.ways == []

    world.place.kill()
    place = places.hold()
    looks = Looks(place)

    class Source(type(image)):
        def stream(self, name, skip=()):
            looks.look(name)
            return super().stream(name, skip)

    restored = engine.restore(place, Source(image), result)
    assert len(looks.seen) > 1
    assert any(name.startswith("pagemap-") for name in looks.files)
    assert looks.ways == []
    proceed(restored, result.stopped)
    assert world.at(place)("child.poll()") is None


def test_descriptors_of_the_helpers_children_lead_nowhere_from_their_birth(
    world, places, engine
):
    image = engine.image()
    watched = Watched()
    result = engine.dump(world.place, image.sink, prepare=watched.prepare)
    events = watched.events()
    inside = birth_watch.namespace(world.place.init_pid)
    assert [one["event"] for one in events] == [
        birth_watch.EVENT_STOP,
        birth_watch.EVENT_EXEC,
    ]
    assert {one["inside"] for one in events} == {inside}
    assert [one["ways"] for one in events] == [[], []]

    world.place.kill()
    place = places.hold()
    watched = Watched()
    restored = engine.restore(place, image, result, prepare=watched.prepare)
    events = watched.events()
    # The first child moves the counter of process ids and ends.
    assert [one["event"] for one in events] == [
        birth_watch.EVENT_STOP,
        birth_watch.EVENT_EXIT,
        birth_watch.EVENT_STOP,
        birth_watch.EVENT_EXEC,
    ]
    assert [one["ways"] for one in events] == [[], [], [], []]
    proceed(restored, result.stopped)


def write_the_same(path: Path) -> None:
    """Its first byte over itself; a sealed copy in memory can be opened for it only."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, os.pread(descriptor, 1, 0), 0)
    finally:
        os.close(descriptor)


def files_of_ours(place, pid: int) -> dict[Path, str]:
    """What a process of ours has open and is not the session's own, and its name.

    CRIU opens the session's files to dump them: the session has a way to these anyway.
    So it has to the memory that CRIU has one of its processes make, and shares with it.
    """
    found = {}
    theirs, here = birth_watch.mounts(place.init_pid), Path(f"/proc/{pid}")
    try:
        paths = (here / "exe", *(here / "fd").iterdir())
    except FileNotFoundError:  # it has ended since it was found
        return {}
    for path in paths:
        try:
            target = str(path.readlink())
            descriptor = os.open(path, os.O_PATH)
        except FileNotFoundError:  # it was closed since it was listed
            continue
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            own = birth_watch.mount_of(descriptor) in theirs or target == SHARED
            if regular and not own:
                found[path] = target
        finally:
            os.close(descriptor)
    return found


def test_program_of_ours_cannot_be_written_to_through_a_descriptor(world, engine):
    # The more of the session's files CRIU opens, the likelier it is seen with one.
    world(
        "import mmap, pathlib\n"
        "for number in range(300):\n"
        "    path = pathlib.Path(f'/dev/shm/mapped{number}')\n"
        "    path.write_bytes(bytes(mmap.PAGESIZE))\n"
        "    with path.open('r+b') as opened:\n"
        "        scope[path] = mmap.mmap(opened.fileno(), 0)\n"
    )
    image = engine.image()
    tried, written = set(), set()

    def sink(name):
        for pid in strangers(world.place):
            for path, target in files_of_ours(world.place, pid).items():
                # Of the folder that CRIU writes to; it has the second one for a moment.
                if target.endswith(("criu.log", "stats-dump")):
                    continue
                tried.add(path.name)
                with contextlib.suppress(OSError):
                    write_the_same(path)
                    written.add(f"{path.name} -> {target}")
        return image.sink(name)

    engine.dump(world.place, sink)
    assert len(tried) >= 2
    assert written == set()
