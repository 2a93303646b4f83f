"""A process leaves its container's control groups, but not its pod's."""

import os
import secrets
import subprocess
import uuid
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.linux import cgroups
from jupyterhub_gpu_reclaim.node import cgroup_escape
from tests.support.containers import leave_groups


@pytest.fixture
def contained():
    """A process in the groups that a kubelet and containerd make, and its pod's uid."""
    pod = str(uuid.uuid4())
    groups = cgroups.groups_of(os.getpid(), at_host=True)
    try:
        for name in ("kubepods", "besteffort", f"pod{pod}", secrets.token_hex(32)):
            groups = cgroups.create(groups, name)
            for group in groups:
                _let_in(group)
        with subprocess.Popen(["sleep", "60"]) as process:
            for group in groups:
                cgroups.take(group, process.pid)
            yield process.pid, pod
            process.kill()
    except Refused as error:
        pytest.skip(f"this machine lets nobody divide its groups: {error.detail}")
    finally:
        leave_groups(pod)


def _let_in(group):
    if "cpuset" in group.controllers and group.version == 1:
        for name in ("cpuset.cpus", "cpuset.mems"):
            above = (group.folder.parent / name).read_text()
            (group.folder / name).write_text(above)


def test_a_process_leaves_its_container_and_stays_in_its_pod(contained):
    pid, pod = contained
    before = cgroups.container_of(pid)
    assert before is not None, Path(f"/proc/{pid}/cgroup").read_text()
    assert before.id
    cgroup_escape.move(pid)
    cgroup_escape.move(pid)
    assert cgroups.container_of(pid) == cgroups.ContainerCgroup(pod, "")
    for group in cgroups.groups_of(pid, at_host=True):
        assert before.id not in str(group.folder)
        assert group.folder.name == cgroup_escape.NAME
        assert pod in group.folder.parent.name


def test_a_process_of_no_container_stays_where_it_is():
    before = cgroups.groups_of(os.getpid())
    cgroup_escape.move(os.getpid())
    assert cgroups.groups_of(os.getpid()) == before
