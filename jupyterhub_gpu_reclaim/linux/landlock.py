"""Finds threads that have confined themselves with Landlock, which no file tells.

The kernel lets a confined thread look at no process outside of its confinement
(``Documentation/userspace-api/landlock.rst``, "Ptrace restrictions"), whatever else it
may or may not do. So the thread is made to compare itself with a process that it could
look at by its user and capabilities. It changes nothing in either.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import architecture, capabilities, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed
from jupyterhub_gpu_reclaim.linux.scheduling import KCMP_VM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

_SYS_ADMIN: Final = 1 << capabilities.NAMES.index("SYS_ADMIN")

Status = dict[str, str]  #: of a thread, as ``procfs.status`` reads it


def may_be(status: Mapping[str, str]) -> bool:
    """Whether a thread could have confined itself: one of these is needed for it."""
    has = int(status.get("CapEff", "0"), 16) & _SYS_ADMIN
    return bool(has) or status.get("NoNewPrivs") == "1"


def is_confined(
    process: Process,
    witnesses: Iterable[Process],
    *,
    seconds: float,
    may_be: Callable[[Status], bool] = may_be,
) -> bool:
    """Whether a thread of it is; all of them stand still for that.

    Args:
        process: which.
        witnesses: others in its pid namespace, first those that surely are not.
        seconds: that its threads have to stand still in.
        may_be: which threads are looked at.

    Raises:
        OSError: they do not stand still, or are another's to trace.
    """
    statuses = {
        tid: procfs.status(process.pid, tid) for tid in ptrace.tasks(process.pid)
    }
    asked = {tid: status for tid, status in statuses.items() if may_be(status)}
    if not asked or architecture.here() is None:
        return False
    others = [
        (one, procfs.status(one.pid))
        for one in witnesses
        if one != process and _is_open_to_its_user(one)
    ]
    with ptrace.stopped(process.pid, seconds=seconds) as traced:
        for tid, status in asked.items():
            witness = next((w for w, its in others if _may_look_at(status, its)), None)
            if witness is None:
                continue
            with contextlib.suppress(ptrace.Unsuited), traced.thread(tid) as thread:
                if _is_kept_from(thread, process.ns_pid, witness.ns_pid):
                    return True
    return False


def _is_open_to_its_user(witness: Process) -> bool:
    """Whether it is dumpable (prctl(2)); of root's, only the first witness is known."""
    status = procfs.target_status(witness.pid, "mem")
    return status is not None and status.st_uid == witness.uid


def _may_look_at(status: Mapping[str, str], witness: Mapping[str, str]) -> bool:
    """Whether one of these rights may, of one with those (ptrace(2), access mode)."""
    if not status or not witness:
        return False
    for kind in ("Uid", "Gid"):
        real = status[kind].split()[0]
        if any(number != real for number in witness[kind].split()[:3]):
            return False
    return not int(witness["CapPrm"], 16) & ~int(status["CapPrm"], 16)


def _is_kept_from(thread: Traced, own: int, other: int) -> bool:
    try:
        # Where even this is forbidden, it says nothing.
        thread.call("kcmp", own, own, KCMP_VM, 0, 0)
    except TraceFailed:
        return False
    try:
        thread.call("kcmp", own, other, KCMP_VM, 0, 0)
    except TraceFailed as error:
        return error.errno == errno.EPERM
    return False
