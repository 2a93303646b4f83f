"""A tree's memory, closed to its own user while root works in it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.ptrace import TraceFailed

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_log = logging.getLogger(__name__)

_PR_SET_DUMPABLE: Final = 4
_MEMORY: Final = re.compile(r"/(\d+)(?:/task/(\d+))?/mem$")


class ClosedMemory(Kind):
    """Whether a user may look into the memory of a process.

    A user may write into the memory of his processes (ptrace(2), ``/proc/PID/mem``),
    also from outside of the session, as by ssh, unless they are not "dumpable"
    (prctl(2)).

    In a dump, CRIU runs code of its own in each process and believes its answers, such
    as the number of a descriptor that it then opens for writing as root
    (``parasite_memfd_exchange``). In a restore, CRIU (4.2: ``__export_restore_thread``)
    gives each thread its user back by itself, and all of them share their memory: as
    soon as the first one is the user's, he could write what the others run as root. So
    no process is dumpable while CRIU works.
    """

    def __init__(self) -> None:
        self._closed: set[int] = set()  #: that were dumpable, by pids in the session

    def before_dump(self, dump: Dump) -> None:
        self._closed = close_all(dump.tree)
        dump.stack.callback(open_again, dump.tree, self._closed)

    def save(self, dump: Dump) -> None:
        for number in self._closed:
            memory = dump.images.memory(number)
            if memory is not None:
                memory.dumpable = 1

    def rewrite(self, back: Return) -> None:
        for number, who in back.saved.credentials.items():
            memory = back.images.memory(number)
            if who.uid and memory.dumpable == 1:  # root's is closed in any case
                memory.dumpable = 0
                self._closed.add(number)

    def after_restore(self, back: Return) -> None:
        open_again(back.tree, self._closed)


def close_all(tree: Snapshot) -> set[int]:
    """Keep the memory of a tree that stands from its users; idempotent.

    Returns:
        Whose it was before, by their pids in the session: for :func:`open_again`.

    Raises:
        ReclaimError: one could not be closed, or a process beside the session has its
            memory open already (``capture_failed``).
    """
    closed: set[int] = set()
    try:
        for process in tree.alive:
            if _is_open(process):
                closed.add(process.ns_pid)
                _set(process, 0)
                _refuse_open(process)
        _refuse_holders(tree)
    except BaseException as error:
        open_again(tree, closed)
        if isinstance(error, OSError):
            why = "its memory could not be kept from other programs of its user"
            raise ReclaimError(
                Reason.CAPTURE_FAILED, why=why, detail=str(error)
            ) from error
        raise
    return closed


def open_again(tree: Snapshot, closed: Collection[int]) -> None:
    """Make processes dumpable as they were; they are stopped and stay so.

    One that cannot be made so runs on: its user's debuggers cannot look at it then,
    until it is started again.
    """
    for process in tree.processes:
        if process.ns_pid not in closed:
            continue
        try:
            _set(process, 1)
        except OSError as error:
            _log.warning(
                "- process %d cannot be debugged until it restarts: %s",
                process.pid,
                error,
            )


def _set(process: Process, value: int) -> None:
    with ptrace.stopped(process.pid) as traced:
        traced.call("prctl", _PR_SET_DUMPABLE, value, 0, 0, 0)


def _is_open(process: Process) -> bool:
    """Whether it is dumpable; root's is closed to others in any case."""
    status = procfs.target_status(process.pid, "mem")
    return status is not None and status.st_uid != 0


def _refuse_open(process: Process) -> None:
    """Ask the kernel: what the process did was done in its user's memory."""
    if _is_open(process):
        raise TraceFailed(0, f"the user of process {process.pid} keeps it open")


def _refuse_holders(tree: Snapshot) -> None:
    """Check that no user has the memory open: an open descriptor keeps its access.

    Raises:
        ReclaimError: a user other than root has (``capture_failed``).
    """
    mine = {process.pid: process.ns_pid for process in tree.processes}
    numbers = {str(number) for both in mine.items() for number in both}
    for pid in procfs.pids():
        for one in procfs.descriptors(pid):
            found = _MEMORY.search(one.target)
            if found is None or not numbers & set(found.groups()):
                continue
            if pid in mine or _is_another(one, pid, int(found[1]), tree):
                continue
            why = f"process {pid} ({procfs.name(pid)}) has its memory open"
            raise ReclaimError(Reason.CAPTURE_FAILED, why=why)


def _is_another(one: procfs.Descriptor, pid: int, number: int, tree: Snapshot) -> bool:
    """Whether it is that of a process outside of the tree, or root has it.

    A number counts in the namespace of the /proc that the file is of: ours, the
    session's, or that of the holder, which may see the same processes or others. Of any
    other /proc, the number must do.
    """
    with contextlib.suppress(KeyError, ValueError, IndexError):
        if procfs.status(pid)["Uid"].split()[0] == "0":
            return True
    held = procfs.target_status(pid, f"fd/{one.fd}")
    if held is None:
        return True  # it has just ended, or closed it
    if held.st_dev == device_of_proc(os.getpid()):
        return number not in {process.pid for process in tree.processes}
    if held.st_dev == device_of_proc(tree.init.pid):
        return number not in {process.ns_pid for process in tree.processes}
    lives_with_it = procfs.link(pid, "ns/pid") in {
        procfs.link(number, "ns/pid") for number in (os.getpid(), tree.init.pid)
    }
    return held.st_dev == device_of_proc(pid) and not lives_with_it


def device_of_proc(pid: int) -> int | None:
    """Of the /proc that a process sees."""
    status = procfs.target_status(pid, "root/proc")
    return None if status is None else status.st_dev
