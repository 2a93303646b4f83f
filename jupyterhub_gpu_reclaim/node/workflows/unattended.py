"""Thaws frozen sessions where no agent runs any more.

The caller (``watchdog``) holds the agent's lock. A session gets its GPU memory back
first, or all of it stays frozen. It never touches a checkpoint and never ends a
program: the record that it leaves says that the capture is being rolled back, so that
the next agent drops the checkpoint, which is older than what runs. A tree that was
being restored or ended is left alone; there the checkpoint is what counts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.sessions.placements import (
    Placements,
    PodHint,
    Session,
    make_placements,
)
from jupyterhub_gpu_reclaim.node.watchdog import RECORDS
from jupyterhub_gpu_reclaim.node.workflows import capture, recovery
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.node.watchdog import Watched

_log = logging.getLogger(__name__)

_FROZEN = frozenset(
    {Stage.CAPTURING, Stage.ROLLING_BACK, Stage.CAPTURED, Stage.THAWING}
)


def thaw_all(watched: Watched) -> bool:
    """Thaw every frozen tree; whether none is left. Repeat at will."""
    logs.set_up()
    records = Records(watched.state / RECORDS)
    placements = make_placements(watched.placement, watched.realm)
    accelerator = Accelerator(
        Driver(), Nvml(), lock_seconds=watched.gpu_lock, seconds=watched.dump
    )
    done = True
    try:
        for record in records.list():
            session = _frozen(placements, record)
            if session is not None:
                done &= _thaw(session, record, records, accelerator, watched.criu)
    finally:
        accelerator.close()
    return done


def _frozen(placements: Placements, record: Record) -> Session | None:
    """The session of a record, if it is to be thawed; None where it is not frozen."""
    if record.stage not in _FROZEN:
        return None
    try:
        if record.pod:
            placements.set_hint(
                record.incarnation, PodHint(pod=record.pod, key=record.key)
            )
        session = placements.find(record.incarnation)
        if trees.matches(record, session) and not recovery.is_running(session):
            return session
    except NotFound:
        pass
    return None


def _thaw(
    session: Session,
    record: Record,
    records: Records,
    accelerator: Accelerator,
    criu_seconds: float,
) -> bool:
    """Thaw one tree; return whether that succeeded."""
    try:
        recovery.end_criu(session, criu_seconds)
        # First: a tree that runs beside a record that calls it captured is released.
        records.save(record.at(Stage.ROLLING_BACK, record.steps))
        capture.thaw_tree(accelerator, session, record, together=True)
    except NotFound:
        return True
    except (ReclaimError, OSError) as error:
        _log.error("%s stays frozen, and no agent runs: %s", record.key, error)
        return False
    _log.warning("%s thawed: its agent did not come back", record.key)
    return True
