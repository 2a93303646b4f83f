"""The launcher: a session's own namespaces and cgroup, an init that outlives it."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.hub.local import launch as launch_module
from jupyterhub_gpu_reclaim.hub.local.processes import LocalSession, location
from jupyterhub_gpu_reclaim.hub.local.spawner import SessionProcessSpawner
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.session_init import launcher
from tests.support import keys

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
#: Of this process alone: sweeping it must not take another's groups.
PARENT = f"jupyterhub-gpu-reclaim-tests-{os.getpid()}"


@pytest.fixture
def launch(tmp_path):
    """Launch a shell script as init; returns the report and the place."""
    places = []
    name = uuid.uuid4().hex

    def start(script, *options, within=()):
        reader, writer = os.pipe()
        command = [*within, sys.executable, "-I", "-S", launcher.__file__]
        command += ["--report-fd", str(writer), "--cgroup-parent", PARENT]
        command += ["--cgroup", name, *options, "--", "/bin/sh", "-c", script]
        with (tmp_path / "out").open("wb") as out:
            process = subprocess.Popen(
                command, pass_fds=(writer,), stdout=out, stdin=subprocess.DEVNULL
            )
        os.close(writer)
        with os.fdopen(reader, "rb") as report:
            text = report.read()
        process.wait(60)
        facts = {}
        for line in text.splitlines():
            facts.update(json.loads(line))
        place = location(facts.get("pid", 0), facts.get("start", 0))
        places.append(place)
        return facts, place

    start.out = tmp_path / "out"
    start.name = name
    start.places = places
    yield start
    for place in places:
        LocalSession(place).signal(signal.SIGKILL)
        until = time.monotonic() + 60
        while LocalSession(place).alive() and time.monotonic() < until:
            time.sleep(0.02)
    launcher.remove_cgroups(PARENT, name)
    for mount, _ in launcher.hierarchies():
        with contextlib.suppress(OSError):
            (mount / PARENT).rmdir()


def ended(place):
    until = time.monotonic() + 60
    while LocalSession(place).alive():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_launch_gives_pid_1_private_proc_shm_and_terminals(launch):
    _, place = launch(
        "echo $$; ls /proc | grep -c '^[0-9]'; ls -A /dev/shm | wc -l;"
        f" {sys.executable} -c 'import os, pty; print(os.ttyname(pty.openpty()[1]))';"
        " cat /proc/sys/kernel/hostname"
    )
    ended(place)
    pid, processes, shared, terminal, host = launch.out.read_text().split()
    assert (pid, terminal) == ("1", "/dev/pts/0")
    assert int(processes) < 5
    assert shared == "0"
    assert host == os.uname().nodename


def test_report_names_the_init_on_the_host_however_fast_it_mounts(launch):
    for _ in range(5):
        facts, place = launch("exec sleep 60")
        assert facts["start"] == launcher.start_time(facts["pid"])
        assert LocalSession(place).alive()
        assert Path(f"/proc/{place.pid}/stat").read_text().split()[3] != str(
            os.getpid()
        )


def test_alive_is_never_fooled_by_another_process_of_that_pid(launch):
    _, place = launch("exec sleep 60")
    for wrong in (
        Location(pid=place.pid, start=place.start + 1, boot=place.boot),
        Location(pid=place.pid, start=place.start, boot="another boot"),
        Location(),
    ):
        assert not LocalSession(wrong).alive()
        assert not LocalSession(wrong).signal(signal.SIGKILL)
    assert LocalSession(place).alive()


async def test_ends_of_many_sessions_are_heard_of_at_once(launch):
    waits = []
    for _ in range(8):
        spawner = SessionProcessSpawner()
        spawner.place = launch("exec sleep 60")[1]
        spawner.death_interval = 3600  # of upstream, which looks within five seconds
        waits.append(asyncio.create_task(spawner.wait_for_death(60)))
    await asyncio.sleep(0.1)
    assert not any(wait.done() for wait in waits)
    for place in launch.places:
        LocalSession(place).signal(signal.SIGKILL)
    begun = time.monotonic()
    assert await asyncio.gather(*waits) == [True] * 8
    assert time.monotonic() - begun < 30


async def test_session_that_does_not_end_is_waited_for_as_long_as_said(launch):
    _, place = launch("exec sleep 60")
    begun = time.monotonic()
    assert not await LocalSession(place).wait(0.2)
    assert time.monotonic() - begun >= 0.2


def test_session_lets_go_of_what_the_host_unmounts(launch, tmp_path):
    machine = ("unshare", "--mount", "--propagation", "shared", "sh", "-c")
    script = f'mount -t tmpfs it {tmp_path} && "$@" && umount {tmp_path}'
    _, place = launch("exec sleep 60", within=(*machine, script, "sh"))
    there = Path(f"/proc/{place.pid}/mountinfo").read_text()
    assert " /dev/shm " in there
    assert str(tmp_path) not in there


def test_session_gets_a_cgroup_of_its_own(launch):
    _, place = launch("exec sleep 60", "--memory", str(64 << 20))
    groups = Path(f"/proc/{place.pid}/cgroup").read_text()
    assert f"/{PARENT}/{launch.name}" in groups
    limits = [
        (mount / PARENT / launch.name / file).read_text().strip()
        for mount, _ in launcher.hierarchies()
        for file in ("memory.max", "memory.limit_in_bytes")
        if (mount / PARENT / launch.name / file).exists()
    ]
    assert limits == [str(64 << 20)]


def test_sweep_removes_what_dead_sessions_left_and_nothing_else(launch):
    _, place = launch("exec sleep 60")
    groups = [m / PARENT / launch.name for m, _ in launcher.hierarchies()]
    groups = [group for group in groups if group.is_dir()]
    assert groups
    launcher.sweep_cgroups(PARENT, age=-1)  # in use
    assert all(group.is_dir() for group in groups)
    LocalSession(place).signal(signal.SIGKILL)
    ended(place)
    launcher.sweep_cgroups(PARENT)  # young
    assert all(group.is_dir() for group in groups)
    launcher.sweep_cgroups(PARENT, age=-1)
    assert not any(group.is_dir() for group in groups)


def test_limit_that_cannot_be_held_is_refused_with_a_sentence(launch, monkeypatch):
    facts, _ = launch("exec sleep 60", "--memory", "1")  # less than the process has
    if "error" in facts:
        assert facts["error"].endswith(".")
        assert "Traceback" not in facts["error"]


def running(mark: str) -> list[int]:
    """Processes with such a word in their command line."""
    found = []
    for pid in procfs.pids():
        with contextlib.suppress(OSError):
            if mark.encode() in procfs.read(pid, "cmdline").split(b"\0"):
                found.append(pid)
    return found


MOMENTS = (0.0, 0.02, 0.05, 0.08, 0.11, 0.14, 0.17, 0.2)


@pytest.mark.parametrize("seconds", MOMENTS)
@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_launch_that_does_not_end_well_leaves_no_session_behind(seconds, how):
    """Wherever it is: before the fork, before the report, before the init runs."""
    mark = uuid.uuid4().hex
    limit = seconds if how == "late" else 20
    init = ["/bin/sh", "-c", "sleep 60; true", mark]
    starting = asyncio.create_task(launch_module.run([], init, {}, {}, seconds=limit))
    if how == "cancelled":
        await asyncio.sleep(seconds)
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError, Refused):
        LocalSession(await starting).signal(signal.SIGKILL)  # it was ready before
    until = time.monotonic() + 60
    while (left := running(mark)) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


async def test_run_init_that_cannot_be_run_is_refused_with_its_error():
    with pytest.raises(Refused, match="No such file"):
        await launch_module.run([], ["/no/such/init"], {}, {}, seconds=20)


def test_init_that_cannot_be_run_is_one_sentence(launch, tmp_path):
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            launcher.__file__,
            "--report-fd",
            str(writer),
            str(tmp_path / "x"),
        ],
        pass_fds=(writer,),
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        lines = [json.loads(line) for line in report.read().splitlines()]
    process.wait(60)
    [error] = [line["error"] for line in lines if "error" in line]
    assert "No such file" in error


def machine_with(unit: str, out: Path) -> tuple[str, ...]:
    """One whose first process may be looked at, and that runs a unit."""
    inside = (
        'unshare --mount -- sh -c "$0" unit "$@";'
        f" until grep -q all '{out}'; do sleep 0.02; done"
    )
    return ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inside, unit)


def test_session_of_a_unit_with_private_folders_sees_the_machines_own(launch, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    (folder / "of-the-machine").touch()
    unit = f"mount -t tmpfs none '{folder}' && exec \"$@\""  # with its own folder
    machine = machine_with(unit, launch.out)
    script = f"ls '{folder}'; echo that is all"
    for options, seen in (((), ""), (("--machine-mounts",), "of-the-machine\n")):
        facts, _ = launch(script, *options, within=machine)
        assert "error" not in facts
        assert launch.out.read_text() == f"{seen}that is all\n"


def test_session_cannot_read_the_keys_of_the_hub(launch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(keys.CODE + "print(find_key('of-the-hub'))")
    keys.join_session_keyring()
    keys.add_key("of-the-hub", "secret")
    _, place = launch(f"exec {sys.executable} {program}")
    ended(place)
    assert launch.out.read_text().strip() == "None"
