"""A tree that must not run now: brought to a stand, or looked at whether it stands.

Called by the agent's release and kill, and after a restore. A user may wake his own
processes at any moment, so that a tree was stopped once proves nothing later. It ends
and thaws nothing.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.engine import processes, procfs
from jupyterhub_gpu_reclaim.errors import ReclaimError
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.engine.processes import Process, Snapshot

#: Field of /proc/<pid>/stat, counted from the state (proc(5), flags), and its bit.
_FLAGS, _PF_EXITING = 6, 0x4
_SIGKILL = 1 << (signal.SIGKILL - 1)


def stop(init_pid: int, start: int, *, timeout: float) -> Snapshot:
    """Stop everybody below that init, whoever is made meanwhile, too; the tree then.

    Raises:
        NotFound: there is no such init.
        ReclaimError: somebody still ran when the time (seconds) was up.
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
        # Nothing tells when a process of somebody else's stops; it takes microseconds.
        time.sleep(0.002)


def gone_on(tree: Snapshot, captured: Collection[int]) -> str:
    """Who of a captured tree runs, or has been made since; empty when it stands.

    Somebody who has died since harms nothing: what is saved is whole. Nor does it
    count what runs in a session that is being killed, since it runs to its end.

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
    """Whether it is on its way out, or has been told to go by SIGKILL."""
    fields = procfs.stat(process.pid)
    if len(fields) <= _FLAGS or int(fields[_FLAGS]) & _PF_EXITING:
        return True
    status = procfs.status(process.pid)
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return bool(pending & _SIGKILL)


def _names(some: list[Process]) -> str:
    return ", ".join(f"{process.ns_pid} ({process.name})" for process in some[:3])
