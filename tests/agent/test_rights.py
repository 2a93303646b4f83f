"""A session comes back only where it may do no more than its new place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.agent.rights import (
    Rights,
    compare_rights,
    refuse_beyond_agent,
    refuse_user_namespace,
    rights_of,
)
from jupyterhub_gpu_reclaim.engine import capabilities, processes
from jupyterhub_gpu_reclaim.engine.processes import Process

SAME = Rights(
    uids=[1000], capabilities=0xA80425FB, filtered=True, no_new_privileges=True
)
ALL = SAME.capabilities | 1 << 21


def changed(**changes) -> Rights:
    return msgspec.structs.replace(SAME, **changes)


@pytest.mark.parametrize(
    ("there", "here", "codes"),
    [
        (SAME, SAME, []),
        (None, SAME, []),
        (SAME, changed(capabilities=ALL, filtered=False), []),
        (SAME, changed(no_new_privileges=False), []),
        (SAME, changed(uids=[0]), []),
        (SAME, changed(uids=[1001]), ["user_mismatch"]),
        (changed(uids=[0, 1000]), SAME, ["user_mismatch"]),
        (changed(capabilities=ALL), SAME, ["rights_mismatch"]),
        (SAME, changed(capabilities=0), ["rights_mismatch"]),
        (changed(filtered=False), SAME, ["rights_mismatch"]),
        (changed(no_new_privileges=False), SAME, ["rights_mismatch"]),
    ],
)
def test_compare_rights_refuses_more_than_the_place_gives(there, here, codes):
    found = list(compare_rights(there, here))
    assert [one.code for one in found] == codes
    assert all(one.fatal for one in found)


def test_compare_rights_names_the_capability():
    (found,) = compare_rights(changed(capabilities=ALL), SAME)
    assert "CAP_SYS_ADMIN" in found.message


def test_user_namespace_of_its_own_is_refused():
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes a user namespace")
    program = "print(flush=True); input()"
    with subprocess.Popen(
        ["unshare", "--user", sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as popen:
        popen.stdout.readline()
        found = list(refuse_user_namespace(processes.snapshot_init(popen.pid)))
        popen.kill()
    assert [one.code for one in found] == ["user_namespace"]
    assert list(refuse_user_namespace(processes.snapshot_init(os.getpid()))) == []


def test_rights_of_this_process_are_what_the_kernel_tells():
    rights = rights_of([processes.snapshot_init(os.getpid())])
    assert rights.uids == [os.getuid()]
    assert (rights.capabilities != 0) == (os.getuid() == 0)


def test_session_that_holds_more_than_the_agent_is_refused():
    mine = capabilities.own()
    assert list(refuse_beyond_agent(None)) == []
    assert list(refuse_beyond_agent(changed(held=mine))) == []
    (found,) = refuse_beyond_agent(changed(held=mine | 1 << 62))
    assert (found.code, found.fatal) == ("capability_missing", True)
    assert "capability 62" in found.message


def test_agent_of_root_lacks_nothing_and_a_manifest_that_forgets_one_is_told():
    if os.geteuid() == 0:
        assert list(capabilities.findings()) == []
    everything = (1 << len(capabilities.NAMES)) - 1
    without = everything & ~(1 << capabilities.NAMES.index("SYS_TIME"))
    (found,) = capabilities.missing(everything, without)
    assert "CAP_SYS_TIME" in found.message


def test_unit_gives_the_agent_all_that_it_needs():
    """As does the cluster's manifest, which is held against the unit elsewhere."""
    unit = (
        Path(__file__).parents[2] / "etc/systemd/jupyterhub-gpu-reclaim-agent.service"
    )
    (line,) = re.findall(
        r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.MULTILINE
    )
    assert {f"CAP_{name}" for name in capabilities.NEEDED} <= set(line.split())


def test_rights_of_nobody_are_none():
    gone = Process(2**22 + 1, 5, 0, "gone", "S", 1, 0)
    assert rights_of([gone]) == Rights(
        uids=[], capabilities=0, filtered=True, no_new_privileges=True
    )
