"""Folders of the agent: its own, and closed to everybody else."""

import os
import stat

import pytest

from jupyterhub_gpu_reclaim.node.http.listener import CannotStartError, own_folder


def test_own_folder_open_to_others_is_closed(tmp_path):
    tmp_path.chmod(0o777)
    assert own_folder(tmp_path) == tmp_path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_own_folder_that_is_missing_is_made_closed(tmp_path):
    made = own_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder away")
def test_own_folder_of_somebody_else_is_refused(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(CannotStartError, match="user id 12345"):
        own_folder(tmp_path)
