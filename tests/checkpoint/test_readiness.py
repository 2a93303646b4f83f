"""What a node says of itself: few folders to watch, control groups out of reach."""

import re
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux.cgroups import ContainerCgroup, Group
from jupyterhub_gpu_reclaim.node.setup import readiness


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("128\n", ["few_watches"]), ("1024\n", []), ("8192\n", []), ("?", [])],
)
def test_a_low_limit_is_noted_and_forbids_nothing(tmp_path, limit, expected):
    path = tmp_path / "max_user_instances"
    path.write_text(limit)
    found = list(readiness.inotify_findings(path))
    assert [one.code for one in found] == expected
    assert all(not one.fatal and "128 inotify" in one.message for one in found)


def test_a_machine_without_such_a_limit_is_fine(tmp_path):
    assert list(readiness.inotify_findings(tmp_path / "missing")) == []


def test_this_machine_has_the_limit_where_it_is_looked_for():
    assert int(readiness.INOTIFY_LIMIT.read_text()) > 0


def denied(*_, **__):
    raise PermissionError(13, "Permission denied", "/proc/1/root")


def group(folder):
    return Group(frozenset({"memory"}), 2, folder)


@pytest.mark.parametrize(
    ("reached", "fatal", "words"),
    [
        (denied, True, "may not read .* Permission denied: '/proc/1/root'"),
        (lambda *_, **__: [], True, "may not read .* mounts of process 1"),
        (lambda *_, **__: [group(Path("/gone"))], False, "may not write .*/gone"),
    ],
)
def test_control_groups_out_of_reach_are_said(monkeypatch, reached, fatal, words):
    """Each capture would fail, on a node that said that it is ready."""
    monkeypatch.setattr(readiness, "container_of", lambda _: ContainerCgroup("p", "c"))
    monkeypatch.setattr(readiness, "groups_of", reached)
    [found] = readiness.cgroup_findings()
    assert (found.code, found.fatal) == ("cgroups_denied", fatal)
    assert re.search(words, found.message)


def test_control_groups_in_reach_are_not_mentioned(monkeypatch, tmp_path):
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(readiness, "container_of", lambda _: ContainerCgroup("p", "c"))
    monkeypatch.setattr(readiness, "groups_of", lambda *_, **__: [group(tmp_path)])
    assert list(readiness.cgroup_findings()) == []


def test_an_agent_outside_of_containers_is_not_asked_for_them():
    assert list(readiness.cgroup_findings()) == []
