"""Brings back a checkpoint other than the one a session is suspended in.

A person chooses it. The present checkpoint is set aside; a running session is suspended
first. Until that is done, the row's ``bring_back`` names the wanted checkpoint, so that
a crash at any point is survived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


def take(
    sessions: Sessions,
    row: SessionRow,
    *,
    checkpoint: str = "",
    by: str = "",
    gone: bool = False,
) -> SessionRow:
    """Make the wanted checkpoint the one the session is suspended in, and resume it.

    ``gone``: the former checkpoint is missing, which nobody has set aside.
    """
    checkpoint, by = checkpoint or row.bring_back, by or row.intent_by
    rows: list[CheckpointRow] = []
    other = row.checkpoint != checkpoint
    if other and not gone:
        rows = expiry.aside(sessions, row.checkpoint)
    wanted = sessions.journal.checkpoint(checkpoint)
    if wanted is not None:
        rows.append(wanted.said(aside=None, gone_on=None))
    # What runs from the same one already, unknown to the Hub, is still its own.
    info = wanted.info if wanted and other else None
    return sessions.apply(
        row.key,
        SessionEvent.BROUGHT_BACK,
        by=by or SERVICE,
        checkpoints=rows,
        account=info.account if info and not row.since else row.account,
        session=info.session if info else row.session,
        incarnation=info.incarnation if info else row.incarnation,
        checkpoint=checkpoint,
        intent=Intent.RESUME,
        intent_by=by,
    )
