"""Expiry notice: says, once and in time, that a checkpoint will be deleted.

It writes a line into the audit log, from which notices and a user's history are made,
and deletes nothing. A checkpoint that goes because of a quota goes at once, without a
notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.checkpoints.retention import kept_of
from jupyterhub_gpu_reclaim.controlplane.journal import audit_log, columns
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE
from jupyterhub_gpu_reclaim.policy.retention import drop

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.policy.retention import Retention

_MARK = "deletion:"


def forewarn(sessions: Sessions, retention: Retention, ahead: float) -> None:
    """Announce every checkpoint that expires within so many seconds.

    Args:
        sessions: where journal and clock are.
        retention: the administrator's limits.
        ahead: seconds; what was kept for less than that is not announced. 0: nothing.

    Raises:
        StoreError: the journal does not answer; what was announced stays announced.
    """
    if not ahead:
        return
    journal, now = sessions.journal, sessions.clock.now()
    rows = {row.id: row for row in journal.checkpoints()}
    told = audit_log.marks(journal, _MARK)
    gone = [name for name in told if name.removeprefix(_MARK) not in rows]
    journal.write(*[each for name in gone for each in audit_log.set_mark(name, None)])
    for checkpoint, at in _ends(sessions, retention, now + ahead).items():
        row = rows[checkpoint]
        if _MARK + checkpoint in told or at - row.changed <= ahead:
            continue
        line = sessions.audit_line(
            row.key, SERVICE, "deletion ahead", _message(row, at - now)
        )
        journal.write(
            columns.insert_audit(line),
            *audit_log.set_mark(_MARK + checkpoint, now),
        )


def _ends(sessions: Sessions, retention: Retention, until: float) -> dict[str, float]:
    """Checkpoints that expire until then, and when."""
    kept = kept_of(sessions)
    aged = {each.id for each in drop(kept, retention, until)}
    ends = {
        each.id: each.suspended + retention.seconds
        for each in kept
        if each.id in aged and retention.seconds
    }
    for row in sessions.journal.checkpoints():
        if row.keeping is Keeping.ASIDE and row.expires is not None:
            ends[row.id] = min(row.expires, ends.get(row.id, row.expires))
    now = sessions.clock.now()
    return {name: at for name, at in ends.items() if now < at <= until}


def _message(row: CheckpointRow, left: float) -> str:
    what = "What was put aside"
    if row.keeping is Keeping.CURRENT:
        what = "The only checkpoint of this session"
    return f"{what} is deleted in {duration(left)}."
