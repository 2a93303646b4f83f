"""Control groups of this very machine: read, joined, limited, and put back."""

import os
import subprocess
import sys
import uuid

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.linux import cgroups
from jupyterhub_gpu_reclaim.linux.cgroups import Group, LimitRecord

MIB = 1 << 20
CONTAINER = "ab" * 32


@pytest.fixture
def parents():
    groups = [
        group
        for group in cgroups.groups_of(os.getpid())
        if {"memory", "cpu", "cpuacct", "pids"} & group.controllers
    ]
    writable = [g for g in groups if os.access(g.folder, os.W_OK)]
    if not any("memory" in g.controllers for g in writable):
        pytest.skip("needs a memory control group that may be divided")
    return writable


def create(parents, name, *, memory_bytes):
    made = cgroups.create(parents, name)
    for group in made:
        if "memory" in group.controllers:
            limit = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
            (group.folder / limit).write_text(str(memory_bytes))
    return made


def remove(groups) -> None:
    for group in groups:
        group.folder.rmdir()


@pytest.fixture
def groups(parents):
    name = f"gpu-reclaim-test-{uuid.uuid4().hex[:8]}"
    try:
        made = create(parents, name, memory_bytes=64 * MIB)
    except Refused as error:
        pytest.skip(f"this machine lets nobody divide its groups: {error.detail}")
    yield made
    remove(made)


@pytest.fixture
def sleeper(groups):
    """A process to be put into the groups; ended before they are removed."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def put(pid: int, groups: list[Group]) -> None:
    for group in groups:
        (group.folder / "cgroup.procs").write_text(str(pid))


def test_groups_of_every_hierarchy_is_a_folder_with_the_process():
    for group in cgroups.groups_of(os.getpid()):
        assert str(os.getpid()) in (group.folder / "cgroup.procs").read_text().split()


def test_groups_at_a_host_that_is_closed_to_us_are_left_out(monkeypatch):
    """Under ``ip netns exec`` nothing else is mounted at /sys/fs/cgroup."""

    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cgroups.Path, "is_dir", closed)
    assert cgroups.groups_of(os.getpid()) == []


def test_groups_of_a_process_that_is_gone_is_empty():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert cgroups.groups_of(gone.pid) == []
    assert cgroups.memory_limit(gone.pid) is None


def test_limit_of_a_pod_is_lifted_and_put_back_with_its_containers(groups, sleeper):
    """As the kubelet makes them: the pod's own group has a limit, too."""
    pod = str(uuid.uuid4())
    memory = [g for g in groups if "memory" in g.controllers]
    pods = create(
        memory, f"kubepods-pod{pod.replace('-', '_')}.slice", memory_bytes=48 * MIB
    )
    inner = create(pods, "container", memory_bytes=32 * MIB)
    try:
        put(sleeper, inner)
        found = cgroups.find_memory_limit(sleeper, pod)
        assert (found.bytes, found.above.bytes) == (32 * MIB, 48 * MIB)
        assert found.above.above is None
        assert cgroups.find_memory_limit(sleeper).above is None
        assert cgroups.find_memory_limit(sleeper, str(uuid.uuid4())).above is None

        cgroups.lift_memory_limit(found)
        assert cgroups.memory_limit(sleeper) == 64 * MIB  # further up, of others
        assert cgroups.restore_memory_limit(found)
        assert cgroups.memory_limit(sleeper) == 32 * MIB
        assert cgroups.find_memory_limit(sleeper, pod) == found
        put(sleeper, memory)
    finally:
        remove([*inner, *pods])


def test_headroom_is_told_of_every_limit_that_is_not_lifted(groups, sleeper):
    memory = [g for g in groups if "memory" in g.controllers]
    inner = create(memory, "session", memory_bytes=32 * MIB)
    try:
        put(sleeper, inner)
        mine, above = (str(group.folder) for group in (*inner, *memory))
        told = cgroups.headroom(sleeper)
        assert 0 < told[mine] <= 32 * MIB < told[above] <= 64 * MIB
        lifted = cgroups.find_memory_limit(sleeper)
        assert mine not in cgroups.headroom(sleeper, lifted)
        assert cgroups.headroom(sleeper, lifted)[above] == pytest.approx(
            told[above], abs=MIB
        )
        put(sleeper, memory)
    finally:
        remove(inner)


def test_create_is_idempotent(groups):
    parents = [group._replace(folder=group.folder.parent) for group in groups]
    assert cgroups.create(parents, groups[0].folder.name) == groups


def test_join_moves_into_every_group_of_the_other(groups, sleeper):
    put(sleeper, groups)
    with subprocess.Popen(["sleep", "60"]) as second:
        for _ in range(2):
            cgroups.join(second.pid, sleeper)
        assert cgroups.groups_of(second.pid) == cgroups.groups_of(sleeper)
        second.kill()


def test_lift_memory_limit_is_put_back_by_another_process_from_its_record(
    groups, sleeper
):
    put(sleeper, groups)
    record = cgroups.find_memory_limit(sleeper)
    assert record.bytes == 64 * MIB
    for _ in range(2):
        cgroups.lift_memory_limit(record)
    assert cgroups.memory_limit(sleeper) is None
    assert cgroups.find_memory_limit(sleeper) == LimitRecord()  # nothing more to lift
    cgroups.lift_memory_limit(LimitRecord())
    for _ in range(2):
        assert cgroups.restore_memory_limit(record)
    assert cgroups.memory_limit(sleeper) == 64 * MIB


def test_restore_memory_limit_of_a_group_that_is_gone_is_done(tmp_path):
    record = LimitRecord(file=str(tmp_path / "memory.max"), bytes=5)
    assert cgroups.restore_memory_limit(record)
    assert cgroups.restore_memory_limit(LimitRecord())


def test_restore_memory_limit_v2_below_what_is_used_waits(tmp_path):
    """The kernel would kill somebody to make it fit."""
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    record = LimitRecord(file=str(tmp_path / "memory.max"), bytes=50)
    assert not cgroups.restore_memory_limit(record)
    assert (tmp_path / "memory.max").read_text() == "max\n"
    (tmp_path / "memory.current").write_text("50\n")
    assert cgroups.restore_memory_limit(record)
    assert (tmp_path / "memory.max").read_text() == "50"


def test_raised_limit_is_put_down_for_the_group_and_its_pod(tmp_path):
    folders = [tmp_path, tmp_path / "container"]
    folders[1].mkdir()
    pod, own = (folder / "memory.max" for folder in folders)
    for file in (pod, own):
        file.write_text("max")
    record = LimitRecord(
        file=str(own), bytes=100, above=LimitRecord(file=str(pod), bytes=200)
    )
    assert cgroups.restore_memory_limit(record.raised(50))
    assert (own.read_text(), pod.read_text()) == ("150", "250")


@pytest.fixture
def named_groups(parents):
    """Groups with a container's name; ended with what is in them."""
    made = cgroups.create(parents, f"docker-{CONTAINER}.scope")
    yield made
    remove(made)


def test_owners_of_a_containers_groups_are_those_who_have_made_them(named_groups):
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            put(process.pid, named_groups)
            assert cgroups.owners(process.pid, CONTAINER) == {0}
            assert cgroups.owners(process.pid, "cd" * 32) == set()
            for group in named_groups:  # as systemd's Delegate= lets a user do
                os.chown(group.folder, 1000, 1000)
                assert 1000 in cgroups.owners(process.pid, CONTAINER)
                os.chown(group.folder, 0, 0)
        finally:
            process.kill()
            process.wait()
    assert cgroups.owners(process.pid, CONTAINER) == set()


def test_groups_without_a_mounted_hierarchy_are_no_error():
    """As below ``ip netns exec``, which mounts another /sys, in the agent's view."""
    code = "import os\nfrom jupyterhub_gpu_reclaim.linux import cgroups\n"
    code += "cgroups.memory_limit(os.getpid()); cgroups.join(os.getpid(), os.getppid())"
    script = 'umount -l /sys && mount -t sysfs sysfs /sys && "$0" -c "$1"; exit $?'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
