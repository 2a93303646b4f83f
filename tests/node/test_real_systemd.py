"""The units themselves, under a real systemd (``tests/support/real_systemd.py``)."""

import os
import shutil

import pytest

from jupyterhub_gpu_reclaim.linux import procfs
from tests.support.process_rights import TLJH_UNIT, UNIT, of_unit
from tests.support.real_systemd import ADMINS, GID, SYSTEMD, report

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen():
    if os.geteuid() != 0 or not SYSTEMD.exists() or not shutil.which("pivot_root"):
        pytest.skip("needs root and systemd: apt-get install systemd")
    return report()


def bounding(unit: str) -> int:
    here = int(procfs.status(os.getpid())["CapBnd"], 16)
    return of_unit(unit).bounding & here


def test_unit_gives_the_agent_what_the_other_tests_give_it(seen):
    agent = seen["agent"]
    assert int(agent["CapBnd"], 16) == bounding(UNIT.read_text())
    assert agent["CapPrm"] == agent["CapBnd"]
    assert (agent["NoNewPrivs"], agent["Seccomp"]) == ("0", "0")


def test_user_of_a_hub_that_runs_as_tljhs_returns(seen):
    user = seen["user"]
    assert user.get("has") == user.get("had"), user
    assert int(user["had"]["CapBnd"], 16) == bounding(TLJH_UNIT)
    assert user["had"]["NoNewPrivs"] == "1"


def test_administrator_who_is_none_any_more_returns_without_sudo(seen):
    admin = seen["admin"]
    assert admin.get("had", {}).get("Groups") == f"{GID} {ADMINS}", admin
    assert admin["had"]["NoNewPrivs"] == "0"
    assert admin["has"] == {**admin["had"], "Groups": str(GID), "NoNewPrivs": "1"}
