"""Bringing back a saved state that is not what the session is suspended in.

A person chooses it. What the session is in at that moment is put aside, and can be
brought back in the same way; a session that runs is saved before. Between that wish and
its end the row's ``bring_back`` says what is wanted, so that any crash is survived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.model.phases import Happened
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Phases in which nothing of the session runs, so that another state can take over.
FROM = frozenset({Phase.STOPPED, Phase.SUSPENDED})


def take(
    sessions: Sessions,
    row: SessionRow,
    settings: Settings,
    *,
    checkpoint: str = "",
    by: str = "",
) -> SessionRow:
    """The session is suspended in the wanted state from now on, and is to come back.

    Args:
        sessions: where the journal is.
        row: stopped or suspended.
        settings: for how long the state it was in is kept.
        checkpoint: the wanted state; empty: what the row has noted.
        by: who wants it; empty: likewise.
    """
    checkpoint, by = checkpoint or row.bring_back, by or row.intent_by
    rows: list[CheckpointRow] = []
    if row.checkpoint != checkpoint:
        rows = expiry.kept(sessions, row.checkpoint, Keeping.ASIDE, settings.set_aside)
    wanted = expiry.kept(sessions, checkpoint, Keeping.CURRENT)
    info = wanted[0].info if wanted else None
    return sessions.apply(
        row.key,
        Happened.BROUGHT_BACK,
        by=by or SERVICE,
        checkpoints=[*rows, *wanted],
        incarnation=info.incarnation if info else row.incarnation,
        checkpoint=checkpoint,
        bring_back="",
        dismissed=row.checkpoint or row.dismissed,
        attempt="",
        intent=Intent.RESUME,
        intent_by=by,
    )


def wish(
    sessions: Sessions, row: SessionRow, wanted: CheckpointRow, by: str
) -> SessionRow:
    """Note what is to come back once the running session is saved."""
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
    """The session runs on: what was wanted is kept as long as before."""
    rows = off(sessions, row, settings)
    return sessions.update(row.key, checkpoints=rows, bring_back="")


def off(sessions: Sessions, row: SessionRow, settings: Settings) -> list[CheckpointRow]:
    """The rows for :func:`call_off`, where something else is written with them."""
    if not row.bring_back:
        return []
    if row.bring_back == row.checkpoint:  # it came back from that one
        return expiry.kept(sessions, row.bring_back, Keeping.SUPERSEDED, settings.grace)
    return expiry.kept(sessions, row.bring_back, Keeping.ASIDE, settings.set_aside)
