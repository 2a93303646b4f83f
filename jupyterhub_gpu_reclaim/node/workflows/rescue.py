"""Continues sessions that have no agent: without settings, store and keys.

Each agent calls :func:`first_act` before it opens the store: trees of uncommitted
captures go on. :func:`everything` is for when no agent comes (the unit was stopped, an
agent could not start): captured trees go on, too, and naps are ended. Both need only
the agent's state folder, and are not for a folder whose lock another agent has.

It never touches a checkpoint and never ends a program. Its record says that the capture
is being rolled back, so that the next agent drops the checkpoint, which is older than
the programs. A tree that was being restored or ended is left alone: there the
checkpoint counts. A session gets its GPU memory back first, or all of it stays stopped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.linux import ptrace
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
from jupyterhub_gpu_reclaim.node.operations.records import Records
from jupyterhub_gpu_reclaim.node.state_folder import HELD, RECORDS
from jupyterhub_gpu_reclaim.node.workflows.recovery import let_go_on
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_log = logging.getLogger(__name__)

#: Seconds for the first act: what takes longer goes on beside the agent that starts.
_FIRST_SECONDS: Final = 20.0
#: The unit gives what is run at its end 120.
SECONDS: Final = 100.0


def first_act(state: Path) -> None:
    """Continue sessions in the middle of a capture; the lock is the caller's."""
    give_back(state)
    rescue(state, whole=False, seconds=_FIRST_SECONDS)


def everything(state: Path) -> bool:
    """Continue, and wake, all that an agent has stopped; whether all of it goes on."""
    try:
        if os.geteuid() != 0 or not (state / RECORDS).is_dir():
            return True  # no agent has worked here
        logs.set_up()
        with state_folder.lock(state) as free:
            if not free:
                return True  # an agent does it
            give_back(state)
            return rescue(state, whole=True, seconds=SECONDS)
    except Exception:  # noqa: BLE001 - the agent's own end is told with its own reason
        _log.exception("- sessions cannot be let go on without an agent")
        return False


def give_back(state: Path) -> None:
    """Restore threads that a killed agent was making call; idempotent.

    Before anything is continued. Calls of this agent are noted from here on. Its caller
    holds the folder's lock.

    Raises:
        OSError: the folder cannot be written.
    """
    ptrace.kept.use(state / HELD)
    for error in ptrace.give_back():
        _log.error("- a thread that was made to call did not get all back: %s", error)


def rescue(state: Path, *, whole: bool, seconds: float) -> bool:
    """Let sessions go on; whether all of them do. Repeat at will.

    The caller holds the lock of the agent's folder. ``whole``: as of :func:`let_go_on`.
    It returns after so many seconds, even if a session takes longer.
    """
    records = Records(state / RECORDS)
    limits = TimeLimits(room=0.0)  # no agent can start as long as this lasts
    accelerator = Accelerator(Driver(), Nvml(), limits)
    works = [
        partial(let_go_on, record, records, accelerator, whole=whole)
        for record in records.list()
    ]
    done = _all_at_once(works, seconds)
    if done is not None:
        accelerator.close()
    return bool(done)


def _all_at_once(works: Iterable[Callable[[], bool]], seconds: float) -> bool | None:
    """Whether all of them succeed; None if some are not done in time."""
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda work=work: results.append(work()), daemon=True)
        for work in works
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        return None
    return len(results) == len(threads) and all(results)
