"""Compares the rights of a session's programs with those of their new place.

The capture stores them in ``world.json``; the restore compares them before anything is
touched. CRIU gives a process back the user, the capabilities and the system call filter
that it had, whatever the new container was given. A user who may choose the next
container's rights (a profile, another server) must not keep those of the last one.
Nothing is changed here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session

_ROOT = 0
#: With these a program of a container could look at CRIU or at us, where the kernel
#: compares capability sets otherwise, or reaches the host by itself.
REACHING = (
    *("DAC_READ_SEARCH", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "SYS_ADMIN"),
    *("SYS_BOOT", "PERFMON", "BPF"),
)


class Rights(Value, frozen=True, kw_only=True):
    """The most that any of some processes may do.

    ``uids`` are all user ids in use, ``capabilities`` all that one has or could get by
    running a program (bits of the kernel's sets), of which it has ``held`` already;
    ``filtered`` says that every one has
    a seccomp filter, ``no_new_privileges`` that no program can raise its rights.
    """

    uids: list[int]
    capabilities: int
    held: int = 0
    filtered: bool
    no_new_privileges: bool


def rights_of(processes: Iterable[Process]) -> Rights:
    """The rights of those processes together; the dead have none."""
    uids: set[int] = set()
    bounding, held, filtered, no_new = 0, 0, True, True
    for process in processes:
        status = procfs.status(process.pid)
        if process.state in DEAD or not status:
            continue
        uids.update(int(uid) for uid in status["Uid"].split())
        bounding |= int(status["CapBnd"], 16)
        for name in ("CapPrm", "CapInh", "CapAmb"):
            held |= int(status[name], 16)
        filtered &= status.get("Seccomp", "0") != "0"
        no_new &= status.get("NoNewPrivs", "0") == "1"
    return Rights(
        uids=sorted(uids),
        capabilities=bounding | held,
        held=held,
        filtered=filtered,
        no_new_privileges=no_new,
    )


def refuse_user_namespace(init: Process) -> Iterator[Finding]:
    """Refuse a restore under an init that is root in its own user namespace only.

    CRIU would make processes there that are root outside of it.
    """
    if procfs.link(init.pid, "ns/user") != procfs.link(os.getpid(), "ns/user"):
        yield finding(Reason.USER_NAMESPACE, pid=init.ns_pid, name=init.name)


def compare_rights(there: Rights | None, here: Rights) -> Iterator[Finding]:
    """Why a session of those rights must not come back to that place. Pure.

    Args:
        there: the session's; None of one that was saved before they were written down.
        here: those of the holding init, as container and runtime gave them to it.
    """
    if there is None:
        return
    if _ROOT not in here.uids and (strangers := set(there.uids) - set(here.uids)):
        yield finding(Reason.USER_MISMATCH, there=min(strangers), here=here.uids[0])
    if there.capabilities & ~here.capabilities:
        extra = capabilities.names(there.capabilities & ~here.capabilities)
        yield finding(Reason.RIGHTS_MISMATCH, what=", ".join(extra))
    if here.filtered and not there.filtered:
        yield finding(Reason.RIGHTS_MISMATCH, what="programs without a seccomp filter")
    if here.no_new_privileges and not there.no_new_privileges:
        yield finding(Reason.RIGHTS_MISMATCH, what="programs that may gain privileges")


def refuse_reaching(
    rights: Rights | None, session: Session, trusted: Collection[str]
) -> Iterator[Finding]:
    """Why CRIU must not enter a container whose programs could reach it. Pure.

    Docker's default capabilities do not suffice for that. Sessions that run on the
    machine itself are not judged: their capabilities are of no use to an ordinary user
    there, and root is root of the machine already.

    Args:
        rights: the session's; None of one that was saved before they were written down.
        session: where it lives.
        trusted: names of capabilities that are let through, without ``CAP_``.
    """
    if rights is None or not (session.container or session.told.pod):
        return
    # A program that can gain nothing by running another has what it holds.
    bounded = rights.no_new_privileges and _ROOT not in rights.uids
    may = rights.held if bounded else rights.capabilities
    for one in REACHING:
        if one not in trusted and may >> capabilities.NAMES.index(one) & 1:
            yield finding(Reason.DANGEROUS_RIGHTS, capability=f"CAP_{one}")


def refuse_beyond_agent(there: Rights | None) -> Iterator[Finding]:
    """Why we cannot give a session its rights back: we lack them ourselves."""
    if there is not None:
        yield from capabilities.missing(there.held, capabilities.own())
