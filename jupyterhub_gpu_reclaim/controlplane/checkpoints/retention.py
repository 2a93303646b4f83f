"""Carries out the retention policy: marks what is no longer kept.

``expiry.collect`` then deletes what is marked. If a session's only checkpoint goes,
where
the administrator allows that, the session's row says so. The limits themselves are in
``policy/retention.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.model.phases import Happened
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE
from jupyterhub_gpu_reclaim.policy.retention import Kept, Use, drop

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.policy.retention import Retention


def retain(sessions: Sessions, retention: Retention) -> None:
    """Mark what is beyond the administrator's limits.

    Raises:
        StoreError: the journal could not be written; what was marked is marked.
    """
    rows = {row.id: row for row in sessions.journal.checkpoints()}
    for each in drop(kept_of(sessions), retention, sessions.clock.now()):
        row = rows[each.id]
        if not sessions.runtime(row.key).compared:
            continue  # what looks superseded may be all there is
        doomed = expiry.kept(sessions, each.id, Keeping.DOOMED, seconds=0)
        if row.keeping is Keeping.CURRENT:
            sessions.apply(
                row.key,
                Happened.DISCARDED,
                failure=codec.failure_of(Refused(Reason.SAVED_DROPPED, why=each.why)),
                checkpoints=doomed,
                checkpoint="",
                dismissed=row.id,
                intent=Intent.NONE,
            )
        else:
            line = sessions.audit_line(row.key, SERVICE, "retention", each.why)
            sessions.journal.keep(doomed)
            sessions.update(row.key, line)


def kept_of(sessions: Sessions) -> list[Kept]:
    """Every checkpoint that is kept, as the policy sees it."""
    standing = {row.key: row for row in sessions.journal.sessions()}
    return [
        _as_kept(row, standing.get(row.key))
        for row in sessions.journal.checkpoints()
        if row.keeping is not Keeping.DOOMED
    ]


def _as_kept(row: CheckpointRow, session: SessionRow | None) -> Kept:
    """A checkpoint and its use, as the policy sees them."""
    size, suspended = 0, row.changed
    if row.info is not None:
        size, suspended = row.info.stored_bytes, row.info.created
    return Kept(row.id, row.key, size, suspended, _use(row, session))


def _use(row: CheckpointRow, session: SessionRow | None) -> Use:
    if row.keeping is Keeping.ASIDE:
        return Use.SPARE
    if row.keeping is not Keeping.CURRENT or session is None:
        return Use.BUSY
    rests = session.phase is Phase.SUSPENDED and session.intent is Intent.NONE
    return Use.CURRENT if rests and session.checkpoint == row.id else Use.BUSY
