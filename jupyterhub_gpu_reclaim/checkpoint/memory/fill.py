"""Fills the areas of a restored, stopped tree that did not go through CRIU.

The source does the copying. This module decides into which processes and until when,
and checks afterwards that they are still the same processes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.processes import start_time

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import MemoryPlan
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import ImageSource
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot


def copy_all(
    plan: MemoryPlan,
    tree: Snapshot,
    source: ImageSource,
    *,
    limit: float,
    cancel: Cancel | None = None,
) -> None:
    """Write every piece into its process; blocks.

    Raises:
        ReclaimError: a process is not there (any more), time was up, or it was
            cancelled.
        Exception: what the source has raised.
    """
    deadline = time.monotonic() + limit

    def failure() -> ReclaimError | None:
        if cancel is not None and cancel.is_set:
            return ReclaimError(Reason.CANCELLED)
        if time.monotonic() > deadline:
            return ReclaimError(Reason.TIMED_OUT, step="memory", seconds=limit)
        return None

    by_pid = {process.ns_pid: process for process in tree.processes}
    filled = {piece.pid for pieces in plan.pieces.values() for piece in pieces}
    if missing := filled - by_pid.keys():
        raise _gone(min(missing))
    # All at once: a worker that has ended one process goes on with the next.
    here = {
        name: [piece._replace(pid=by_pid[piece.pid].pid) for piece in pieces]
        for name, pieces in plan.pieces.items()
    }
    try:
        source.copy(here, lambda: failure() is not None)
    except Exception as error:
        if (why := failure()) is not None:
            raise why from error
        raise
    if (why := failure()) is not None:
        raise why
    for pid in filled:
        # One that has ended meanwhile: its pid may be another one's.
        if start_time(by_pid[pid].pid) != by_pid[pid].start_time:
            raise _gone(pid)


def _gone(pid: int) -> ReclaimError:
    return ReclaimError(
        Reason.RESTORE_FAILED, why=f"process {pid} was not there to be filled"
    )
