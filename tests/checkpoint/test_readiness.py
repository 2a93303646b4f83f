"""The note on a machine that lets a user watch few folders."""

from __future__ import annotations

import pytest

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
