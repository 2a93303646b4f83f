"""Finds threads that have confined themselves with Landlock, which no file shows.

The kernel lets a confined thread look at no process outside of its confinement
(``Documentation/userspace-api/landlock.rst``, "Ptrace restrictions"), whatever else it
may do. So the thread is made to compare itself with a process that it could look at by
its user and capabilities. It changes nothing in either.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import capabilities, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed
from jupyterhub_gpu_reclaim.linux.scheduling import KCMP_VM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

_SYS_ADMIN: Final = 1 << capabilities.NAMES.index("SYS_ADMIN")


def witnesses(
    process: Process,
    statuses: Mapping[int, Mapping[str, str]],
    others: Sequence[Process],
) -> dict[int, Process]:
    """The threads that may have confined themselves, and whom each can be asked about.

    ``others`` are in its pid namespace, first those that surely are not confined.
    """
    asked = {
        tid: _Rights.of(status) for tid, status in statuses.items() if _may_be(status)
    }
    found = {rights: _witness(process, rights, others) for rights in {*asked.values()}}
    return {tid: one for tid, rights in asked.items() if (one := found[rights])}


def is_confined(traced: Traced, process: Process, asked: Mapping[int, Process]) -> bool:
    """Whether one of those threads is, of a process that is held still.

    Raises:
        OSError: one has ended.
    """
    for tid, witness in asked.items():
        with contextlib.suppress(ptrace.Unsuited), traced.thread(tid) as thread:
            if _is_kept_from(thread, process.ns_pid, witness.ns_pid):
                return True
    return False


def _may_be(status: Mapping[str, str]) -> bool:
    """Whether a thread could have confined itself: one of these is needed for it."""
    has = int(status.get("CapEff", "0"), 16) & _SYS_ADMIN
    return bool(has) or status.get("NoNewPrivs") == "1"


class _Rights(NamedTuple):
    """Rights that decide whether a thread may look at others, and be looked at."""

    users: tuple[str, ...]  #: real, effective and saved; likewise the next
    groups: tuple[str, ...]
    permitted: int  #: its capabilities

    @classmethod
    def of(cls, status: Mapping[str, str]) -> _Rights:
        users, groups = (status[kind].split()[:3] for kind in ("Uid", "Gid"))
        return cls(tuple(users), tuple(groups), int(status["CapPrm"], 16))

    def may_look_at(self, other: _Rights) -> bool:
        """The kernel's rule (ptrace(2), access mode), for one that is dumpable."""
        return (
            {*other.users} == {self.users[0]}
            and {*other.groups} == {self.groups[0]}
            and not other.permitted & ~self.permitted
        )


def _witness(
    process: Process, rights: _Rights, witnesses: Sequence[Process]
) -> Process | None:
    for one in witnesses:
        # Whether another of root's is dumpable (prctl(2)) cannot be seen.
        if one == process or (one.uid == 0 and one != witnesses[0]):
            continue
        memory = procfs.target_status(one.pid, "mem")
        status = procfs.status(one.pid)
        is_open = memory is not None and memory.st_uid == one.uid
        if is_open and status and rights.may_look_at(_Rights.of(status)):
            return one
    return None


def _is_kept_from(thread: Traced, own: int, other: int) -> bool:
    try:
        thread.call("kcmp", own, other, KCMP_VM, 0, 0)
    except TraceFailed as error:
        if error.errno != errno.EPERM:
            return False
    else:
        return False
    try:
        # Where even this is forbidden, it says nothing.
        thread.call("kcmp", own, own, KCMP_VM, 0, 0)
    except TraceFailed:
        return False
    return True
