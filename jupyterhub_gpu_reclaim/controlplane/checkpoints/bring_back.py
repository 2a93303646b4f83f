"""Brings back a checkpoint other than the one a session is suspended in.

A person chooses it. The present checkpoint is set aside; a running session is suspended
first. Until that is done, the row's ``bring_back`` names the wanted checkpoint, so that
a crash at any point is survived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


def take(
    sessions: Sessions,
    row: SessionRow,
    settings: Settings,
    *,
    checkpoint: str = "",
    by: str = "",
    gone: bool = False,
) -> SessionRow:
    """Make the wanted checkpoint the one the session is suspended in, and resume it.

    Args:
        sessions: where the journal is.
        row: stopped or suspended.
        settings: for how long the former checkpoint is kept.
        checkpoint: the wanted one; empty: what the row has noted.
        by: who wants it; empty: likewise.
        gone: whether the former checkpoint is missing; if it is found after all, a
            person decides.
    """
    checkpoint, by = checkpoint or row.bring_back, by or row.intent_by
    rows: list[CheckpointRow] = []
    other = row.checkpoint != checkpoint
    if other:
        seconds = None if gone else settings.set_aside
        rows = expiry.kept(
            sessions, row.checkpoint, Keeping.ASIDE, seconds, by_word=not gone
        )
    wanted = expiry.kept(sessions, checkpoint, Keeping.CURRENT)
    # What runs from the same one already, unknown to the Hub, is still its own.
    info = wanted[0].info if wanted and other else None
    return sessions.apply(
        row.key,
        SessionEvent.BROUGHT_BACK,
        by=by or SERVICE,
        checkpoints=[*rows, *wanted],
        account=info.account if info and not row.since else row.account,
        session=info.session if info else row.session,
        incarnation=info.incarnation if info else row.incarnation,
        checkpoint=checkpoint,
        intent=Intent.RESUME,
        intent_by=by,
    )


def wish(
    sessions: Sessions, row: SessionRow, wanted: CheckpointRow, by: str
) -> SessionRow:
    """Note the checkpoint to bring back once the running session is suspended."""
    line = sessions.audit_line(row.key, by, "ask to bring back", wanted.id)
    rows = expiry.kept(sessions, wanted.id, Keeping.WANTED)
    if row.bring_back and row.bring_back != wanted.id:
        rows += expiry.kept(sessions, row.bring_back, Keeping.ASIDE)
    return sessions.update(
        row.key,
        line,
        checkpoints=rows,
        bring_back=wanted.id,
        intent=Intent.SUSPEND,
        intent_by=by,
    )


def call_off(sessions: Sessions, row: SessionRow, settings: Settings) -> SessionRow:
    """Stop bringing back: the session runs on, and the checkpoint is kept as before."""
    rows = rows_to_call_off(sessions, row, settings)
    return sessions.update(row.key, checkpoints=rows, bring_back="")


def rows_to_call_off(
    sessions: Sessions, row: SessionRow, settings: Settings
) -> list[CheckpointRow]:
    """Return the rows for :func:`call_off`, to write with something else."""
    if not row.bring_back:
        return []
    if row.bring_back == row.checkpoint:  # it came back from that one
        known = sessions.journal.checkpoint(row.bring_back)
        stays = expiry.until_newer(sessions, row, known)
        seconds = None if stays else settings.grace
        return expiry.kept(sessions, row.bring_back, Keeping.SUPERSEDED, seconds)
    return expiry.kept(sessions, row.bring_back, Keeping.ASIDE, settings.set_aside)
