"""Checks, or enforces with SIGSTOP, that every process of a tree is stopped.

A user may wake his own processes at any moment, so a tree that was stopped once may run
later. Before CRIU enters a session, everything in its pid namespace is stopped
(:func:`freeze`): also its init, where that is its user's own (in a container), and what
was started beside the tree (``docker exec``, another container that shares the
namespace). No process is left there that could observe CRIU or write to the memory that
it works with.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, processes, procfs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: Field of /proc/<pid>/stat, counted from the state (proc(5), flags), and its bit.
_FLAGS, _PF_EXITING = 6, 0x4
#: How long a shell may take to stop, before its programs are stopped all the same.
_SHELL_SECONDS = 0.2
_SIGKILL = 1 << (signal.SIGKILL - 1)


def stop(init_pid: int, start: int, *, timeout: float) -> Snapshot:
    """Stop all processes below that init, new ones included; return the tree then.

    Raises:
        NotFound: there is no such init.
        ReclaimError: a process still ran when the time (seconds) was up.
    """
    deadline = time.monotonic() + timeout
    while True:
        tree = processes.snapshot(init_pid, start)
        running = _running(tree)
        if not running:
            return tree
        if time.monotonic() > deadline:
            raise ReclaimError(
                Reason.TIMED_OUT, step="stop", seconds=timeout, detail=_names(running)
            )
        for process in running:
            processes.send(process, signal.SIGSTOP)
        # No event reports the stop of another's child; it takes microseconds.
        time.sleep(0.002)


def bystanders(tree: Snapshot) -> list[Process]:
    """Everything alive in the session's pid namespace but its tree.

    The init is among them unless it is as much root as we are: then it is ours (local
    placement), and what could have changed it could change us.
    """
    init = tree.init
    mine = {process.pid for process in tree.processes}
    effective = int(procfs.status(init.pid).get("CapEff", "0"), 16)
    if init.uid == 0 and not capabilities.own() & ~effective:
        mine.add(init.pid)
    return [
        one
        for one in processes.inhabitants(init)
        if one.pid not in mine and one.state not in processes.DEAD
    ]


def stopped_before(tree: Snapshot) -> frozenset[int]:
    """The pids, in the session's namespace, of all processes stopped as of now."""
    others = bystanders(tree)
    return tree.stopped | {one.ns_pid for one in others if one.stopped}


def freeze(init_pid: int, start: int, *, timeout: float) -> list[Process]:
    """Stop all processes in the session's pid namespace, new ones included.

    A shell is stopped before the program in its foreground, which it would otherwise
    see stop, and take the terminal away from it.

    Args:
        init_pid: of the session.
        start: its init's start time.
        timeout: seconds.

    Returns:
        Those beside the tree that were stopped by this.

    Raises:
        NotFound: there is no such init.
        ReclaimError: a process still ran when the time was up.
    """
    deadline = time.monotonic() + timeout
    done: dict[tuple[int, int], Process] = {}
    while True:
        tree = processes.snapshot(init_pid, start)
        others = bystanders(tree)
        late = [one for one in others if not one.stopped and not _is_ending(one)]
        running = _running(tree)
        if not late and not running:
            return list(done.values())
        if time.monotonic() > deadline:
            raise _late(late, running, timeout)
        for one in late:
            done[one.pid, one.start_time] = one
            processes.send(one, signal.SIGSTOP)
        # A parent in vfork(2) stops only when its child has gone on.
        waits = {one.pid for one in running if one.state == "D"}
        for one in running:
            if one.ppid not in waits:
                _stop(one)
        # No event reports the stop of another's child; it takes microseconds.
        time.sleep(0.002)


def go_on(some: Iterable[Process]) -> None:
    """Continue the processes that :func:`freeze` has stopped beside a tree."""
    some = list(some)
    for one in some:
        processes.send(one, signal.SIGCONT)
    processes.wake_parents(some)


def _stop(process: Process) -> None:
    if not processes.send(process, signal.SIGSTOP):
        return
    if procfs.has_terminal(process.pid):
        deadline = time.monotonic() + _SHELL_SECONDS
        while not processes.is_stopped(process) and time.monotonic() < deadline:
            time.sleep(0.0005)  # nothing tells; its foreground program comes next


def _late(late: list[Process], running: list[Process], seconds: float) -> ReclaimError:
    if late:
        one = late[0]
        return ReclaimError(
            Reason.BESIDE_RUNNING, pid=one.ns_pid, name=one.name, detail=_names(late)
        )
    return ReclaimError(
        Reason.TIMED_OUT, step="stop", seconds=seconds, detail=_names(running)
    )


def gone_on(tree: Snapshot, captured: Collection[int]) -> str:
    """Processes of a captured tree that run or are new; empty when it is stopped.

    A process that has died since harms nothing: what is saved is whole. Processes of a
    session that is being killed do not count, since they run to their end.

    Args:
        tree: as it is now.
        captured: the pids, in the session's namespace, that were saved.
    """
    if _is_ending(tree.init):
        return ""
    new = [process for process in _alive(tree) if process.ns_pid not in captured]
    return _names(new or _running(tree))


def _alive(tree: Snapshot) -> list[Process]:
    return [p for p in tree.processes if p.state not in processes.DEAD]


def _running(tree: Snapshot) -> list[Process]:
    return [p for p in _alive(tree) if not p.stopped and not _is_ending(p)]


def _is_ending(process: Process) -> bool:
    """Whether it is exiting, or has SIGKILL pending."""
    fields = procfs.stat(process.pid)
    if len(fields) <= _FLAGS or int(fields[_FLAGS]) & _PF_EXITING:
        return True
    status = procfs.status(process.pid)
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return bool(pending & _SIGKILL)


def _names(some: list[Process]) -> str:
    return ", ".join(f"{process.ns_pid} ({process.name})" for process in some[:3])
