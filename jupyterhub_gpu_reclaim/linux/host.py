"""The host's own view, for an agent that may be in a container itself.

Mounts of runtime and kubelet, and the paths of control groups, are as the host sees
them, which is the view of the first process (``hostPID``). Nothing is changed except,
once, the agent's own view of control groups.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

PID: Final = 1
_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CLONE_NEWCGROUP: Final = 0x02000000
#: The first control group namespace of every machine (linux/proc_ns.h).
_FIRST_CGROUPS: Final = "cgroup:[4026531835]"


def huge_pages() -> str:
    """Which programs get huge pages: always, madvise or never; empty if there are none.

    The driver takes host memory inside of the user's process and does not ask for them;
    ``always`` makes its checkpoint 1.4 times as fast
    (``docs/reference/gpu-results.md``).
    """
    try:
        text = _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def root() -> Path:
    """Path of the host's root folder: our own, or through the host's process 1."""
    # Numbers of mounts are given once on a machine.
    ours, its = read_mounts("self"), read_mounts(PID)
    if {mount.id for mount in ours} == {mount.id for mount in its}:
        return Path("/")
    return procfs.PROC / str(PID) / "root"


def name_groups_as_host() -> None:
    """Let control groups have the host's names for us from now on.

    It holds for the calling thread and those that it makes: call it before there are
    others.

    Raises:
        Refused: the kernel refuses (``capability_missing``).
    """
    if procfs.link(os.getpid(), "ns/cgroup") == _FIRST_CGROUPS:
        return
    try:
        path = procfs.PROC / str(PID) / "ns" / "cgroup"
        with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as namespace:
            checked(libc.setns(namespace, _CLONE_NEWCGROUP), "setns")
    except OSError as error:
        raise Refused(
            Reason.CAPABILITY_MISSING,
            capability="CAP_SYS_ADMIN or CAP_SYS_PTRACE",
            user="any user",
            detail=f"control groups of the host: {error}",
        ) from None
