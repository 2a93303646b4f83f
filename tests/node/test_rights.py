"""A session comes back only where it may do no more than its new place."""

import os
import subprocess
import sys

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.linux import capabilities, processes
from jupyterhub_gpu_reclaim.linux.processes import Process
from jupyterhub_gpu_reclaim.node.requirements import (
    Rights,
    compare_rights,
    refuse_reaching,
    refuse_user_namespace,
    rights_of,
)
from jupyterhub_gpu_reclaim.node.session import Session

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
    assert [one.code for one in found] == ["foreign_namespace"]
    assert list(refuse_user_namespace(processes.snapshot_init(os.getpid()))) == []


def test_rights_of_this_process_are_what_the_kernel_tells():
    rights = rights_of([processes.snapshot_init(os.getpid())])
    assert rights.uids == [os.getuid()]
    assert (rights.capabilities != 0) == (os.getuid() == 0)


def test_agent_of_root_lacks_nothing_and_a_manifest_that_forgets_one_is_told():
    if os.geteuid() == 0:
        assert list(capabilities.findings()) == []
    everything = (1 << len(capabilities.NAMES)) - 1
    without = everything & ~(1 << capabilities.NAMES.index("SYS_TIME"))
    (found,) = capabilities.missing(everything, without)
    assert "CAP_SYS_TIME" in found.message


def test_rights_of_nobody_are_none():
    gone = Process(2**22 + 1, 5, 0, "gone", "S", 1, 0)
    assert rights_of([gone]) == Rights(
        uids=[], capabilities=0, filtered=True, no_new_privileges=True
    )


def in_pod(pod: str = "uid") -> Session:
    return Session(
        "i", SessionKey("ann", ""), 1, 1, holding=False, hint=PodHint(pod=pod)
    )


def test_refuse_reaching_dockers_default_is_let_through():
    root = changed(uids=[0], capabilities=SAME.capabilities, held=SAME.capabilities)
    assert list(refuse_reaching(root, in_pod(), ())) == []


def test_refuse_reaching_names_what_the_administrator_does_not_trust():
    ptrace = 1 << capabilities.NAMES.index("SYS_PTRACE")
    admin = 1 << capabilities.NAMES.index("SYS_ADMIN")
    rights = changed(uids=[0], capabilities=ptrace | admin)
    found = list(refuse_reaching(rights, in_pod(), ()))
    assert [one.code for one in found] == ["dangerous_rights"] * 2
    assert "CAP_SYS_PTRACE" in found[0].message
    (left,) = refuse_reaching(rights, in_pod(), ("SYS_PTRACE",))
    assert "CAP_SYS_ADMIN" in left.message


def test_refuse_reaching_counts_what_a_user_can_never_get_for_nothing():
    """No new privileges: what the container might give to root is not his."""
    ptrace = 1 << capabilities.NAMES.index("SYS_PTRACE")
    user = changed(capabilities=ptrace, no_new_privileges=True)
    assert list(refuse_reaching(user, in_pod(), ())) == []
    held = changed(capabilities=ptrace, held=ptrace, no_new_privileges=True)
    assert len(list(refuse_reaching(held, in_pod(), ()))) == 1
    may_gain = changed(capabilities=ptrace, no_new_privileges=False)
    assert len(list(refuse_reaching(may_gain, in_pod(), ()))) == 1


def test_refuse_reaching_sessions_on_the_machine_itself_are_not_judged():
    everything = changed(uids=[0], capabilities=(1 << 41) - 1, held=(1 << 41) - 1)
    assert list(refuse_reaching(everything, in_pod(""), ())) == []
