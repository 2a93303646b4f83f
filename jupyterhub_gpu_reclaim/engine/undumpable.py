"""Keep a tree's memory from its own user for as long as root works in it.

A user may write into the memory of his processes (ptrace(2), ``/proc/PID/mem``), also
from outside of the session, as by ssh. CRIU (4.2: ``__export_restore_thread``) gives
each thread of a process back its user by itself, and all of them share their memory: as
soon as the first one is the user's, he could write what the others run as root. The
kernel refuses it for a process that is not "dumpable" (prctl(2)), which every process
is that CRIU makes here, until all of its threads are their user's.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.engine import ptrace
from jupyterhub_gpu_reclaim.errors import ReclaimError
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.engine.credentials import Credentials
    from jupyterhub_gpu_reclaim.engine.processes import Snapshot

#: Seconds in which the threads of one process must stand still, and it do its call.
SECONDS: Final = 10.0
_PRCTL: Final = 157  # x86-64
_PR_SET_DUMPABLE: Final = 4


def close(memory: Any, who: Credentials) -> bool:
    """Have CRIU make a process that is not dumpable; whether it was before. Pure.

    Args:
        memory: its ``mm_entry``, changed in place.
        who: its user. Root's memory is nobody else's in any case.
    """
    if who.uid == 0 or memory.dumpable != 1 or platform.machine() != "x86_64":
        return False
    memory.dumpable = 0
    return True


def open_again(tree: Snapshot, closed: Collection[int]) -> None:
    """Make processes dumpable as they were; they are stopped and stay so.

    Args:
        tree: its processes.
        closed: their pids, in the session's namespace.

    Raises:
        ReclaimError: one could not be made so (``restore_failed``).
    """
    for process in tree.processes:
        if process.ns_pid not in closed:
            continue
        try:
            with ptrace.stopped(process.pid, seconds=SECONDS) as traced:
                traced.call(_PRCTL, _PR_SET_DUMPABLE, 1, 0, 0, 0)
        except OSError as error:
            why = f"process {process.ns_pid} could not be given to its user"
            raise ReclaimError(
                Reason.RESTORE_FAILED, why=why, detail=str(error)
            ) from error
