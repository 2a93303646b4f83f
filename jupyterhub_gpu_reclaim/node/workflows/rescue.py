"""Continues sessions that have no agent: without settings, store and keys.

Each agent calls :func:`first_act` before it reads a setting: trees of uncommitted
captures go on. :func:`everything` is for when no agent comes (the unit was stopped, an
agent could not start): captured trees go on, too, and naps are ended. Both need only
the agent's state folder, and do nothing while another agent has its lock.

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
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.linux import ptrace
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
from jupyterhub_gpu_reclaim.node.operations.records import (
    NapStage,
    Record,
    Records,
    Stage,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.sessions.placement_kinds import make_placements
from jupyterhub_gpu_reclaim.node.state_folder import HELD, RECORDS, LastStart
from jupyterhub_gpu_reclaim.node.workflows import nap, recovery
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements

_log = logging.getLogger(__name__)

#: What stands still, or may.
FROZEN: Final = recovery.UNCOMMITTED | {Stage.CAPTURED}
#: Seconds for the first act: what takes longer goes on beside the agent that starts.
_FIRST_SECONDS: Final = 20.0
#: The unit gives what is run at its end 120.
SECONDS: Final = 100.0


def first_act(state: Path) -> None:
    """Continue sessions in the middle of a capture; never raises."""
    _attempt_all(state, recovery.UNCOMMITTED, wakes=False, seconds=_FIRST_SECONDS)


def everything(state: Path) -> bool:
    """Continue, and wake, all that an agent has stopped; whether all of it goes on."""
    return _attempt_all(state, FROZEN, wakes=True, seconds=SECONDS)


def _attempt_all(
    state: Path, stages: frozenset[Stage], *, wakes: bool, seconds: float
) -> bool:
    try:
        if os.geteuid() != 0 or not (state / RECORDS).is_dir():
            return True  # no agent has worked here
        logs.set_up()
        with state_folder.lock(state) as free:
            if not free:
                return True  # an agent does it
            give_back(state)
            last = LastStart.read(state)
            if last is None:
                return True
            return rescue(state, last, stages, wakes=wakes, seconds=seconds)
    except Exception:  # noqa: BLE001 - an agent that can start shall
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


def rescue(
    state: Path,
    last: LastStart,
    stages: frozenset[Stage],
    *,
    wakes: bool,
    seconds: float = SECONDS,
) -> bool:
    """Let sessions go on; whether all of them do. Repeat at will.

    The caller holds the lock of the agent's folder. ``stages`` are of the captures that
    are to be undone. It returns after so many seconds, even if a session takes longer.
    """
    records = Records(state / RECORDS)
    placements = make_placements(last.placement, last.realm, last.docker_socket)
    accelerator = Accelerator(
        Driver(),
        Nvml(),
        lock_seconds=last.gpu_lock_seconds,
        seconds=last.dump_seconds,
        room_seconds=0.0,  # no agent can start as long as this lasts
    )
    works = []
    for record in records.list():
        frozen, naps = record.stage in stages, wakes and record.nap is not None
        if not frozen and not naps:
            continue
        session = _session_of(placements, record)
        if session is not None:
            about = (session, record, records, accelerator)
            works.append(partial(_rescue_one, *about, frozen=frozen, naps=naps))
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


def _session_of(placements: Placements, record: Record) -> Session | None:
    try:
        if record.hint.pod:
            placements.set_hint(record.incarnation, record.hint)
        session = placements.find(record.incarnation)
        if trees.matches(record, session):
            return session
    except NotFound:
        pass
    return None


def _rescue_one(
    session: Session,
    record: Record,
    records: Records,
    accelerator: Accelerator,
    *,
    frozen: bool,
    naps: bool,
) -> bool:
    """Let one session go on; whether nothing is left to do."""
    try:
        if frozen:
            recovery.end_criu(session, TimeLimits().criu)
            if recovery.undo_unasked(session, record, records, accelerator):
                _log.warning("%s goes on: no agent looked after it", record.key)
        if naps and _wake(session, record, records, accelerator):
            _log.warning("%s is woken: no agent looked after it", record.key)
    except NotFound:
        pass  # it has ended
    except (ReclaimError, OSError) as error:
        _log.error("%s does not go on, and no agent runs: %s", record.key, error)
        return False
    return True


def _wake(
    session: Session, record: Record, records: Records, accelerator: Accelerator
) -> bool:
    record = records.find(record.incarnation) or record
    if not record.naps and record.stage not in FROZEN:
        return False  # it is being ended, or brought back
    whole = record.nap_at(NapStage.WAKING)
    nap.end_nap(accelerator, session, whole)
    records.save(whole.woken())
    return True
