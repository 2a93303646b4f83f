"""A program of ours inside a session's namespaces: its pids, its end, its limits."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import (
    HELPER,
    path_of,
    run_inside,
)
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces")


@pytest.fixture
def shell(criu):
    """The system's shell, started like CRIU: with the loader and libraries of that."""
    return dataclasses.replace(criu, binary=Path("/bin/sh").resolve())


@pytest.fixture
def run(places, shell):
    place = places.hold()
    started = []

    def run(script, *descriptors, **options):
        inside = run_inside(
            shell,
            ["-c", script, "sh", *map(path_of, descriptors)],
            descriptors,
            init_pid=place.init_pid,
            init_start=options.pop("init_start", place.init_start),
            **options,
        )
        started.append(inside)
        return inside

    yield run
    for inside in started:
        inside.close()


def soon():
    return time.monotonic() + 20


def test_program_runs_in_all_namespaces_of_the_init(run, places):
    read_end, write_end = os.pipe()
    script = 'for n in pid mnt ipc uts; do /bin/readlink /proc/self/ns/$n; done > "$1"'
    assert run(script, write_end).wait(soon()) == 0
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        seen = pipe.read().split()
    place = places.made[0]
    assert seen == [
        str(Path(f"/proc/{place.init_pid}/ns/{kind}").readlink())
        for kind in ("pid", "mnt", "ipc", "uts")
    ]
    assert seen[0] != str(Path("/proc/self/ns/pid").readlink())


def test_status_is_the_programs(run):
    assert run("exit 7").wait(soon()) == 7
    assert run("kill -9 $$").wait(soon()) == -9


def test_pids_inside_and_outside_are_told(run):
    inside = run("exec /bin/sleep 60")
    line = Path(f"/proc/{inside.pid}/status").read_text().partition("NSpid:")[2]
    assert line.split()[:2] == [str(inside.pid), str(inside.inner_pid)]
    assert inside.poll() is None
    inside.signal(9)
    assert inside.wait(soon()) == -9
    inside.signal(9)


def test_wait_returns_when_time_is_up(run):
    inside = run("exec /bin/sleep 60")
    begun = time.monotonic()
    assert inside.wait(begun + 0.1) is None
    assert time.monotonic() - begun < 10
    inside.signal(9)
    assert inside.wait(soon()) == -9


def test_last_pid_moves_the_counter(run):
    inside = run("exit 0", last_pid=12345)
    assert inside.inner_pid > 12345
    assert inside.wait(soon()) == 0


def test_last_pid_is_moved_where_proc_is_read_only():
    """As in an agent's own container; its mount of /proc is the host's."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes namespaces")
    shut = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
    work = (
        f"import os, runpy; enter = runpy.run_path({str(HELPER)!r});"
        "print(os.access('/proc/' + enter['COUNTER'], os.W_OK));"
        "enter['set_last_pid'](enter['open_counter'](), 12345);"
        "child = os.fork() or os._exit(0); print(child)"
    )
    inside = f'{shut} && exec "$0" -I -S -c "{work}"'
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", inside, sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "12346"], done


def test_another_start_time_is_not_found(run):
    with pytest.raises(NotFound):
        run("exit 0", init_start=1)


def test_prepare_that_fails_starts_nothing(run):
    def prepare(pid):
        raise ReclaimError(criu_module.Reason.INTERNAL, detail=str(pid))

    with pytest.raises(ReclaimError) as caught:
        run("exit 0", prepare=prepare)
    assert not Path(f"/proc/{caught.value.detail}").exists()


def test_session_cannot_lend_its_environment_or_path(run):
    read_end, write_end = os.pipe()
    assert run('printf %s "$PATH$LD_PRELOAD$HOME" > "$1"', write_end).wait(soon()) == 0
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert pipe.read() == "/nowhere/nowhere"


def test_session_cannot_preload_its_libraries(run, places):
    """Whoever opens a pipe that nobody writes to waits for ever."""
    init = str(places.made[0].init_pid)
    make = "mount -t tmpfs none /etc && mkfifo /etc/ld.so.preload"
    subprocess.run(["nsenter", "-t", init, "-m", "sh", "-c", make], check=True)
    inside = run("exit 7")
    status = inside.wait(time.monotonic() + 5)
    inside.signal(9)
    assert status == 7
