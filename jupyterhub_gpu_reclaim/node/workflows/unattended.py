"""Thaws frozen sessions, and wakes those that nap, where no agent runs any more.

The caller (``watchdog``) holds the agent's lock. A session gets its GPU memory back
first, or all of it stays frozen. It never touches a checkpoint and never ends a
program: the record that it leaves says that the capture is being rolled back, so that
the next agent drops the checkpoint, which is older than what runs. A tree that was
being restored or ended is left alone; there the checkpoint is what counts.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.records import (
    NapStage,
    Record,
    Records,
    Stage,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.sessions.placement_kinds import make_placements
from jupyterhub_gpu_reclaim.node.sessions.placements import (
    Placements,
    PodHint,
    Session,
)
from jupyterhub_gpu_reclaim.node.watchdog import RECORDS
from jupyterhub_gpu_reclaim.node.workflows import capture, nap, recovery
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.node.watchdog import Watched

_log = logging.getLogger(__name__)

_FROZEN = frozenset({Stage.CAPTURING, Stage.ROLLING_BACK, Stage.CAPTURED})
#: Of these all was stopped; who runs has been thawed, or woken by its user.
_STANDING = frozenset({Stage.CAPTURED})


def thaw_all(watched: Watched) -> bool:
    """Thaw every frozen tree; whether none is left. Repeat at will."""
    logs.set_up()
    records = Records(watched.state / RECORDS)
    placements = make_placements(watched.placement, watched.realm)
    accelerator = Accelerator(
        Driver(),
        Nvml(),
        lock_seconds=watched.gpu_lock,
        seconds=watched.dump,
        room_seconds=0.0,  # no agent can start as long as this lasts
    )
    done = True
    try:
        for record in records.list():
            session = _session_of(placements, record)
            if session is None:
                continue
            well = True
            about = (session, record, records, accelerator)
            if record.stage in _FROZEN:
                thaw = partial(_thaw, *about, watched.criu)
                well = _attempt(record, thaw, done="thawed", otherwise="stays frozen")
            if well and record.nap is not None:
                wake = partial(_wake, *about)
                well = _attempt(record, wake, done="woken", otherwise="naps on")
            done &= well
    finally:
        accelerator.close()
    return done


def _session_of(placements: Placements, record: Record) -> Session | None:
    """The session of a record; None where it has ended."""
    try:
        if record.pod:
            placements.set_hint(
                record.incarnation, PodHint(pod=record.pod, key=record.key)
            )
        session = placements.find(record.incarnation)
        if trees.matches(record, session):
            return session
    except NotFound:
        pass
    return None


def _attempt(
    record: Record, work: Callable[[], bool], *, done: str, otherwise: str
) -> bool:
    """Do it, and say what became of it; return whether nothing is left to do.

    Args:
        record: of the session.
        work: returns whether there was something to do.
        done: what to say of the session then.
        otherwise: what to say of it after an error.
    """
    try:
        if work():
            _log.warning("%s %s: its agent did not come back", record.key, done)
    except NotFound:
        pass  # it has ended
    except (ReclaimError, OSError) as error:
        _log.error("%s %s, and no agent runs: %s", record.key, otherwise, error)
        return False
    return True


def _is_frozen(session: Session, record: Record) -> bool:
    """Whether we have stopped some of it; a capture stops one program after another."""
    tree = trees.inspect(session)
    return not tree.stopped <= set(trees.left_stopped(record, tree))


def _thaw(
    session: Session,
    record: Record,
    records: Records,
    accelerator: Accelerator,
    criu_seconds: float,
) -> bool:
    """Thaw one tree; return whether it was frozen."""
    recovery.end_criu(session, criu_seconds)
    # A capture under way cuts connections before it stops anything.
    if record.stage in _STANDING and not _is_frozen(session, record):
        return False
    # First: a tree that runs beside a record that calls it captured is released.
    records.save(record.at(Stage.ROLLING_BACK, record.steps))
    capture.thaw_tree(accelerator, session, record, together=True)
    return True


def _wake(
    session: Session, record: Record, records: Records, accelerator: Accelerator
) -> bool:
    """End the nap of one session; return whether it napped."""
    record = records.find(record.incarnation) or record
    if not record.naps and record.stage not in _FROZEN:
        return False  # it is being ended, or brought back
    whole = record.nap_at(NapStage.WAKING)
    nap.end_nap(accelerator, session, whole)
    records.save(whole.woken())
    return True
