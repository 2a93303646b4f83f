"""Deletes expired checkpoints, and those beyond the administrator's limits.

Until when each is kept is computed (``retention.py``). A checkpoint that a session
still needs is not deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.kept_bytes import keeps
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane import retention, schema
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    Intent,
    Keeping,
    SessionEvent,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.policy.retention import Dropped, Kept, Use, drop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.policy.retention import Retention


_log = logging.getLogger(__name__)
_LIVE = {*LIVE, Phase.SUSPENDING}


def to_delete(sessions: Sessions, checkpoint: str) -> list[CheckpointRow]:
    """Return a known checkpoint's row, and those that it superseded, to be deleted."""
    row = sessions.journal.checkpoint(checkpoint)
    if row is None:
        return []
    needed = row.keeping in {Keeping.CURRENT, Keeping.SUPERSEDED}
    gone = [
        each
        for each in sessions.journal.checkpoints(row.key)
        if needed and each.stamp < row.stamp and each.keeping is Keeping.SUPERSEDED
    ]
    return [each.kept(Keeping.TO_DELETE) for each in (row, *gone)]


async def collect(sessions: Sessions) -> None:
    """Delete expired checkpoints; a failed deletion is tried again.

    For a session that was not found to be as the journal says, only a person's order is
    enough: what looks superseded may be all there is. Of the checkpoints that a session
    came from, the oldest goes first, and only while the session is seen to run.
    """
    stuck: set[SessionKey] = set()
    for due in _due(sessions):
        runtime = sessions.runtime(due.key)
        if due.keeping is not Keeping.TO_DELETE and not runtime.compared:
            continue
        if due.keeping is Keeping.SUPERSEDED and due.key in stuck:
            continue
        row = sessions.journal.session(due.key)
        living = row if row is not None and row.phase in _LIVE else None
        if row is not None and row.checkpoint == due.id and not living:
            continue
        superseded = due.keeping is Keeping.SUPERSEDED
        runs = living.incarnation if superseded and living else ""
        if runs and not await _is_running(sessions, runs):
            stuck.add(due.key)
            continue
        if row is not None and superseded and due.name:
            needed = "" if row.checkpoint == due.id else row.checkpoint
            aside = [sessions.aside(due)]
            sessions.update(row.key, checkpoints=aside, checkpoint=needed)
            continue
        try:
            # It may end before a late order arrives: its agent looks once more.
            await sessions.agent.order(due.id, orders.Discard(runs=runs))
        except Unreachable:
            return
        except ReclaimError as error:
            _log.warning("%s: checkpoint %s not deleted: %s", due.key, due.id, error)
            stuck.add(due.key)
            continue
        _log.info("%s: checkpoint %s deleted (%s)", due.key, due.id, due.keeping.value)
        sessions.journal.drop(due.id)
        sessions.runtime(due.key).deleted |= {due.id}
        after = sessions.journal.session(due.key)
        if after is not None and after.checkpoint == due.id and after.phase in _LIVE:
            sessions.update(due.key, checkpoint="")
        else:
            sessions.touch(due.key)


def _due(sessions: Sessions) -> list[CheckpointRow]:
    """Return the expired ones, and older ones: a clock may have jumped in between."""
    rows, now = sessions.journal.checkpoints(), sessions.clock.now()
    expired = {row.id for row in rows if row.expires is not None and row.expires <= now}
    current = {row.checkpoint for row in sessions.journal.sessions()}
    newest = {
        row.key: row.stamp
        for row in rows
        if row.id in expired and row.keeping is Keeping.SUPERSEDED
    }
    return [
        row
        for row in rows
        if row.id in expired
        or (
            row.keeping is Keeping.SUPERSEDED
            and row.id not in current
            and row.stamp < newest.get(row.key, row.stamp)
        )
    ]


async def _is_running(sessions: Sessions, incarnation: str) -> bool:
    try:
        return (await sessions.agent.tree(incarnation)).lives
    except ReclaimError:
        return False


def _drop_of_deleted_users(
    kept: Iterable[Kept], rows: Mapping[str, CheckpointRow], now: float
) -> list[Dropped]:
    why = "A program deleted its user, who has not come back."
    times = ((each, rows[each.id].expires) for each in kept if each.use is Use.CURRENT)
    return [
        Dropped(each.id, why) for each, end in times if end is not None and end <= now
    ]


def retain(sessions: Sessions, limits: Retention) -> None:
    rows = {row.id: row for row in sessions.journal.checkpoints()}
    now = sessions.clock.now()
    kept_now = kept_of(sessions)
    dropped = {each.id: each for each in _drop_of_deleted_users(kept_now, rows, now)}
    dropped |= {each.id: each for each in drop(kept_now, limits, now)}
    for each in dropped.values():
        row = rows[each.id]
        if not sessions.runtime(row.key).compared:
            continue  # what looks superseded may be all there is
        if row.keeping is Keeping.CURRENT:
            gone = failure_of(Reason.SAVED_DROPPED, why=each.why)
            discard(sessions, row.key, row.id, failure=gone)
        else:
            line = sessions.audit_line(row.key, SERVICE, "retention", each.why)
            sessions.keep(row.key, to_delete(sessions, each.id), line)


def discard(
    sessions: Sessions,
    key: SessionKey,
    checkpoint: str,
    *,
    by: str = SERVICE,
    failure: Failure | None = None,
) -> None:
    sessions.apply(
        key,
        SessionEvent.DISCARDED,
        by=by,
        failure=failure,
        checkpoints=to_delete(sessions, checkpoint),
        checkpoint="",
    )


def kept_of(sessions: Sessions) -> list[Kept]:
    standing = {row.key: row for row in sessions.journal.sessions()}
    return [
        Kept(
            row.id,
            row.key,
            keeps(row.info),
            row.info.created,
            _use(row, standing.get(row.key)),
        )
        for row in sessions.journal.checkpoints()
        if row.keeping is not Keeping.TO_DELETE
    ]


def _use(row: CheckpointRow, session: SessionRow | None) -> Use:
    if row.keeping is Keeping.ASIDE:
        return Use.SPARE
    if row.keeping is not Keeping.CURRENT or session is None:
        return Use.BUSY
    rests = session.phase is Phase.SUSPENDED and session.intent is Intent.NONE
    return Use.CURRENT if rests and session.checkpoint == row.id else Use.BUSY


def give_notice(sessions: Sessions, limits: Retention, ahead: float) -> None:
    """Announce every checkpoint that expires within so many seconds.

    What was saved less than that before is not announced.
    """
    journal, now = sessions.journal, sessions.clock.now()
    rows = {row.id: row for row in journal.checkpoints()}
    announced = journal.notes(NoteKind.EXPIRY, float)
    journal.forget_notes(NoteKind.EXPIRY, *(announced.keys() - rows.keys()))
    for checkpoint, at in _expiries(sessions, limits, now + ahead).items():
        row = rows[checkpoint]
        if checkpoint in announced or at - row.info.created <= ahead:
            continue
        line = sessions.audit_line(
            row.key, SERVICE, "deletion ahead", _message(row, at - now)
        )
        journal.write(
            *schema.insert_audit(line),
            *schema.note(NoteKind.EXPIRY, checkpoint, now),
        )


def _expiries(sessions: Sessions, limits: Retention, until: float) -> dict[str, float]:
    kept = kept_of(sessions)
    aged = {each.id for each in drop(kept, limits, until)}
    ends = {
        each.id: each.suspended + limits.seconds
        for each in kept
        if each.id in aged and limits.seconds
    }
    for row in sessions.journal.checkpoints():
        hidden = retention.is_hidden(sessions.row(row.key), row)
        if row.keeping is Keeping.ASIDE and row.expires is not None and not hidden:
            ends[row.id] = min(row.expires, ends.get(row.id, row.expires))
    now = sessions.clock.now()
    return {name: at for name, at in ends.items() if now < at <= until}


def _message(row: CheckpointRow, left: float) -> str:
    what = "What was put aside"
    if row.keeping is Keeping.CURRENT:
        what = "The only checkpoint of this session"
    return f"{what} is deleted in {duration(left)}."
