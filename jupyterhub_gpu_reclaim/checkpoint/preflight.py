"""Finds out before anything is touched whether a session can be saved.

Everything that CRIU would fail on and that can be known up front is asked of each kind
(``kinds``). They read /proc and the kernel's list of sockets, and look at sockets
through copies of their descriptors; nothing is stopped or changed. Read next:
``docs/explanation/criu.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds import table
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Program, Session
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import architecture, procfs
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: Open files of a session's programs together; each is looked at several times.
MOST_FILES: Final = 65_536


def too_many_files(snapshot: Snapshot) -> list[Finding]:
    """Whether so much is open that to look at it would take too long; empty is good."""
    left = MOST_FILES
    for process in snapshot.processes:
        left -= procfs.count_descriptors(process.pid, left + 1)
        if left < 0:
            what = f"has, with the others, more than {MOST_FILES} files open"
            return [Program(process).does(what)]
    return []


def examine(
    init_pid: int,
    snapshot: Snapshot,
    criu_findings: Iterable[Finding] = (),
    *,
    gpu_savable: Collection[int] = (),
) -> list[Finding]:
    """Everything that keeps a session from being saved now; empty is good.

    ``criu_findings`` are those about CRIU on this machine, ``gpu_savable`` the host
    pids of processes whose GPU is emptied before.
    """
    # Whether the missing capability matters depends on the tree (``kinds.rights``).
    missing = Reason.CAPABILITY_MISSING.value
    findings = [one for one in criu_findings if one.code != missing]
    if not architecture.is_known():
        return findings  # which say so
    if snapshot.root is None or snapshot.root.state in DEAD:
        return [*findings, finding(Reason.NO_TREE)]
    seen = Session(init_pid=init_pid, tree=snapshot, gpu_savable=gpu_savable)
    for kind in table.every():
        findings += kind.preflight(seen)
    return list(dict.fromkeys(findings))  # each process of a user says the same
