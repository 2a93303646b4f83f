"""A saved session that is brought back as a drill is whole, and left alone."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.cli.main import main
from tests.checkpoint.test_rehearsal import places_there
from tests.support.agent import criu_folder, goes_on, wait_for

pytestmark = pytest.mark.shares_an_agent

#: Holds a lock, a listening port, a connection to itself, shared memory and a child;
#: a named pipe and socket, and a deleted file, which a return makes anew.
PROGRAM = """
import fcntl, os, socket, sys, time
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
peer = listener.accept()[0]
client.sendall(b"on the way")
os.chdir(os.path.dirname(sys.argv[1]))
for name in ("fifo", "named"):
    if os.path.exists(name):
        os.unlink(name)
os.mkfifo("fifo")
fifo = os.open("fifo", os.O_RDWR)
os.write(fifo, b"in the pipe")
named = socket.socket(socket.AF_UNIX)
named.bind("named")
deleted = open("deleted", "wb+")
deleted.write(b"x" * 100000)
deleted.flush()
os.unlink("deleted")
shared = open("/dev/shm/held", "wb+")
shared.write(os.urandom(1 << 20))
ballast = os.urandom(8 << 20)
right = ballast[::509]
if os.fork() == 0:
    while True:
        time.sleep(1)
while ballast[::509] == right:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.fixture
def file(folder: Path) -> Path:
    made = folder / f"held-{time.monotonic_ns()}"
    made.write_text("the user's own")
    return made


@pytest.fixture
def suspended(agent, places, file, request):
    """The checkpoint of a session that has been ended."""
    place = places("start", sys.executable, "-c", PROGRAM, str(file))
    wait_for(lambda: place.output.stat().st_size)
    name = f"drill-{place.incarnation[:8]}"
    assert agent.capture(place, name)[-1].get("checkpoint"), agent.log.read_text()
    path = f"/v1/sessions/{place.incarnation}/release"
    assert agent.post(path, {"checkpoint": name}).status_code == 200
    return name


@pytest.fixture
def drill(agent, folder, capsys):
    def drill(checkpoint: str, *words: str):
        line = [f"--store={agent.store}", f"--key-file={folder / 'master.key'}"]
        line += [f"--criu-dir={criu_folder()}", "--json", *words]
        code = main(["store", "drill", checkpoint, *line])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else err

    return drill


def test_drill_brings_all_back_and_leaves_no_trace(
    agent, places, suspended, drill, file, tmp_path
):
    before = (file.stat(), file.read_text(), agent.get("/v1/checkpoints").json())
    metrics = tmp_path / "drill.prom"
    code, told = drill(suspended, f"--metrics-file={metrics}")
    assert code == 0, told
    assert told["processes"] == 3  # the session's root, the program, its child
    assert told["bytes"] > 16 << 20
    assert told["bytes"] - told["same"] < 100 * 4096
    assert "jupyterhub_gpu_reclaim_drill_success 1.0" in metrics.read_text()
    after = (file.stat(), file.read_text(), agent.get("/v1/checkpoints").json())
    assert after == before
    assert not places_there()
    place = places("hold")
    assert agent.restore(place, suspended)[-1].get("tree")
    assert goes_on(place)


@pytest.mark.long
def test_drill_of_a_session_that_runs_again_disturbs_it_in_nothing(
    agent, places, suspended, drill
):
    place = places("hold")
    assert agent.restore(place, suspended)[-1].get("tree")
    code, told = drill(suspended)
    assert code == 0, told
    assert goes_on(place)


def test_drill_fails_of_a_damaged_checkpoint_and_where_a_file_has_changed(
    agent, suspended, drill, file, tmp_path
):
    pack = min(Path(agent.store, "packs", suspended).glob("0*"))
    right = pack.read_bytes()
    wrong = bytearray(right)
    wrong[len(right) // 2] ^= 1
    pack.write_bytes(wrong)
    code, told = drill(suspended)
    assert code == 1
    assert "damaged" in told
    assert not places_there()

    pack.write_bytes(right)
    os.truncate(file, 3)
    metrics = tmp_path / "drill.prom"
    code, told = drill(suspended, f"--metrics-file={metrics}")
    assert code == 1
    assert str(file) in told
    assert "jupyterhub_gpu_reclaim_drill_success 0.0" in metrics.read_text()
    assert not places_there()
