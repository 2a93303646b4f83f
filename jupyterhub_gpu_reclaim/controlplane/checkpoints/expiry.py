"""Says how long each checkpoint is kept, and deletes expired ones.

The functions above :func:`collect` make checkpoint rows, to be written in the same
transaction as the session's. A checkpoint that a session still needs is not deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.kept_bytes import keeps
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.journal import notes, schema
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind
from jupyterhub_gpu_reclaim.controlplane.model import lineage
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    CheckpointRow,
    Intent,
    Keeping,
)
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE
from jupyterhub_gpu_reclaim.policy.retention import Dropped, Kept, Use, drop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Failure,
        SessionKey,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.policy.retention import Retention


_log = logging.getLogger(__name__)
_LIVE = {*LIVE, Phase.SUSPENDING}


def current(info: CheckpointInfo, now: float) -> CheckpointRow:
    """The checkpoint's row while its session is suspended in it; kept without limit."""
    return CheckpointRow(
        id=info.id,
        key=info.key,
        generation=info.generation,
        keeping=Keeping.CURRENT,
        info=msgspec.structs.replace(info, aside=None),  # it is not, now
        changed=now,
    )


def save_point(info: CheckpointInfo, now: float) -> CheckpointRow:
    """The row of a save point of a session that goes on; kept as long as that runs."""
    return msgspec.structs.replace(current(info, now), keeping=Keeping.SUPERSEDED)


def is_fallback(row: CheckpointRow) -> bool:
    """Whether it is kept as long as its session runs, or until there is a newer one."""
    return row.keeping is Keeping.SUPERSEDED and row.expires is None


def until_newer(
    sessions: Sessions, session: SessionRow, row: CheckpointRow | None
) -> bool:
    """Whether a session that goes on keeps it until there is a newer one.

    It is a save point of it, or a rule saves the session.
    """
    own = row is not None and row.is_of(session.incarnation)
    return own or bool(sessions.saved_every(session.key))


def is_unanswered(sessions: Sessions, session: SessionRow) -> bool:
    """Whether what a session came from is kept until it is known to have answered."""
    row = sessions.journal.checkpoint(session.checkpoint)
    fallback = row is not None and is_fallback(row)
    return fallback and not until_newer(sessions, session, row)


def outdated(
    sessions: Sessions,
    key: SessionKey,
    settings: Settings,
    *,
    found: Iterable[CheckpointRow] = (),
    newer: str = "",
) -> list[CheckpointRow]:
    """Return the changed rows of save points, now that there is a newer one.

    The named ones, and the last few of the others, are set aside, where their user
    finds them; the rest is kept for the time of grace.

    Args:
        sessions: where the journal and the clock are.
        key: the session.
        settings: how many are kept, and for how long.
        found: rows of those that the journal does not know yet.
        newer: the newer one, if the journal knows it.
    """
    now, incarnation = sessions.clock.now(), sessions.row(key).incarnation
    known = [row for row in sessions.journal.checkpoints(key) if row.id != newer]
    rows = [*filter(is_fallback, known), *found]
    spare = [
        row for row in known if row.keeping is Keeping.ASIDE and row.is_of(incarnation)
    ]
    by_age = sorted([*spare, *rows], key=lambda row: (row.stamp, row.id))
    plain = [row.id for row in by_age if not row.name]
    # The newer one is kept as well, and counts.
    over = plain[: max(0, len(plain) + 1 - settings.save_points)]
    changed = []
    for row in rows:
        aside = row.is_of(incarnation) and row.id not in over
        keeping = Keeping.ASIDE if aside else Keeping.SUPERSEDED
        seconds = settings.set_aside if aside else settings.grace
        changed.append(row.kept(keeping, now, now + seconds, by_word=aside))
    soon = now + settings.grace
    changed += [
        row.kept(Keeping.ASIDE, row.changed, soon, by_word=True)
        for row in spare
        if row.id in over and (row.expires is None or row.expires > soon)
    ]
    return changed


def aside(
    info: CheckpointInfo,
    now: float,
    seconds: float | None,
    session: SessionRow | None = None,
) -> CheckpointRow:
    """The row of a checkpoint that is set aside; None: not deleted by itself.

    If a person has set it aside and the journal did not know, it is kept until the time
    in the mark. A checkpoint of another account than the session's, whichever of the
    two is older, is not deleted before that one has gone on.
    """
    if session is not None and lineage.is_anothers(session, info):
        seconds = None
    expires = None if seconds is None else now + seconds
    if info.aside is not None:
        expires = info.aside.until
    row = current(info, now)
    return msgspec.structs.replace(
        row, keeping=Keeping.ASIDE, expires=expires, info=info
    )


def kept(
    sessions: Sessions,
    checkpoint: str,
    keeping: Keeping,
    seconds: float | None = None,
    *,
    by_word: bool = False,
) -> list[CheckpointRow]:
    """Return the changed row of a known checkpoint; empty if there is none.

    Args:
        sessions: where the journal and the clock are.
        checkpoint: its id; may be empty.
        keeping: why it is kept from now on.
        seconds: for how long; None: without limit.
        by_word: whether a person has set it aside; the store is told so (``marks``).
    """
    row = sessions.journal.checkpoint(checkpoint) if checkpoint else None
    if row is None:
        return []
    now = sessions.clock.now()
    expires = None if seconds is None else now + seconds
    return [row.kept(keeping, now, expires, by_word=by_word)]


def came_from(
    sessions: Sessions, row: SessionRow, grace: float | None
) -> list[CheckpointRow]:
    """Return the row of a session's parent checkpoint: kept for the time of grace.

    If a rule saves the session, or it is a save point of the session itself, it is kept
    until there is a newer one: the session always has something to go back to. That the
    session has gone on from it is for the store to know, too (``marks``).

    Args:
        sessions: where the journal and the clock are.
        row: the session, with the incarnation that runs.
        grace: seconds; None: until there is a newer one.
    """
    known = sessions.journal.checkpoint(row.checkpoint)
    seconds = None if until_newer(sessions, row, known) else grace
    rows = kept(sessions, row.checkpoint, Keeping.SUPERSEDED, seconds)
    return [each.went_on(row.incarnation, sessions.clock.now()) for each in rows]


def settled(
    sessions: Sessions, key: SessionKey, seconds: float, *, by_word: bool = False
) -> list[CheckpointRow]:
    """Return rows set aside without limit, expiring now that another was chosen."""
    expires = sessions.clock.now() + seconds
    return [
        row.kept(row.keeping, row.changed, expires, by_word=by_word)
        for row in sessions.journal.checkpoints(key)
        if row.keeping is Keeping.ASIDE and row.expires is None
    ]


def back_again(
    sessions: Sessions, session: SessionRow, grace: float
) -> list[CheckpointRow]:
    """Return the row of what a session goes back to, now that its suspend is given up.

    That is its last save point, kept as before, or what it came from, while that is
    kept (for the time of grace, in seconds, if it was wanted back); empty if there is
    none.
    """
    given_up = sessions.journal.checkpoint(session.checkpoint)
    parent = given_up.info.parent if given_up is not None and given_up.info else ""
    rows = [
        row
        for row in sessions.journal.checkpoints(session.key)
        if row.id != session.checkpoint
        and not lineage.is_hidden(session, row)
        and (row.id == parent or row.is_of(session.incarnation))
    ]
    return [
        row.kept(
            Keeping.SUPERSEDED, row.changed, _as_long(sessions, session, row, grace)
        )
        for row in rows[-1:]
    ]


def _as_long(
    sessions: Sessions, session: SessionRow, row: CheckpointRow, grace: float
) -> float | None:
    """Return until when a session that goes on keeps it; None: until a newer one."""
    if until_newer(sessions, session, row):
        return None
    wanted = row.keeping is Keeping.WANTED
    return sessions.clock.now() + grace if wanted else row.expires


async def collect(sessions: Sessions, agent: Agent, set_aside: float) -> None:
    """Delete expired checkpoints; a failed deletion is tried again.

    A named checkpoint is set aside for so many seconds when its session needs it no
    more.

    For a session that was not found to be as the journal says, only a person's order is
    enough: if the journal is older than the store, what looks superseded may be all
    there is. Of the checkpoints that a session came from, the oldest goes first, so
    that none outlives a newer one; and it goes only while the session is seen to run,
    not while it was seen at the last tick.
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
        if runs and not await _is_running(agent, runs):
            stuck.add(due.key)
            continue
        if row is not None and superseded and due.name:
            _set_aside(sessions, row, due, set_aside)
            continue
        try:
            # It may end before a late order arrives: its agent looks once more.
            await agent.order(due.id, orders.Discard(runs=runs))
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


def _set_aside(
    sessions: Sessions, row: SessionRow, due: CheckpointRow, seconds: float
) -> None:
    now = sessions.clock.now()
    aside = due.kept(Keeping.ASIDE, now, now + seconds, by_word=True)
    needed = "" if row.checkpoint == due.id else row.checkpoint
    sessions.update(row.key, checkpoints=[aside], checkpoint=needed)


def _due(sessions: Sessions) -> list[CheckpointRow]:
    """Return the expired ones, and older ones: a clock may have jumped in between.

    A checkpoint that its session has just come back from keeps its own time, however
    old it is.
    """
    expired = {row.id for row in sessions.journal.due(sessions.clock.now())}
    rows = sessions.journal.checkpoints()
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


async def _is_running(agent: Agent, incarnation: str) -> bool:
    """Whether a session's programs run at this moment, as far as can be seen."""
    try:
        return (await agent.tree(incarnation)).lives
    except ReclaimError:
        return False


def _drop_of_deleted_users(
    kept: Iterable[Kept], rows: Mapping[str, CheckpointRow], now: float
) -> list[Dropped]:
    """Drop suspended sessions of users whom a program has deleted, after their time."""
    why = "A program deleted its user, who has not come back."
    times = ((each, rows[each.id].expires) for each in kept if each.use is Use.CURRENT)
    return [
        Dropped(each.id, why) for each, end in times if end is not None and end <= now
    ]


def retain(sessions: Sessions, retention: Retention) -> None:
    """Mark the checkpoints beyond the administrator's limits for deletion.

    Raises:
        StoreError: the journal could not be written; what was marked before stays so.
    """
    rows = {row.id: row for row in sessions.journal.checkpoints()}
    now = sessions.clock.now()
    kept_now = kept_of(sessions)
    dropped = {each.id: each for each in _drop_of_deleted_users(kept_now, rows, now)}
    dropped |= {each.id: each for each in drop(kept_now, retention, now)}
    for each in dropped.values():
        row = rows[each.id]
        if not sessions.runtime(row.key).compared:
            continue  # what looks superseded may be all there is
        if row.keeping is Keeping.CURRENT:
            gone = codec.failure_of(Refused(Reason.SAVED_DROPPED, why=each.why))
            discard(sessions, row.key, row.id, failure=gone)
        else:
            line = sessions.audit_line(row.key, SERVICE, "retention", each.why)
            sessions.journal.keep(kept(sessions, each.id, Keeping.TO_DELETE, seconds=0))
            sessions.update(row.key, line)


def discard(
    sessions: Sessions,
    key: SessionKey,
    checkpoint: str,
    *,
    by: str = SERVICE,
    failure: Failure | None = None,
) -> None:
    """Stop a suspended session, and mark its checkpoint for deletion.

    Args:
        sessions: where the journal is.
        key: the session.
        checkpoint: the one that the session is suspended in.
        by: who gave the order.
        failure: why, for the session's page; None: its user's order.
    """
    sessions.apply(
        key,
        SessionEvent.DISCARDED,
        by=by,
        failure=failure,
        checkpoints=kept(sessions, checkpoint, Keeping.TO_DELETE, seconds=0),
        checkpoint="",
    )


def kept_of(sessions: Sessions) -> list[Kept]:
    """Return every checkpoint that is kept, as the policy sees it."""
    standing = {row.key: row for row in sessions.journal.sessions()}
    return [
        _as_kept(row, standing.get(row.key))
        for row in sessions.journal.checkpoints()
        if row.keeping is not Keeping.TO_DELETE
    ]


def _as_kept(row: CheckpointRow, session: SessionRow | None) -> Kept:
    """Describe a checkpoint and its use for the policy."""
    use, info = _use(row, session), row.info
    if info is None:
        return Kept(row.id, row.key, {}, row.changed, use)
    return Kept(row.id, row.key, keeps(info), info.created, use)


def _use(row: CheckpointRow, session: SessionRow | None) -> Use:
    if row.keeping is Keeping.ASIDE:
        return Use.SPARE
    if row.keeping is not Keeping.CURRENT or session is None:
        return Use.BUSY
    rests = session.phase is Phase.SUSPENDED and session.intent is Intent.NONE
    return Use.CURRENT if rests and session.checkpoint == row.id else Use.BUSY


def give_notice(sessions: Sessions, retention: Retention, ahead: float) -> None:
    """Announce every checkpoint that expires within so many seconds.

    Args:
        sessions: where journal and clock are.
        retention: the administrator's limits.
        ahead: seconds; what was kept for less than that is not announced.

    Raises:
        StoreError: the journal does not answer; what was announced stays announced.
    """
    journal, now = sessions.journal, sessions.clock.now()
    rows = {row.id: row for row in journal.checkpoints()}
    announced = notes.read_all(journal, NoteKind.EXPIRY)
    journal.write(*notes.forget(NoteKind.EXPIRY, *(announced.keys() - rows.keys())))
    for checkpoint, at in _expiries(sessions, retention, now + ahead).items():
        row = rows[checkpoint]
        if checkpoint in announced or at - row.changed <= ahead:
            continue
        line = sessions.audit_line(
            row.key, SERVICE, "deletion ahead", _message(row, at - now)
        )
        journal.write(
            schema.insert_audit(line),
            *notes.note(NoteKind.EXPIRY, checkpoint, now),
        )


def _expiries(
    sessions: Sessions, retention: Retention, until: float
) -> dict[str, float]:
    """Return the checkpoints that expire until then, and when."""
    kept = kept_of(sessions)
    aged = {each.id for each in drop(kept, retention, until)}
    ends = {
        each.id: each.suspended + retention.seconds
        for each in kept
        if each.id in aged and retention.seconds
    }
    for row in sessions.journal.checkpoints():
        hidden = lineage.is_hidden(sessions.row(row.key), row)
        if row.keeping is Keeping.ASIDE and row.expires is not None and not hidden:
            ends[row.id] = min(row.expires, ends.get(row.id, row.expires))
    now = sessions.clock.now()
    return {name: at for name, at in ends.items() if now < at <= until}


def _message(row: CheckpointRow, left: float) -> str:
    what = "What was put aside"
    if row.keeping is Keeping.CURRENT:
        what = "The only checkpoint of this session"
    return f"{what} is deleted in {duration(left)}."
