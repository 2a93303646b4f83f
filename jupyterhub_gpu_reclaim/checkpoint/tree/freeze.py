"""Freezes a tree, checks that it is frozen, and thaws it as if nothing had been.

A user may wake his own processes at any moment, so a tree that was stopped once may run
later. Before CRIU enters a session, everything in its pid namespace is stopped: also
its init, where that is its user's own (in a container), and what was started beside the
tree (``docker exec``, another container that shares the namespace). No process is left
there that could observe CRIU or write to the memory that it works with.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, listeners
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, continuing, processes, procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import TCP_REPAIR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: Field of /proc/<pid>/stat, counted from the state (proc(5), flags), and its bit.
_FLAGS, _PF_EXITING = 6, 0x4
#: Seconds; a process that has taken its signal and is not stopped by then may have been
#: continued by its user.
_AGAIN_SECONDS = 0.25
#: How long a shell may take to stop, before its programs are stopped all the same.
_SHELL_SECONDS = 0.2
_SIGKILL = 1 << (signal.SIGKILL - 1)
_SIGSTOP = 1 << (signal.SIGSTOP - 1)


def stop(init_pid: int, start: int, *, timeout: float) -> Snapshot:
    """Stop all processes below that init, new ones included; return the tree then.

    Raises:
        NotFound: there is no such init.
        ReclaimError: a process still ran when the time (seconds) was up.
    """
    return freeze(init_pid, start, timeout=timeout, beside=False)[0]


def bystanders(tree: Snapshot, inside: Iterable[Process]) -> list[Process]:
    """Everything alive of the session's pid namespace but its tree.

    The init is among them unless it is as much root as we are: then it is ours (local
    placement), and what could have changed it could change us.
    """
    init = tree.init
    mine = {process.pid for process in tree.processes}
    effective = int(procfs.status(init.pid).get("CapEff", "0"), 16)
    if init.uid == 0 and not capabilities.own() & ~effective:
        mine.add(init.pid)
    return [
        one for one in inside if one.pid not in mine and one.state not in processes.DEAD
    ]


def stopped_before(tree: Snapshot) -> frozenset[int]:
    others = bystanders(tree, processes.inhabitants(tree.init))
    return tree.stopped | {one.ns_pid for one in others if one.stopped}


def freeze(
    init_pid: int, start: int, *, timeout: float, beside: bool = True
) -> tuple[Snapshot, list[Process]]:
    """Stop all processes in the session's pid namespace, new ones included.

    A shell is stopped before the program in its foreground, which it would otherwise
    see stop, and take the terminal away from it.

    Returns:
        The tree, and those beside it that were stopped by this.

    Raises:
        NotFound: there is no such init.
        ReclaimError: a process still ran when the time was up.
    """
    deadline = time.monotonic() + timeout
    asked = _Asked()
    done: dict[tuple[int, int], Process] = {}
    while True:
        tree, inside = processes.look(processes.snapshot_init(init_pid, start))
        others = bystanders(tree, inside) if beside else []
        late = [one for one in others if not one.stopped and not _is_ending(one)]
        running = _running(tree)
        if not late and not running:
            return tree, list(done.values())
        if time.monotonic() > deadline:
            raise _late(late, running, timeout)
        for one in asked.due(late):
            done[one.pid, one.start_time] = one
            processes.send(one, signal.SIGSTOP)
        # A parent in vfork(2) stops only when its child has gone on.
        waits = {one.pid for one in running if one.state == "D"}
        for one in asked.due(one for one in running if one.ppid not in waits):
            # A shell's foreground program comes next.
            shell = procfs.terminal(one.pid)
            processes.stop(one, _SHELL_SECONDS if shell else 0.0)
        # No event reports the stop of another's child; it takes microseconds.
        time.sleep(0.002)


class _Asked:
    """Processes asked to stop, so that none is asked twice in the same moment.

    A second signal that comes when the first has been taken waits in the stopped
    process. CRIU (4.2, ``skip_sigstop``) lets such a process take as many signals as it
    has counted stops, but the kernel gives it those with lower numbers first: where the
    end of a child waits as well (SIGCHLD), the stop comes later, in CRIU's own code
    there, and CRIU gives up ("Unexpected … task interruption").
    """

    def __init__(self) -> None:
        self._at: dict[tuple[int, int], float] = {}

    def due(self, some: Iterable[Process]) -> list[Process]:
        """Processes to be asked now: for the first time, or in vain before.

        Not in vain where the signal still waits there, as on a machine that is busy.
        """
        now, due = time.monotonic(), []
        for one in some:
            key = one.pid, one.start_time
            if processes.pending_signals(one.pid) & _SIGSTOP:
                self._at[key] = now
            elif key not in self._at or (
                # Looked at once more: it may have stopped since the snapshot.
                now - self._at[key] >= _AGAIN_SECONDS and not processes.is_stopped(one)
            ):
                self._at[key] = now
                due.append(one)
        return due


def continue_bystanders(some: Iterable[Process]) -> None:
    some = list(some)
    for one in some:
        continuing.go_on(one)
    processes.wake_parents(some)


def _late(late: list[Process], running: list[Process], seconds: float) -> ReclaimError:
    if late:
        one = late[0]
        return ReclaimError(Reason.BESIDE_RUNNING, detail=_names(late), **one.facts)
    return ReclaimError(
        Reason.TIMED_OUT, step="stop", seconds=seconds, detail=_names(running)
    )


def continued(tree: Snapshot, captured: Collection[int]) -> str:
    """Processes of a captured tree that run or are new; empty when it is stopped.

    A process that has died since harms nothing: what is saved is whole. Processes of a
    session that is being killed do not count, since they run to their end.
    """
    if _is_ending(tree.init):
        return ""
    new = [process for process in tree.alive if process.ns_pid not in captured]
    return _names(new or _running(tree))


def _running(tree: Snapshot) -> list[Process]:
    return [p for p in tree.alive if not p.stopped and not _is_ending(p)]


def _is_ending(process: Process) -> bool:
    fields = procfs.stat(process.pid)
    if len(fields) <= _FLAGS or int(fields[_FLAGS]) & _PF_EXITING:
        return True
    return bool(processes.pending_signals(process.pid) & _SIGKILL)


def _names(some: list[Process]) -> str:
    return ", ".join(f"{process.ns_pid} ({process.name})" for process in some[:3])


def thaw(snapshot: Snapshot, keep_stopped: Collection[int] = ()) -> None:
    """Undo what a dump has done to the session, and continue it; idempotent.

    What was stopped before (by pids in the session) stays so.
    """
    for process in snapshot.processes:
        leave_repair(process)
    if snapshot.server is not None:
        # An agent that was killed while it cut connections has left it deaf.
        # It goes on in any case, also where the kernel does not list its sockets.
        with contextlib.suppress(Refused):
            listeners.hear_again(snapshot.init.pid, snapshot.server)
    # First those beside it, the init among them: it is the tree's reaper.
    others = bystanders(snapshot, processes.inhabitants(snapshot.init))
    continue_bystanders(
        one for one in others if one.stopped and one.ns_pid not in keep_stopped
    )
    continuing.resume(snapshot.processes, keep_stopped)


# After a dump that succeeded, CRIU (4.1, 4.2: cr_dump_finish) leaves TCP connections in
# repair mode, which send nothing, since it expects the stopped processes to be killed;
# it undoes that only when the dump failed or the tree continues.
def leave_repair(process: Process) -> None:
    """Take the process's TCP connections out of repair mode."""
    for _, _, end in inet.sockets_in([process]):
        with contextlib.suppress(OSError):
            if end.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
                end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
                # Repair mode has overwritten this one. Set is what a server's
                # connections have, and harms no others.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
